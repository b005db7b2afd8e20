"""What a kernel computes that obeys a FlexAttention block table, cell by cell.

Shape letters: B rows, T slots of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verify.subject import SubjectError


def effective_mask(mask: Any) -> Tensor:
    """Rebuild the mask from full blocks (every cell), partial blocks (where ``mask_mod`` allows it) and no others.

    Args:
        mask: A ``BlockMask`` with one head.

    Returns:
        bool, [B, T query, T key], on the CPU.

    Raises:
        SubjectError: Several heads, or a block that is listed twice: its cells would be attended to twice.
    """
    num_rows, num_heads, num_queries, num_keys = mask.shape
    if num_heads != 1:
        raise SubjectError(f"the block mask has {num_heads} heads; one that serves all heads is needed")
    query_block, key_block = mask.BLOCK_SIZE
    device = mask.kv_indices.device
    allowed, listed = torch.zeros(num_rows, num_queries, num_keys, dtype=torch.bool), set()
    for row, i, j, is_full in _listed_blocks(mask):
        if (row, i, j) in listed:
            raise SubjectError(f"block ({i}, {j}) of row {row} is listed twice: its cells would be attended to twice")
        listed.add((row, i, j))
        queries = torch.arange(i * query_block, min((i + 1) * query_block, num_queries), device=device)
        keys = torch.arange(j * key_block, min((j + 1) * key_block, num_keys), device=device)
        if not len(queries) or not len(keys):
            continue
        number = torch.zeros((), dtype=torch.int64, device=device)
        cells = is_full or mask.mask_mod(number + row, number, queries[:, None], keys[None, :]).cpu()
        allowed[row, queries[0] : queries[-1] + 1, keys[0] : keys[-1] + 1] = cells
    return allowed


def _listed_blocks(mask: Any) -> list[tuple[int, int, int, bool]]:
    """Row, query block, key block and whether it is full, of every block that the table lists."""
    tables = [(mask.kv_num_blocks, mask.kv_indices, False)]
    if mask.full_kv_num_blocks is not None:
        tables.append((mask.full_kv_num_blocks, mask.full_kv_indices, True))
    return [
        (row, i, j, is_full)
        for counts, indices, is_full in tables
        for row, of_row in enumerate(counts[:, 0].tolist())
        for i, count in enumerate(of_row)
        for j in indices[row, 0, i, :count].tolist()
    ]

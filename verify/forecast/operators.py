"""What one operator of torch does: FLOPs as ``FlopCounterMode`` counts them, FLOPs as its kernel computes, bytes.

Shape letters: B rows, N query heads, q queries, k keys, H head dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten

CPU_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu
CPU_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward


def _product_flops(query: Any, key: Any) -> int:
    """FLOPs of the scores of all queries and keys, or of any other product of attention: 2 B N q k H."""
    rows, heads, num_queries, head_dim = query
    return int(2 * rows * heads * num_queries * key[2] * head_dim)


def _cpu_attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 2 * _product_flops(query, key)


def _cpu_attention_backward_flops(
    grad_out: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return 5 * _product_flops(query, key)


CPU_ATTENTION_FORMULAS: Mapping[Any, Any] = {
    CPU_ATTENTION: _cpu_attention_flops,
    CPU_ATTENTION_BACKWARD: _cpu_attention_backward_flops,
}
"""For ``FlopCounterMode(custom_mapping=...)``, which by itself counts no attention on a CPU."""

FORWARD_ATTENTION = {
    CPU_ATTENTION,
    _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_efficient_attention,
}
BACKWARD_ATTENTION = {
    CPU_ATTENTION_BACKWARD,
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
}
_GATHERS = {_aten.embedding, _aten.index, _aten.index_select, _aten.gather}
"""They read of their source as much as they write, not the whole of it."""


def counted_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """FLOPs of an operator as torch counts them, attention on a CPU included; 0 for what is no matrix product."""
    packet = func._overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    if packet is CPU_ATTENTION:
        return _cpu_attention_flops(*(tensor.shape for tensor in args[:3]))
    if packet is CPU_ATTENTION_BACKWARD:
        return _cpu_attention_backward_flops(*(tensor.shape for tensor in args[:4]))
    return 0


def attended_share(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """How many cells of queries and keys an attention kernel computes, and how many there are, for one row and head.

    A causal kernel leaves out what lies behind the diagonal, whose end is the last query and the last key: of q queries
    over k keys ``q (k - q) + q (q + 1) / 2`` cells are left. With a mask every cell is computed.
    """
    query, key = (args[0], args[1]) if func._overloadpacket in FORWARD_ATTENTION else (args[1], args[2])
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    whole = num_queries * num_keys
    if not argument(func, args, kwargs, "is_causal"):
        return whole, whole
    return num_queries * (num_keys - num_queries) + num_queries * (num_queries + 1) // 2, whole


def argument(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The argument of an operator of that name, or its default."""
    if name in kwargs:
        return kwargs[name]
    for place, each in enumerate(func._schema.arguments):
        if each.name == name:
            return args[place] if place < len(args) else each.default_value
    raise ValueError(f"{func} has no argument {name}")


def moved_bytes(func: Any, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Bytes that an operator reads and writes, each tensor once and none from a cache; 0 for a view.

    Args:
        func: The operator.
        args: Its arguments.
        inputs: The tensors among all its arguments.
        outputs: The tensors that it returns; none where it changes lists of tensors in place.
    """
    schema = func._schema
    if not outputs:
        changed = [arg for arg, each in zip(args, schema.arguments, strict=False) if _is_written(each)]
        written = sum(num_bytes(leaf) for leaf in tree_leaves(changed) if isinstance(leaf, Tensor))
        return written + sum(map(num_bytes, inputs)) if written else 0
    written = sum(map(num_bytes, outputs))
    if not schema.is_mutable:
        sources = {tensor.untyped_storage()._cdata for tensor in inputs}
        if all(tensor.untyped_storage()._cdata in sources for tensor in outputs):
            return 0
    if func._overloadpacket in _GATHERS:
        return 2 * written + sum(num_bytes(tensor) for tensor in inputs[1:])
    return written + sum(map(num_bytes, inputs))


def _is_written(declared: Any) -> bool:
    return declared.alias_info is not None and declared.alias_info.is_write


def num_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements; of one that is expanded, those that there are."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())

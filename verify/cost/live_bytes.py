"""Bytes of the storages that are alive, followed from the operator that returns one to its end.

What a CPU has in place of an accelerator's allocator, which counts for itself. It follows values and not the heap: what
an operator uses inside is not seen, and neither is what the C library keeps back of what was freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows storages while the mode is on.

    Args:
        held: Tensors that are there before, such as parameters and the state of an optimizer: each storage counts once.

    Attributes:
        live: Bytes alive now.
        peak: The most so far.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._followed: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._kept: list[torch.UntypedStorage] = []
        for tensor in held:
            self._kept.append(tensor.untyped_storage())  # so that no id is used again while the mode is on
            self._follow(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        return result

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._followed:
            return

        def freed(_: object) -> None:
            del self._followed[key]
            self.live -= size

        self._followed[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)

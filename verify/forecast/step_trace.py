"""Follows a step operator by operator: which storages live, and what is computed, window by window.

A window is a run of operators: one pass of one decoder layer, or what lies between layers. The step names the windows
(``open``); within each the peak of live bytes and the work are kept, so that a step on more layers can be put together
from the windows of one on few (``depth.unrolled``).

Works alike on real and on fake tensors. Storages that are there before (parameters, buffers) are not counted. What a
kernel allocates and frees inside itself is not seen.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from verify.forecast.operators import (
    BACKWARD_ATTENTION,
    FORWARD_ATTENTION,
    argument,
    attended_share,
    counted_flops,
    moved_bytes,
)
from verify.forecast.work import Operation, Work

Phase = Literal["reference", "policy", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Window:
    """A run of operators of a step.

    Args:
        phase: Where in the step.
        layer: The decoder layer, counted from 0; None between layers.
        excess: Peak of live bytes, gradients of parameters included, over those at its beginning.
        growth: Live bytes that are left at its end beyond those at its beginning, gradients of parameters excepted.
        gradient_growth: Bytes of gradients of parameters that it leaves.
        work: What it computes.
    """

    phase: Phase
    layer: int | None
    excess: int
    growth: int
    gradient_growth: int
    work: Work


class StepTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what runs while it is entered; ``windows`` holds what was found after it is left.

    Args:
        model: Its parameters and buffers are there before.
        others: Further modules of which the same is true.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.windows: list[Window] = []
        self.peak = 0
        tensors = [t for each in (model, *others) for t in (*each.parameters(), *each.buffers())]
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._before = [tensor.untyped_storage() for tensor in tensors]  # kept, so that no id is used again
        self._known = set(map(id, self._before))
        self._followed: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._gradients: set[int] = set()
        self._live = self._live_gradients = 0
        self._attended: dict[int, int] = {}
        self._next_attended: int | None = None
        self._phase: Phase = "reference"
        self._layer: int | None = None
        self._begin()

    @property
    def live(self) -> int:
        """Bytes that live now, gradients of parameters included."""
        return self._live + self._live_gradients

    @property
    def phase(self) -> Phase:
        """The phase of the window that is open."""
        return self._phase

    @contextmanager
    def following_gradients(self) -> Iterator[None]:
        """Tell gradients of parameters from other bytes, as soon as each is complete."""
        hooks = [p.register_post_accumulate_grad_hook(self._is_gradient) for p in self._parameters]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def open(self, phase: Phase, layer: int | None = None) -> None:
        """End the window and begin another one."""
        self._end()
        self._phase, self._layer = phase, layer
        self._begin()

    def close(self) -> None:
        """End the last window."""
        self._end()
        self._begin()

    @contextmanager
    def attending(self, cells: int) -> Iterator[None]:
        """The next attention kernel computes so many cells of queries and keys, all rows and heads together.

        So does its backward pass, which is told by the statistics that the kernel returns.
        """
        self._next_attended = cells
        try:
            yield
        finally:
            self._next_attended = None

    def _begin(self) -> None:
        self._first_live, self._first_gradients, self._window_peak = self._live, self._live_gradients, self.live
        self._products = self._attention = self._attention_counted = 0
        self._operations: Counter[Operation] = Counter()

    def _end(self) -> None:
        work = Work(self._products, self._attention, self._attention_counted, self._operations)
        first = self._first_live + self._first_gradients
        window = Window(
            phase=self._phase,
            layer=self._layer,
            excess=self._window_peak - first,
            growth=self._live - self._first_live,
            gradient_growth=self._live_gradients - self._first_gradients,
            work=work,
        )
        if work.operations or window.excess or window.growth or window.gradient_growth:
            self.windows.append(window)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and is_fake(args[0]):
            return args[0].fake_device  # asked for more often than anything is computed
        kwargs = kwargs or {}
        if func is torch.ops.aten.equal.default and any(is_fake(tensor) for tensor in args):
            return True  # asks for values, of which fake tensors have none
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._follow(tensor.untyped_storage())
        self._count(func, args, kwargs, result, outputs)
        return result

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any, outputs: list[Tensor]) -> None:
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        moved = moved_bytes(func, args, inputs, outputs)
        if not moved:
            return
        flops = counted = counted_flops(func, args, kwargs, result)
        if func._overloadpacket in FORWARD_ATTENTION or func._overloadpacket in BACKWARD_ATTENTION:
            cells, of = self._cells(func, args, kwargs, outputs)
            flops = counted * cells // of
            self._attention += flops
            self._attention_counted += counted
        else:
            self._products += flops
        self._operations[Operation(flops, moved)] += 1

    def _cells(self, func: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> tuple[int, int]:
        """Cells that an attention kernel computes, and those that there are."""
        forward = func._overloadpacket in FORWARD_ATTENTION
        kept = outputs[1] if forward else argument(func, args, kwargs, "logsumexp")
        statistics = kept.untyped_storage()._cdata
        if forward and self._next_attended is not None:
            self._attended[statistics] = self._next_attended
        elif forward:
            self._attended.pop(statistics, None)
        if statistics not in self._attended:
            return attended_share(func, args, kwargs)
        query, key = (args[0], args[1]) if forward else (args[1], args[2])
        return self._attended[statistics], query.shape[0] * query.shape[1] * query.shape[-2] * key.shape[-2]

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._known or key in self._followed:
            return
        num_bytes = storage.nbytes()

        def freed(_: object) -> None:
            del self._followed[key]
            if key in self._gradients:
                self._gradients.discard(key)
                self._live_gradients -= num_bytes
            else:
                self._live -= num_bytes

        self._followed[key] = weakref.ref(storage, freed), num_bytes
        self._live += num_bytes
        if self.live > self._window_peak:
            self._window_peak = self.live
            self.peak = max(self.peak, self._window_peak)

    def _is_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        key = id(parameter.grad.untyped_storage())
        if key in self._followed and key not in self._gradients:
            self._gradients.add(key)
            num_bytes = self._followed[key][1]
            self._live -= num_bytes
            self._live_gradients += num_bytes


def is_fake(tensor: object) -> bool:
    """Whether a tensor has no values."""
    return isinstance(tensor, torch._subclasses.FakeTensor)

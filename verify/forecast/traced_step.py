"""One training step, followed window by window: reference pass, policy pass, backward pass.

The optimizer is not part of it: what it does depends on the parameters alone (``optimizer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import logsigmoid

from reports.cost_record import PathName
from verify.forecast.kernels import flex_modelled, kernels_of
from verify.forecast.step_trace import Phase, StepTrace, Window
from verify.models.adapters import adapters_off
from verify.subjects.path_calls import (
    PathCall,
    attention_of,
    call_logps,
    decoder_layers_of,
    has_windows,
)

_BETA = 0.1


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FakeStep:
    """A step on fake tensors.

    Args:
        model: The policy.
        reference: The frozen policy; None for the policy with its adapters off.
        fake: What their tensors belong to.
        device_type: "cpu" or "cuda": whose attention kernels run.
        logit_chunk: Number of completion tokens whose logits exist at one time.
    """

    model: Any
    reference: Any
    fake: FakeTensorMode
    device_type: str
    logit_chunk: int

    def windows(self, path: PathName, call: PathCall, *, with_reference: bool) -> list[Window]:
        """Follow a step that makes one forward call with each policy.

        Args:
            path: How log-probs are computed.
            call: The call.
            with_reference: Follow the reference pass too, rather than take its log-probs for given.

        Returns:
            What was found, in the order of the step.
        """
        frozen, others = (self.model, []) if self.reference is None else (self.reference, [self.reference])
        planned = self._plan(call)
        trace = StepTrace(self.model, *others)
        with ExitStack() as stack:
            stack.enter_context(kernels_of(self.device_type))
            stack.enter_context(trace)
            stack.enter_context(trace.following_gradients())
            ref: list[Tensor] = []
            off: AbstractContextManager[None] = nullcontext() if others else adapters_off(self.model)
            if with_reference:
                trace.open("reference")
                with off, torch.no_grad(), self._following(trace, frozen, "reference", path, call):
                    ref = self._logps(frozen, call, planned)
            trace.open("policy")
            # Around the backward pass too, in which checkpointed layers run again.
            with self._following(trace, self.model, "policy", path, call):
                policy = self._logps(self.model, call, planned)
                loss = _loss(policy, ref or [logps.detach() for logps in policy])
                del policy
                trace.open("backward")
                loss.backward()  # type: ignore[no-untyped-call]
            trace.close()
        return trace.windows

    def _plan(self, call: PathCall) -> Any:
        """What tells the layers who attends to whom, where that is no tensor of the size of the scores.

        It is made outside of the trace: plans of calls and block tables are nothing that a step computes with.
        """
        if self.device_type != "cuda" or call.backend not in ("split", "flex"):
            return None
        if has_windows(self.model):
            raise ValueError(
                f"{call.backend} attention with sliding windows is not modelled for a GPU: leave out the paths "
                "padding-free, sparse and split, or forecast them for a CPU"
            )
        return call.told(self.model, "cuda" if call.backend == "split" else "cpu")

    def _logps(self, model: Any, call: PathCall, planned: Any) -> list[Tensor]:
        if planned is None:
            with self.fake:  # a mask of all slots must not take memory
                planned = call.told(model, "cpu")
        return call_logps(model, call, planned, logit_chunk=self.logit_chunk)

    @contextmanager
    def _following(self, trace: StepTrace, model: Any, phase: Phase, path: PathName, call: PathCall) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(attention_of(model, path))
            if path == "sparse":
                stack.enter_context(flex_modelled(trace, call.num_block_cells()))
            stack.enter_context(_windows_by_layer(trace, model, phase))
            yield


def _loss(policy: Sequence[Tensor], ref: Sequence[Tensor]) -> Tensor:
    """It stands for any objective: one number of each completion, under each policy."""
    rewards = torch.stack([logps.sum() - ref_logps.sum() for logps, ref_logps in zip(policy, ref, strict=True)])
    return -logsigmoid(_BETA * rewards).mean()


@contextmanager
def _windows_by_layer(trace: StepTrace, model: nn.Module, phase: Phase) -> Iterator[None]:
    """Let each layer have windows of its own, in the pass and in the backward pass through it."""

    def tell_backward(tensor: Tensor, layer: int | None) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda _: trace.open("backward", layer))  # type: ignore[no-untyped-call]

    def before(index: int, hidden: Tensor) -> None:
        if trace.phase == phase:  # else the layer is computed again, within its backward pass
            if index == 0:
                tell_backward(hidden, None)
            trace.open(phase, index)

    def after(index: int, output: Any) -> None:
        if trace.phase == phase:
            tell_backward(output[0] if isinstance(output, tuple) else output, index)
            if index == len(layers) - 1:
                trace.open(phase)

    layers = decoder_layers_of(model)
    with ExitStack() as hooks:
        for index, layer in enumerate(layers):
            pre = layer.register_forward_pre_hook(lambda _, args, index=index: before(index, args[0]))
            post = layer.register_forward_hook(lambda _, __, output, index=index: after(index, output))
            hooks.callback(pre.remove)
            hooks.callback(post.remove)
        yield

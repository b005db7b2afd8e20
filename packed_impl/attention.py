"""The attention backends, each an explicit choice, and the context in which a model uses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from packed_impl.dense import additive_mask, boolean_mask
from packed_impl.flex import block_mask, flex_attention_forward
from packed_impl.forest import Forest
from packed_impl.modules import all_modules
from packed_impl.split import plan_split_calls, split_attention_forward
from packed_impl.windows import FULL_ATTENTION, LayerWindows, layer_windows

AttentionFunction = Callable[..., tuple[torch.Tensor, None]]
ModelKwargs = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to compute the attention of packed rows.

    Args:
        implementation: The name under which transformers looks the attention function up.
        function: The function to register under that name, or None for one that transformers ships.
        argument: Keyword argument of the model call that tells layers who attends to whom.
        rule: Makes it for layers of one window, from the rows, the device, the dtype and the window.
    """

    implementation: str
    function: AttentionFunction | None
    argument: str
    rule: Callable[[Sequence[Forest], torch.device, torch.dtype, int | None], object]

    def model_kwargs(
        self,
        forests: Sequence[Forest],
        device: torch.device,
        dtype: torch.dtype,
        windows: LayerWindows = FULL_ATTENTION,
    ) -> ModelKwargs:
        """Make the keyword arguments of the model call.

        Args:
            forests: The rows, all of equal length.
            device: The model's device.
            dtype: The model's dtype.
            windows: The windows of the model's layers.

        Returns:
            The one argument; its value is a mapping from layer type where the model has several.
        """
        return {self.argument: windows.handed_out(partial(self.rule, forests, device, dtype))}


_TABLE: Mapping[str, Backend] = {
    "dense-eager": Backend("eager", None, "attention_mask", additive_mask),
    "dense-sdpa": Backend(
        "sdpa", None, "attention_mask", lambda forests, device, dtype, window: boolean_mask(forests, device, window)
    ),
    "flex": Backend(
        "packed-flex",
        flex_attention_forward,
        "attention_mask",
        lambda forests, device, dtype, window: block_mask(forests, device, window=window),
    ),
    "split": Backend(
        "packed-split",
        split_attention_forward,
        "split_calls",
        lambda forests, device, dtype, window: plan_split_calls(forests, device, dtype, window),
    ),
}
BACKENDS = tuple(_TABLE)


def backend_named(name: str) -> Backend:
    """Look a backend up.

    Args:
        name: One of ``BACKENDS``.

    Returns:
        The backend.

    Raises:
        ValueError: An unknown name; the message lists the known ones.
    """
    if name not in _TABLE:
        raise ValueError(f"unknown attention backend {name!r}: expected one of {', '.join(BACKENDS)}")
    return _TABLE[name]


def attention_function(backend: str) -> AttentionFunction:
    """The function that a layer calls under a backend; of dense-sdpa that of transformers.

    Args:
        backend: One of ``BACKENDS``, but for dense-eager, whose function each model has for itself.

    Returns:
        The function.

    Raises:
        ValueError: An unknown backend, or dense-eager.
    """
    chosen = backend_named(backend)
    function = chosen.function or AttentionInterface._global_mapping.get(chosen.implementation)
    if function is None:
        raise ValueError(f"backend {backend!r} has no function of its own: each model computes it with its own code")
    found: AttentionFunction = function
    return found


def gradient_support(backend: str, device_type: str) -> tuple[bool, str]:
    """Whether gradients flow through a backend on a kind of device.

    Args:
        backend: One of ``BACKENDS``.
        device_type: "cpu", "cuda", ...

    Returns:
        Yes or no, and the reason for a no ("" for a yes).

    Raises:
        ValueError: An unknown backend.
    """
    backend_named(backend)
    if backend == "flex" and device_type != "cuda":
        return False, f"FlexAttention has no backward pass on {device_type}: forward only"
    return True, ""


def pretrained_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model within its wrappers (PEFT, DDP).

    Args:
        model: The model, wrapped or not.

    Returns:
        The outermost ``PreTrainedModel``.

    Raises:
        ValueError: There is none.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"{type(model).__name__} holds no transformers model: packed attention needs one")


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The transformers model within its wrappers, where it has an output head.

    Args:
        model: The model, wrapped or not.

    Returns:
        The outermost ``PreTrainedModel``.

    Raises:
        ValueError: There is none, or it gives no logits of tokens.
    """
    language_model = pretrained_model(model)
    if language_model.get_output_embeddings() is None:
        raise ValueError(f"{type(language_model).__name__} has no output head: log-probs need one")
    return language_model


@contextmanager
def attention_implementation(model: nn.Module, backend: str) -> Iterator[LayerWindows]:
    """Let a model compute attention with a backend; on leaving, everything is as it was.

    A tower that sees images keeps its own: what its layers attend to is no packed row.

    Gradient checkpointing runs the forward pass again during the backward pass. Then this context has to span both:
    enter it around the step, not only around the forward pass.

    Args:
        model: The model, wrapped or not.
        backend: One of ``BACKENDS``.

    Yields:
        The windows of the model's layers.

    Raises:
        ValueError: An unknown backend, a model with layers that `windows.layer_windows` refuses, or one whose attention
            cannot be switched.
    """
    chosen = backend_named(backend)
    outermost = pretrained_model(model)
    modules = [module for module in all_modules(model) if isinstance(module, PreTrainedModel)]
    seeing = getattr(outermost.config, "vision_config", None)
    configs = list({id(module.config): module.config for module in modules}.values())
    switched = [config for config in configs if config is not seeing]
    windows = layer_windows(outermost)
    before = [config._attn_implementation for config in configs]
    with _registered(chosen):
        try:
            if {config._attn_implementation for config in switched} != {chosen.implementation}:
                kept = {} if seeing is None else {"vision_config": seeing._attn_implementation}
                others = dict.fromkeys(("", *outermost.config.sub_configs), chosen.implementation)
                outermost.set_attn_implementation({**others, **kept})
            for config in switched:
                if config._attn_implementation != chosen.implementation:
                    raise ValueError(
                        f"{type(config).__name__} keeps attention implementation {config._attn_implementation!r}: "
                        f"backend {backend!r} needs one whose attention can be switched to {chosen.implementation!r}"
                    )
            yield windows
        finally:
            # Parents come first: what is set on a config is set on its parts too.
            for config, implementation in zip(configs, before, strict=True):
                config._attn_implementation = implementation


@contextmanager
def _registered(backend: Backend) -> Iterator[None]:
    """Register the function of a backend with transformers, and take it out again."""
    if backend.function is None:
        yield
        return
    functions = AttentionInterface._global_mapping
    before = functions.get(backend.implementation)
    AttentionInterface.register(backend.implementation, backend.function)
    try:
        yield
    finally:
        if before is None:
            del functions[backend.implementation]
        else:
            functions[backend.implementation] = before

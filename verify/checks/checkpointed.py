"""A model in training mode under gradient checkpointing, and a count of what it runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(slots=True)
class Recomputed:
    """How often layers ran.

    Args:
        layers: Times that a layer was entered with gradients to come.
        runs: Times that one was run, the second time in the backward pass.
    """

    layers: int = 0
    runs: int = 0


@contextmanager
def training_mode(model: Any) -> Iterator[None]:
    """Training mode; on leaving, every module has the mode that it had.

    Args:
        model: The model.

    Yields:
        Nothing.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def checkpointed(model: Any, *, use_reentrant: bool) -> Iterator[Recomputed]:
    """Training mode with gradient checkpointing in every layer that can have it; on leaving, all is as it was.

    As transformers' ``gradient_checkpointing_enable``, whose name differs between versions. A reentrant checkpoint has
    no gradient unless what goes in requires one, which embeddings without adapters do not: there a hook makes them, as
    transformers' ``enable_input_require_grads`` does.

    Args:
        model: The PEFT-wrapped causal LM.
        use_reentrant: Which of torch's two kinds of checkpoint.

    Yields:
        The count, which grows while the context is open.
    """
    counted = Recomputed()

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        counted.layers += 1
        return checkpoint(partial(again, function), *arguments, use_reentrant=use_reentrant)

    def again(function: Callable[..., Any], *arguments: Any) -> Any:
        counted.runs += 1
        return function(*arguments)

    switched = {"gradient_checkpointing": True, "_gradient_checkpointing_func": run}
    modules = [module for module in model.modules() if isinstance(_switch(module), bool)]
    before = [{name: vars(module)[name] for name in switched if name in vars(module)} for module in modules]
    hook = model.get_input_embeddings().register_forward_hook(_requiring_grad) if use_reentrant else None
    try:
        for module in modules:
            vars(module).update(switched)
        with training_mode(model):
            yield counted
    finally:
        for module, own in zip(modules, before, strict=True):
            for name in switched:
                vars(module).pop(name, None)
            vars(module).update(own)
        if hook is not None:
            hook.remove()


def is_checkpointed(model: Any) -> bool:
    """Whether a pass with gradients would be run again in the backward pass.

    Args:
        model: The model.

    Returns:
        Training mode, with gradient checkpointing in some layer.
    """
    return bool(model.training) and any(_switch(module) is True for module in model.modules())


def _switch(module: nn.Module) -> Any:
    """Of the module or its class; PEFT's wrappers pass other attributes on to what they wrap."""
    return vars(module).get("gradient_checkpointing", getattr(type(module), "gradient_checkpointing", None))


def _requiring_grad(_module: nn.Module, _arguments: object, output: Tensor) -> None:
    output.requires_grad_(True)

"""The modules of a model in one walk.

``nn.Module.named_modules`` hands every module up through a generator for each level above it, and ``named_parameters``
walks anew. On a small model such walks cost as much as a forward pass, and a gate walks a model thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # not imported where nothing is walked
    from torch import nn

NamedModules: TypeAlias = "Sequence[tuple[str, nn.Module]]"


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Every module, each once, in no order that means anything: half the time of a walk with names."""
    found = {model: None}
    waiting = [model]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module with its name, each once, in the order of ``model.named_modules()``."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[nn.Module] = set()
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        found.append((name, module))
        if not module._modules:
            continue
        prefix = f"{name}." if name else ""
        children = [(prefix + part, child) for part, child in module._modules.items() if child is not None]
        waiting.extend(reversed(children))
    return found


def named_parameters(modules: NamedModules) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter with its name, each once, in the order of ``model.named_parameters()``."""
    seen: set[nn.Parameter] = set()
    for prefix, module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter not in seen:
                seen.add(parameter)
                yield (f"{prefix}.{name}" if prefix else name), parameter

"""The modules of a model in one walk.

``nn.Module.named_modules`` hands every module up through a generator for each level above it, and ``named_parameters``
walks anew. On a small model such walks cost as much as a forward pass, and a gate walks a model thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

NamedModules = Sequence[tuple[str, nn.Module]]


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

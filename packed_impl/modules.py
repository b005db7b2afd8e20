"""The modules of a model in one walk.

``nn.Module.modules`` hands every module up through a generator for each level above it. On a small model such a walk
takes a good part of a forward pass, and each pass needs several. Nothing is remembered from one walk to the next: a
module that was put in, taken out or exchanged in between is seen.
"""

from __future__ import annotations

from torch import nn


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Every module of a model, itself included.

    Args:
        model: The model.

    Returns:
        Each module once, also where several hold it; those of fewer levels down first.
    """
    found, seen = [model], {model}
    for module in found:  # grows by the children of each
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found

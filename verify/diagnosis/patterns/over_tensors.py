"""Patterns over gradients: which tensors differ, and how."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from verify.diagnosis.differences import GradientDifference
from verify.diagnosis.patterns.pattern import Pattern, found

Gradients = Mapping[str, GradientDifference]
_SAME_RATIO = 0.002
_PARALLEL = 0.9999
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def _differing(gradients: Gradients) -> Gradients:
    return {name: gradient for name, gradient in gradients.items() if gradient.beyond}


def missing(gradients: Gradients) -> str | None:
    """No gradient at all."""
    names = [name for name, gradient in gradients.items() if gradient.missing]
    return f"{len(names)} of {len(gradients)} trained tensors have no gradient, e.g. {names[0]}" if names else None


def not_finite(gradients: Gradients) -> str | None:
    """NaN or infinity."""
    names = [name for name, gradient in gradients.items() if not gradient.finite]
    return f"{len(names)} of {len(gradients)} gradients are not finite, e.g. {names[0]}" if names else None


def not_zero(gradients: Gradients) -> str | None:
    """Something where there has to be nothing."""
    names = [name for name, gradient in gradients.items() if gradient.not_zero]
    which = f"{len(names)} of {len(gradients)} gradients"
    return f"{which} are not 0 where no token takes part, e.g. {names[0]}" if names else None


def zero(gradients: Gradients) -> str | None:
    """Exactly zero."""
    names = [name for name, gradient in gradients.items() if gradient.norm_ratio == 0 and not gradient.missing]
    return f"{len(names)} of {len(gradients)} gradients are exactly 0, e.g. {names[0]}" if names else None


def one_ratio(gradients: Gradients) -> str | None:
    """All tensors parallel to the right ones, by one ratio."""
    ratios = [gradient.norm_ratio for gradient in gradients.values()]
    cosines = [gradient.cosine for gradient in gradients.values()]
    all_differ = bool(gradients) and len(_differing(gradients)) == len(gradients)
    if not all_differ or not all(abs(cosine) >= _PARALLEL for cosine in cosines):
        return None
    middle = sorted(ratios)[len(ratios) // 2]
    if any(abs(ratio - middle) > _SAME_RATIO * middle for ratio in ratios):
        return None
    turned = all(cosine < 0 for cosine in cosines)
    if not turned and any(cosine < 0 for cosine in cosines):
        return None
    return f"every gradient is {-middle if turned else middle:.6g} times the right one"


def one_tensor_only(gradients: Gradients) -> str | None:
    """One of all tensors."""
    differing = _differing(gradients)
    if len(differing) != 1 or len(gradients) < 2:
        return None
    ((name, gradient),) = differing.items()
    is_longer = gradient.cosine >= _PARALLEL and not gradient.not_zero
    parallel = f", {gradient.norm_ratio:.6g} times the right one" if is_longer else ""
    return f"of {len(gradients)} gradients only that of {name} differs{parallel}"


def one_parameter_kind(gradients: Gradients) -> str | None:
    """Only tensors of some projections, in whatever layer."""
    wrong, right = _kinds(gradients, lambda name: name.split(".")[-2])
    if not wrong or not right or len(wrong) > 3 or wrong & right:
        return None
    return f"only gradients of {' and '.join(sorted(wrong))} differ"


def one_factor_only(gradients: Gradients) -> str | None:
    """Only one of the two LoRA factors."""
    wrong, right = _kinds(gradients, lambda name: name.split(".")[-1])
    if len(wrong) != 1 or not right or wrong & right:
        return None
    return f"only gradients of {next(iter(wrong))} differ"


def some_layers_only(gradients: Gradients) -> str | None:
    """Only tensors of some layers."""
    wrong, right = _kinds(gradients, _layer_of)
    if not wrong or not right or wrong & right or not all(layer.isdigit() for layer in wrong):
        return None  # the head of a reward model is in no layer
    which = "the first layer" if wrong == {"0"} else f"layer {', '.join(sorted(wrong, key=int))}"
    return f"only gradients of {which} differ"


def all_tensors(gradients: Gradients) -> str | None:
    """Everything."""
    differing = _differing(gradients)
    if not differing or len(differing) < len(gradients):
        return None
    return f"all {len(gradients)} gradients differ"


def some_tensors(gradients: Gradients) -> str | None:
    """None of the above: a count at least."""
    differing = _differing(gradients)
    return f"{len(differing)} of {len(gradients)} gradients differ" if differing else None


TENSOR_PATTERNS: tuple[Callable[[Gradients], str | None], ...] = (
    missing,
    not_finite,
    not_zero,
    zero,
    one_ratio,
    one_tensor_only,
    one_parameter_kind,
    one_factor_only,
    some_layers_only,
    all_tensors,
)


def tensor_patterns(gradients: Gradients) -> tuple[Pattern, ...]:
    """Patterns of the differing gradients, most telling first.

    Args:
        gradients: By trained tensor.

    Returns:
        The patterns; the mere count where there is no other; nothing where nothing differs.
    """
    return found(TENSOR_PATTERNS, gradients) or found((some_tensors,), gradients)


def _kinds(gradients: Gradients, kind: Callable[[str], str]) -> tuple[set[str], set[str]]:
    """Kinds with a differing tensor, and kinds with an exact one."""
    wrong = {kind(name) for name, gradient in gradients.items() if gradient.beyond}
    return wrong, {kind(name) for name, gradient in gradients.items() if not gradient.beyond}


def _layer_of(name: str) -> str:
    match = _LAYER.search(name)
    return match[1] if match else name

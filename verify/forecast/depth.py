"""A step on many layers, put together from the windows of one on few: layers are alike, so their windows repeat.

Of a model of four layers the first differs (its input may need no gradient) and the last ends at the head; the second
and the third must agree in every number, or the layers are not alike and nothing can be put together. A model of 36
layers then has the windows of the second layer 34 times, in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from verify.forecast.step_trace import PHASES, Phase, Window

TRACED_LAYERS = 4
_REPEATED, _LIKE_IT = 1, 2


@dataclass(frozen=True, slots=True)
class Repeated:
    """A window that occurs several times in a row, each time for another layer.

    Args:
        window: The window.
        times: How often.
        first_layer: The layer of the first of them; None between layers.
        last_layer: That of the last.
    """

    window: Window
    times: int
    first_layer: int | None
    last_layer: int | None


class LayersDifferError(ValueError):
    """The layers of a model are not alike, so that its step cannot be put together from a few of them."""


def layers_agree(windows: Sequence[Window]) -> bool:
    """Whether the second and the third layer agree in every window."""
    of_layers = [[replace(w, layer=None) for w in windows if w.layer == layer] for layer in (_REPEATED, _LIKE_IT)]
    return bool(of_layers[0]) and of_layers[0] == of_layers[1]


def unrolled(windows: Sequence[Window], traced: int, depth: int) -> list[Repeated]:
    """The windows of a step on ``depth`` layers.

    Args:
        windows: Of a step on ``traced`` layers.
        traced: At least three, unless it is the depth.
        depth: Number of layers.

    Returns:
        The windows in the order of the step.

    Raises:
        LayersDifferError: The windows of the second and the third layer of four or more differ.
    """
    if depth == traced:
        return [Repeated(window, 1, window.layer, window.layer) for window in windows]
    if not 3 <= traced < depth:
        raise ValueError(f"{traced} layers were traced: at least 3, and no more than the {depth} that are wanted")
    if traced > _LIKE_IT + 1 and not layers_agree(windows):
        raise LayersDifferError("the second and the third layer do not take the same windows: trace all layers")
    return [_repeated(window, depth - traced) for window in windows]


def _repeated(window: Window, more: int) -> Repeated:
    layer = window.layer
    if layer is None or layer < _REPEATED:
        return Repeated(window, 1, layer, layer)
    if layer > _REPEATED:
        return Repeated(window, 1, layer + more, layer + more)
    ends = (layer, layer + more)
    return Repeated(window, more + 1, *(reversed(ends) if window.phase == "backward" else ends))


def joined(steps: Sequence[Sequence[Repeated]]) -> list[Repeated]:
    """One step that makes several forward calls, from steps of one call each.

    All reference passes, all policy passes, then the backward passes, the last call first, as autograd runs them. The
    first of these makes the gradients of parameters; the others add to them.

    Args:
        steps: Of each call, in the order of the calls.

    Returns:
        The windows in the order of the step.
    """
    by_phase = [_by_phase(step) for step in steps]
    return list(_in_order(by_phase))


def _by_phase(step: Sequence[Repeated]) -> Mapping[Phase, list[Repeated]]:
    return {phase: [each for each in step if each.window.phase == phase] for phase in PHASES}


def _in_order(by_phase: Sequence[Mapping[Phase, list[Repeated]]]) -> Iterator[Repeated]:
    for phase in ("reference", "policy"):
        for step in by_phase:
            yield from step[phase]
    for index, step in enumerate(reversed(by_phase)):
        for each in step["backward"]:
            yield each if index == 0 else replace(each, window=replace(each.window, gradient_growth=0))

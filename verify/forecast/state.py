"""What lies in memory from step to step, on each rank, and what sharding gathers for as long as a layer needs it.

On one rank parameters, gradients and optimizer state are whole. On several, each keeps its share of them (FSDP2,
``fully_shard`` on each decoder layer and on the rest, which is the root), and the model of what is gathered is that of
torch 2.13, in the order in which memory is asked for:

- the root is gathered when the first pass begins and stays until the backward pass is over; that takes it twice, as a
  buffer and as parameters, until the first layer is gathered;
- a layer in a forward pass: its parameters, and the buffer that they came in, which is freed when those of the next
  layer have come;
- a layer in the backward pass: its parameters, and the buffer of the layer that comes next; the buffer from which the
  gradients of the layer before are summed over the ranks;
- gradients of the root are whole until the backward pass is over, and then take a buffer too.

A frozen copy of the model as reference policy is sharded alike. Its root stays gathered: no backward pass follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from verify.forecast.step_trace import StepTrace, Window
from verify.subjects.path_calls import decoder_layers_of


@dataclass(frozen=True, slots=True)
class Tensors:
    """Shapes and dtypes of some parameters, each with the number of its like.

    Args:
        shapes: Of each parameter.
        dtypes: Of each parameter.
        trained: Whether each is trained.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    trained: tuple[bool, ...]

    @staticmethod
    def of(parameters: Iterable[nn.Parameter]) -> Tensors:
        """Those of some parameters."""
        found = list(parameters)
        return Tensors(
            tuple(tuple(parameter.shape) for parameter in found),
            tuple(parameter.dtype for parameter in found),
            tuple(parameter.requires_grad for parameter in found),
        )

    def shards(self, num_ranks: int) -> Tensors:
        """What each rank keeps of them: a share of the first dimension, rounded up."""
        shapes = tuple((-(-first // num_ranks), *rest) for first, *rest in self.shapes)
        return Tensors(shapes, self.dtypes, self.trained)

    def num_bytes(self, *, trained_only: bool = False) -> int:
        """Bytes of all, or of those that are trained."""
        sizes = zip(self.shapes, self.dtypes, self.trained, strict=True)
        return sum(
            math.prod(shape) * dtype.itemsize for shape, dtype, is_trained in sizes if is_trained or not trained_only
        )

    def num_elements(self, *, trained_only: bool = False) -> int:
        """Elements of all, or of those that are trained."""
        sizes = zip(self.shapes, self.trained, strict=True)
        return sum(math.prod(shape) for shape, is_trained in sizes if is_trained or not trained_only)


@dataclass(frozen=True, slots=True)
class ModelState:
    """The parameters of a model.

    Args:
        root: Those outside of the layers.
        layers: Those of each layer.
    """

    root: Tensors
    layers: tuple[Tensors, ...]

    @property
    def layer(self) -> Tensors:
        """Those of the largest layer: where layers differ, what is gathered is bounded by it."""
        return max(self.layers, key=Tensors.num_bytes)

    @staticmethod
    def of(model: nn.Module, depth: int) -> ModelState:
        """That of a model as it is or, if it is less deep, of one whose layers are all like its second, or only one."""
        layers = decoder_layers_of(model)
        of_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
        root = Tensors.of(parameter for parameter in model.parameters() if id(parameter) not in of_layers)
        if len(layers) == depth:
            return ModelState(root, tuple(Tensors.of(layer.parameters()) for layer in layers))
        return ModelState(root, (Tensors.of(layers[min(1, len(layers) - 1)].parameters()),) * depth)

    def num_bytes(self, num_ranks: int, *, trained_only: bool = False) -> int:
        """Bytes that a rank keeps of all parameters, or of those that are trained."""
        return sum(part.shards(num_ranks).num_bytes(trained_only=trained_only) for part in (self.root, *self.layers))

    def num_elements(self, *, trained_only: bool = False) -> int:
        """Elements of all parameters, or of those that are trained."""
        return sum(part.num_elements(trained_only=trained_only) for part in (self.root, *self.layers))


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What the optimizer holds and needs.

    Args:
        state_bytes: Held from step to step.
        window: Its step.
    """

    state_bytes: int
    window: Window


def adamw_step(state: ModelState, num_ranks: int, fake: FakeTensorMode, *, by_lists: bool) -> OptimizerStep:
    """AdamW on the trained parameters of a rank, its second step.

    Args:
        state: The parameters.
        num_ranks: Among how many ranks they are shared.
        fake: What tensors belong to.
        by_lists: All parameters at once, as torch does on a GPU; else one after the other, as it does on a CPU.

    Returns:
        What it holds, and what its step takes.
    """
    parts = [part.shards(num_ranks) for part in (state.root, *state.layers)]
    with fake:
        parameters = [
            nn.Parameter(torch.empty(shape, dtype=dtype))
            for part in parts
            for shape, dtype, trained in zip(part.shapes, part.dtypes, part.trained, strict=True)
            if trained
        ]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=by_lists)
    optimizer.step()
    held = [value for of_one in optimizer.state.values() for value in of_one.values() if torch.is_tensor(value)]
    trace = StepTrace(nn.Module())
    trace.open("optimizer")
    with trace:
        optimizer.step()
    trace.close()
    (window,) = trace.windows
    return OptimizerStep(sum(value.untyped_storage().nbytes() for value in held), window)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Bytes gathered on a rank beside its own share, by window.

    Args:
        root: Of the root's whole parameters.
        layer: Of a layer's whole parameters.
        root_gradients: Of the root's whole gradients.
        layer_gradients: Of a layer's whole gradients.
        other_root: Of the root of a frozen copy of the model; 0 without one.
    """

    root: int
    layer: int
    root_gradients: int
    layer_gradients: int
    other_root: int = 0

    @staticmethod
    def of(policy: ModelState, reference: ModelState | None, num_ranks: int) -> InFlight:
        """That of a model and, where there is one, its frozen copy."""
        if num_ranks == 1:
            return NOTHING_IN_FLIGHT

        def whole(part: Tensors, *, trained_only: bool = False) -> int:
            return num_ranks * part.shards(num_ranks).num_bytes(trained_only=trained_only)

        return InFlight(
            whole(policy.root),
            whole(policy.layer),
            whole(policy.root, trained_only=True),
            whole(policy.layer, trained_only=True),
            0 if reference is None else whole(reference.root),
        )

    def during(self, windows: Sequence[Window], index: int) -> int:
        """What is gathered in a window."""
        window = windows[index]
        match window.phase:
            case "optimizer":
                return self.other_root
            case "reference":
                root = self.other_root or self.root
                return root + (root if index == 0 else self.layer) + (0 if window.layer is None else self.layer)
            case "policy":
                return self.other_root + self.root + self.layer * (1 if window.layer is None else 2)
            case "backward":
                return self.other_root + self.root + self._in_backward(windows, index)

    def _in_backward(self, windows: Sequence[Window], index: int) -> int:
        """A layer and the next one, and the sum of gradients that is on its way; the root's comes last."""
        follows_a_layer = any(w.phase == "backward" and w.layer is not None for w in windows[:index])
        if windows[index].layer is None:
            return self.root_gradients if follows_a_layer else self.layer
        return 2 * self.layer + (self.layer_gradients if follows_a_layer else 0)


NOTHING_IN_FLIGHT = InFlight(0, 0, 0, 0)

"""A model on paper: its config, built from tensors without memory at the few depths that are needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reports.cost_record import PathName
from verify.forecast.depth import TRACED_LAYERS, LayersDifferError, Repeated, joined, unrolled
from verify.forecast.fake_model import build_fake, layers_are_alike
from verify.forecast.request import Training
from verify.forecast.state import ModelState, OptimizerStep, adamw_step
from verify.forecast.step_trace import Window
from verify.forecast.traced_step import FakeStep
from verify.groups import PreferenceGroup
from verify.models.checkpoint import read_config, read_config_file
from verify.models.config_fields import check_fields
from verify.models.configs import NAMED_CONFIGS, NamedConfig, named_config
from verify.models.random_weights import hf_config
from verify.models.shape_file import is_shape_file, is_transformers_config, read_shape
from verify.packing_plan.costs import GroupLengths
from verify.subjects.path_calls import path_calls

_FEWEST_LAYERS = 3
_TOKEN = 1


def read_any_config(name: str) -> Any:
    """The transformers config that a name stands for; no weights are looked at.

    Args:
        name: A published name, a JSON file of a shape or of a config of transformers, or a folder with a config.json.

    Raises:
        ValueError: An unknown name, a file that is none of these, or a field that no decoder can have.
    """
    path = Path(name)
    if name.lower() not in NAMED_CONFIGS and (path.is_dir() or is_transformers_config(path)):
        config = read_config(path) if path.is_dir() else read_config_file(path)
        if config.get_text_config() is not config:
            raise ValueError(f"model {name}: steps are forecast of models of text alone, not of {config.model_type}")
        check_fields(config, name)
        return config
    return _hf(read_shape(path).config if is_shape_file(name) else named_config(name))


def _hf(config: NamedConfig) -> Any:
    return hf_config(config, config.num_hidden_layers)


class PaperModel:
    """A model whose steps are followed on shapes alone.

    Args:
        config: A transformers config of a causal LM over text.
        training: How it is trained.
        dtype: Of its weights.
        device_type: "cpu" or "cuda": whose attention kernels run.

    Raises:
        ValueError: A config that is not one of a decoder.
    """

    def __init__(self, config: Any, training: Training, *, dtype: torch.dtype, device_type: str) -> None:
        self.config, self.training, self.dtype, self.device_type = config, training, dtype, device_type
        self.depth = _whole_number(config, "num_hidden_layers")
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._steps: dict[int, FakeStep] = {}
        self._optimizers: dict[int, OptimizerStep] = {}
        self._looked_at: set[PathName] = set()

    @property
    def num_positions(self) -> int:
        """The longest sequence that the model is made for.

        Raises:
            ValueError: The config does not say, so that it is none of a decoder with attention.
        """
        return _whole_number(self.config, "max_position_embeddings")

    @cached_property
    def _layers_differ(self) -> bool:
        return self.depth > _FEWEST_LAYERS and not layers_are_alike(self.config)

    @cached_property
    def state(self) -> ModelState:
        """The parameters of the policy."""
        return ModelState.of(self._step(self._depth_of(TRACED_LAYERS)).model, self.depth)

    @cached_property
    def reference_state(self) -> ModelState | None:
        """Those of the frozen copy; None without one."""
        reference = self._step(self._depth_of(TRACED_LAYERS)).reference
        return None if reference is None else ModelState.of(reference, self.depth)

    def optimizer(self, num_ranks: int) -> OptimizerStep:
        """AdamW on the trained parameters of a rank."""
        if num_ranks not in self._optimizers:
            by_lists = self.device_type == "cuda"
            self._optimizers[num_ranks] = adamw_step(self.state, num_ranks, self.fake, by_lists=by_lists)
        return self._optimizers[num_ranks]

    def num_elements(self) -> tuple[int, int]:
        """Parameters of the policy, adapters included, and those of them that are trained."""
        return self.state.num_elements(), self.state.num_elements(trained_only=True)

    def step(self, path: PathName, lengths: Sequence[GroupLengths], *, for_peak: bool = False) -> list[Repeated]:
        """Follow a step.

        Args:
            path: How log-probs are computed.
            lengths: The batch.
            for_peak: No more than decides about the peak of memory: without the reference pass, which keeps less than
                the policy pass, and, once layers of this path were seen to be alike, without the layer that shows it.

        Returns:
            Its windows at full depth, the optimizer's excepted.
        """
        traced = self._depth_of(_FEWEST_LAYERS if for_peak and path in self._looked_at else TRACED_LAYERS)
        if path != "unpadded":
            return self._unrolled(path, lengths, traced, with_reference=not for_peak)
        found: dict[GroupLengths, list[Repeated]] = {}
        # Each sequence is a call of its own, so that what is known of one is known of all of its length.
        sequences = [GroupLengths(each.prompt, (response,)) for each in lengths for response in each.responses]
        for sequence in sequences:
            if sequence not in found:
                found[sequence] = self._unrolled(path, [sequence], traced, with_reference=not for_peak)
        return joined([found[sequence] for sequence in sequences])

    def _unrolled(
        self, path: PathName, lengths: Sequence[GroupLengths], traced: int, *, with_reference: bool
    ) -> list[Repeated]:
        if not self._layers_differ:
            try:
                step = unrolled(self.windows(path, lengths, traced, with_reference=with_reference), traced, self.depth)
                self._looked_at.add(path)
                return step
            except LayersDifferError:
                self._layers_differ = True
        return unrolled(self.windows(path, lengths, self.depth, with_reference=with_reference), self.depth, self.depth)

    def windows(
        self, path: PathName, lengths: Sequence[GroupLengths], num_layers: int, *, with_reference: bool = True
    ) -> list[Window]:
        """Follow a step that makes one forward call, on so many layers.

        Args:
            path: How log-probs are computed.
            lengths: The batch.
            num_layers: Depth.
            with_reference: Follow the reference pass too.
        """
        (call,) = path_calls(path, [_group(each) for each in lengths])
        return self._step(num_layers).windows(path, call, with_reference=with_reference)

    def _depth_of(self, wanted: int) -> int:
        return self.depth if self._layers_differ else min(wanted, self.depth)

    def _step(self, num_layers: int) -> FakeStep:
        if num_layers not in self._steps:
            self._steps[num_layers] = FakeStep(
                model=self._build(self.training, num_layers),
                reference=self._frozen_copy(num_layers) if self.training.train == "all" else None,
                fake=self.fake,
                device_type=self.device_type,
                logit_chunk=self.training.logit_chunk,
            )
        return self._steps[num_layers]

    def _frozen_copy(self, num_layers: int) -> Any:
        return self._build(Training(train="all"), num_layers).requires_grad_(False).eval()

    def _build(self, training: Training, num_layers: int) -> Any:
        return build_fake(
            self.config,
            training,
            num_layers=num_layers,
            dtype=self.dtype,
            fake=self.fake,
            device_type=self.device_type,
        )


def _whole_number(config: Any, name: str) -> int:
    value = getattr(config.get_text_config(), name, None)
    if not isinstance(value, int) or value < 1:
        raise ValueError(
            f"model type {config.model_type}: {name} of its config is {value}: a decoder with attention is needed"
        )
    return value


def _group(lengths: GroupLengths) -> PreferenceGroup:
    positive, *negatives = ((_TOKEN,) * length for length in lengths.responses)
    return PreferenceGroup((_TOKEN,) * lengths.prompt, (positive,), tuple(negatives))

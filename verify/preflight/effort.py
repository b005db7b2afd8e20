"""How long parity will take, told beforehand from the sizes of the model and a few measured products and gathers.

Unit of work is one product of all weights with one token. A step of adapters takes three: the passes of policy and
reference, and the backward pass, in which frozen weights are multiplied once more and get no gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from verify.groups import PreferenceGroup
from verify.models.configs import NamedConfig
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights
from verify.preflight.machine import synchronise
from verify.preflight.parity_cases import ParityCase
from verify.sharded.dealing import largest_load

_PRODUCTS_OF_STEP = 3
_GATHERS_OF_CALL = 3
"""Of a sharded model's parameters, in each of the three."""
_MORE_THAN_PRODUCTS = 1.5
"""Attention, norms, adapters, the softmax over the vocabulary, and comparing (measured)."""
_BUILT = 30e-9
"""Seconds to draw a weight, round it, and hash it (measured)."""
_TOKENS, _TIMES = 64, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast the slowest rank is, all ranks being busy.

    Args:
        wide_s: Seconds of a product of one weight with one token in float64, as the oracle makes it.
        own_s: Likewise in the dtype of passes.
        gather_s: Seconds to gather one byte of sharded parameters.
    """

    wide_s: float
    own_s: float
    gather_s: float


def measure_rates(config: NamedConfig, device: str, dtype: torch.dtype, gather_s: float) -> Rates:
    """Measure a product like those of the model's MLP.

    Args:
        config: Sizes of the model.
        device: The torch device.
        dtype: Of passes.
        gather_s: As in ``Rates``.
    """
    weight = torch.ones(config.intermediate_size, config.hidden_size, dtype=dtype, device=device)
    x = torch.ones(_TOKENS, config.hidden_size, dtype=dtype, device=device)
    x64 = x.to(torch.float64)
    num_products = weight.numel() * _TOKENS
    return Rates(
        wide_s=_seconds(lambda: x64 @ weight.to(torch.float64).T, device) / num_products,
        own_s=_seconds(lambda: x @ weight.T, device) / num_products,
        gather_s=gather_s,
    )


def slowest(of_ranks: Sequence[Rates]) -> Rates:
    """The worst of every rate."""
    return Rates(
        wide_s=max(rates.wide_s for rates in of_ranks),
        own_s=max(rates.own_s for rates in of_ranks),
        gather_s=max(rates.gather_s for rates in of_ranks),
    )


def _seconds(work: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(1 + _TIMES):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return max(median(times[1:]), 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Expected seconds of parity.

    Args:
        one_process_s: Oracle, unpacked path and subjects in one process, by the rank that has most to do.
        step_s: The longest sharded step at the depth of the oracle.
        steps_s: All of them.
        full_step_s: The longest step at full depth; 0 where the oracle reaches it.
        full_steps_s: All of them.
        building_s: Of models.
    """

    one_process_s: float
    step_s: float
    steps_s: float
    full_step_s: float
    full_steps_s: float
    building_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.one_process_s + self.steps_s + self.full_steps_s + self.building_s

    @property
    def longest_s(self) -> float:
        """What comes between two signs of progress, at most."""
        return max(self.one_process_s, self.step_s, self.full_step_s) + self.building_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is run.

    Args:
        config: Sizes of the model.
        lora: The adapters.
        cases: The cases.
        num_layers: Depth of the model.
        num_subjects: Packed implementations.
        num_unpacked: Forms of the unpacked path.
        itemsize: Bytes of a weight.
        world_size: Number of ranks.
    """

    config: NamedConfig
    lora: LoraSpec
    cases: Sequence[ParityCase]
    num_layers: int
    num_subjects: int
    num_unpacked: int
    itemsize: int
    world_size: int

    def expected(self, depth: int, rates: Rates) -> Effort:
        """What it takes where the oracle runs on ``depth`` layers.

        Args:
            depth: Number of layers.
            rates: How fast ranks are.
        """
        weights, all_weights = (num_weights(self.config, layers, self.lora) for layers in (depth, self.num_layers))
        own, wide = (_PRODUCTS_OF_STEP * _MORE_THAN_PRODUCTS * weights * rate for rate in (rates.own_s, rates.wide_s))
        pieces = [
            seconds
            for each in self.cases
            for seconds in (
                wide * each.case.pairwise_slots,
                *[own * each.case.pairwise_slots] * self.num_unpacked,
                *[own * sum(map(packed_tokens, each.case.groups))] * self.num_subjects,
            )
        ]
        steps = [self._step_s(each, weights, rates) for each in self.cases]
        is_cut = depth < self.num_layers
        packed_s = sum(self._step_s(each, all_weights, rates) for each in self.cases)
        unpacked_s = sum(self._step_s(each, all_weights, rates, unpacked=True) for each in self.cases)
        return Effort(
            one_process_s=largest_load(pieces, self.world_size),
            step_s=max(steps),
            steps_s=2 * self.num_subjects * sum(steps) + 2 * steps[0],
            full_step_s=max(packed_s, unpacked_s) if is_cut else 0.0,
            full_steps_s=self.num_subjects * packed_s + self.num_unpacked * unpacked_s if is_cut else 0.0,
            building_s=_BUILT * (weights + (all_weights if is_cut else 0)),
        )

    def _step_s(self, each: ParityCase, weights: int, rates: Rates, *, unpacked: bool = False) -> float:
        """A sharded step: each group is a micro-batch, and an unpacked sequence a call."""
        groups = each.case.groups
        of_ranks = [[groups[place] for place in own] for own in each.places_of_ranks(self.world_size)]
        tokens = max(sum(map(unpacked_tokens if unpacked else packed_tokens, own)) for own in of_ranks)
        calls = max(sum(len(group.completions) if unpacked else 1 for group in own) for own in of_ranks)
        shares = (self.world_size - 1) / self.world_size
        gathered = _GATHERS_OF_CALL * calls * weights * self.itemsize * shares
        computed = _PRODUCTS_OF_STEP * _MORE_THAN_PRODUCTS * weights * tokens * rates.own_s
        return computed + gathered * rates.gather_s


def unpacked_tokens(group: PreferenceGroup) -> int:
    """Each response behind a prompt of its own."""
    return sum(len(group.prompt_ids) + len(ids) for ids in group.completions)


def packed_tokens(group: PreferenceGroup) -> int:
    """All responses behind one prompt."""
    return len(group.prompt_ids) + sum(map(len, group.completions))

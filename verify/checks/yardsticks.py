"""How far rounding alone moves things on the cases of the checks, measured on the unpacked path."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from verify.budget import sft_loss_budget
from verify.cases import Case
from verify.checks.absolute_model import absolute_model
from verify.checks.cases import CaseName, CheckCases, check_cases
from verify.checks.gradient_yardsticks import held_against_itself, logps_budget, measure_gradients, noise_between
from verify.comparison import compare_logps
from verify.model_state import Baseline
from verify.models.adapters import has_adapters
from verify.objective import Preference, Sft
from verify.observation import Observation
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.supervised_values import supervised_logps
from verify.tolerance import Policy
from verify.trained_gradients import to_float64

_T = TypeVar("_T")

_FORMS = (WITNESS, *(VARIATIONS[name] for name in ("eager", "padded-right", "padded-left")))
"""Forms that leave positions as they are: under absolute positions nothing else is harmless."""
_ORDERED: tuple[CaseName, ...] = ("distinct-tokens", "distinct-turns")
_EXAMPLES: tuple[CaseName, ...] = ("distinct-examples", "examples-weighed-alike")
_ABSOLUTE: tuple[CaseName, ...] = ("distinct-tokens", "distinct-turns", "distinct-examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossYardstick:
    """Budgets of a subject's own loss on one case.

    Args:
        loss: Of the loss, in nats.
        gradients: Of each LoRA tensor, as relative L2; empty under SFT, where they are not compared.
    """

    loss: float
    gradients: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteYardstick:
    """What the unpacked path computes on a model with absolute positions.

    Args:
        model: The model, the same for all cases.
        case: The case, drawn for its vocabulary.
        expected: Log-probs of the unpacked path, one float64 vector per completion.
        budget: Largest difference in nats.
    """

    model: Any
    case: Case
    expected: tuple[Tensor, ...]
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """What was measured, by the name of the case; nothing where no check of the run asks for it.

    Args:
        token_budgets: Largest difference of a log-prob, in nats.
        losses: Budgets of loss and gradients.
        absolute: On the model with absolute positions.
    """

    token_budgets: Mapping[str, float]
    losses: Mapping[str, LossYardstick]
    absolute: Mapping[str, AbsoluteYardstick]


def measured(yardstick: _T | None) -> _T:
    """A yardstick that a check needs.

    Raises:
        ValueError: It was not measured.
    """
    if yardstick is None:
        raise ValueError("a check asks for a yardstick that was not measured")
    return yardstick


def measure_yardsticks(
    model: Any,
    baseline: Baseline,
    cases: CheckCases,
    checks: Collection[str],
    *,
    dtype: str,
    objective: Preference,
    policy: Policy,
    seed: int,
) -> Yardsticks:
    """Run the unpacked path in several harmless forms.

    Args:
        model: The model of the run.
        baseline: What it is.
        cases: The cases of the checks.
        checks: Names of the checks that will be run.
        dtype: Name of the dtype.
        objective: beta and label smoothing.
        policy: Factors and floors.
        seed: Seed of the passes and of the absolute model.

    Returns:
        What those checks need.
    """
    tokens, losses, absolute = dict[str, float](), dict[str, LossYardstick](), dict[str, AbsoluteYardstick]()
    if {"group-isolation", "permutation", "repeat"} & set(checks):
        for case in _present(cases, _ORDERED):
            tokens[case.name] = _token_budget(case, _logps_of_forms(model, case), dtype, policy)
    if "normalisation" in checks:
        for pairs in _present(cases, ("uneven-groups",)):
            of_pairs = measure_gradients(
                model,
                baseline,
                pairs,
                dtype=dtype,
                objective=objective,
                policy=policy,
                seed=seed,
                forms=held_against_itself(dtype),
            )
            losses[pairs.name] = LossYardstick(loss=of_pairs.loss_budget, gradients=of_pairs.gradient_budgets)
        losses |= _sft_yardsticks(model, _present(cases, _EXAMPLES), dtype, policy)
    if {"absolute-positions", "positions-as-unpacked"} & set(checks):
        absolute = _absolute_yardsticks(model, dtype, policy, seed)
    return Yardsticks(token_budgets=tokens, losses=losses, absolute=absolute)


def _present(cases: CheckCases, names: Sequence[CaseName]) -> list[Case]:
    """Those that the vocabulary allows and that are run on this model."""
    return [cases.by_name[name] for name in names if name in cases.by_name]


def _logps_of_forms(model: Any, case: Case) -> dict[str, tuple[Tensor, ...]]:
    with torch.no_grad():
        return {
            form.name: supervised_logps(tuple(map(to_float64, form.per_token_logps(model, case.groups))), case.groups)
            for form in _FORMS
        }


def _token_budget(case: Case, forms: Mapping[str, tuple[Tensor, ...]], dtype: str, policy: Policy) -> float:
    noise = noise_between(case, forms, lambda one, other: (compare_logps(one, other, case.groups),))
    return logps_budget("max", "per_token_logps", torch.cat(forms[WITNESS.name]), case, noise, dtype, policy)


def _is_tied(model: Any) -> bool:
    """Whether the head is the embedding."""
    head = getattr(model.get_output_embeddings(), "weight", None)
    return head is not None and head is getattr(model.get_input_embeddings(), "weight", None)


def _absolute_yardsticks(of_run: Any, dtype: str, policy: Policy, seed: int) -> dict[str, AbsoluteYardstick]:
    yardsticks: dict[str, AbsoluteYardstick] = {}
    model = absolute_model(dtype, seed, with_adapters=has_adapters(of_run), tied=_is_tied(of_run))
    model = model.to(next(of_run.parameters()).device)
    for case in _present(check_cases(int(model.config.vocab_size), seed), _ABSOLUTE):
        forms = _logps_of_forms(model, case)
        budget = _token_budget(case, forms, dtype, policy)
        expected = forms[WITNESS.name]
        yardsticks[case.name] = AbsoluteYardstick(model=model, case=case, expected=expected, budget=budget)
    return yardsticks


def _sft_yardsticks(model: Any, cases: Sequence[Case], dtype: str, policy: Policy) -> dict[str, LossYardstick]:
    """From the log-probs alone, of which an SFT loss is a weighted sum; of cases that hold the same examples."""
    yardsticks: dict[str, LossYardstick] = {}
    if not cases:
        return yardsticks
    examples, forms = cases[0], _logps_of_forms(model, cases[0])
    noise = noise_between(examples, forms, lambda one, other: (compare_logps(one, other, examples.groups),))
    values = torch.cat(forms[WITNESS.name])
    rms = logps_budget("rms", "per_token_logps", values, examples, noise, dtype, policy)
    none = torch.empty(0, dtype=torch.float64)
    expected = Observation(
        per_token_logps=forms[WITNESS.name],
        ref_per_token_logps=(),
        rewards=none,
        margins=none,
        loss=-values.mean(),
        gradients=None,
    )
    for case in cases:
        sft = Sft(mean="token" if case.objective_name == "sft-token-mean" else "example")
        yardsticks[case.name] = LossYardstick(loss=sft_loss_budget(sft, expected, logps_rms=rms), gradients={})
    return yardsticks

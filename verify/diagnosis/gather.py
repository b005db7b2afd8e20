"""Collecting the evidence about one subject on one case; what costs more is looked at only where it can tell."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verify.diagnosis.alignment import foreign_gradient
from verify.diagnosis.coefficients import Weights, explain_gradient
from verify.diagnosis.differences import Differences
from verify.diagnosis.flow import ForwardCall
from verify.diagnosis.layers import PlaceDifference, backward_places, first_differing
from verify.diagnosis.sight import Sight
from verify.diagnosis.sources import Sources, find_sources
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.study import CaseStudy, with_zeros
from verify.diagnosis.tokens import path_numbers, shared_tokens
from verify.objective import Sft
from verify.observation import Observation
from verify.subject import Subject, SubjectError


def gather(
    study: CaseStudy, subject: Subject, actual: Observation, flow: Sequence[ForwardCall], differences: Differences
) -> tuple[Evidence, tuple[str, ...]]:
    """Everything that tells stages apart.

    Args:
        study: The case.
        subject: The subject.
        actual: Its observation.
        flow: What passed through the model meanwhile.
        differences: From the unpacked path; some value differs.

    Returns:
        The evidence, and what could not be looked at.

    Raises:
        WeightsChangedError: The subject changed the model when it was run once more.
    """
    notes: list[str] = []
    completed = with_zeros(actual, study.witness)
    hidden = _hidden(study, flow, notes)
    wrong = differences.beyond
    states_differ, policy_differs = first_differing(hidden) is not None, "per_token_logps" in wrong
    is_sft = isinstance(study.context.objective, Sft)
    wrong_loss = "loss" in wrong and not policy_differs
    backward, stray = _backward(study, flow) if wrong == {"gradients"} else ((), 0.0)
    evidence = Evidence(
        differences=differences,
        actual=completed,
        expected=study.witness,
        objective=study.context.objective,
        group_losses=study.group_losses if wrong_loss and not is_sft else torch.zeros(0, dtype=torch.float64),
        examples=study.examples if wrong_loss and is_sft and not study.case.has_images else (),
        hidden=hidden,
        backward=backward,
        stray_gradient=stray,
        sight=_sight(study, subject, notes) if policy_differs and (states_differ or not hidden) else None,
        sources=_sources(study, completed, differences) if policy_differs and hidden and not states_differ else None,
        weights=_weights(study, completed, differences),
        tokens=study.tokens,
    )
    return evidence, tuple(notes)


def _hidden(study: CaseStudy, flow: Sequence[ForwardCall], notes: list[str]) -> tuple[PlaceDifference, ...]:
    decoder = study.bench.decoder
    if decoder is None:
        notes.append("hidden states were not read: the decoder's modules do not have transformers' names")
        return ()
    if not flow:
        notes.append("hidden states were not read: no token ids passed the embedding in the policy pass")
        return ()
    if len(study.tokens) < len({number for path in path_numbers(study.case.groups) for number in path}):
        notes.append(f"{len(study.tokens)} tokens were followed, those whose id occurs at one place of the case")
    return study.yardstick.states(flow, decoder.places)


def _backward(study: CaseStudy, flow: Sequence[ForwardCall]) -> tuple[tuple[PlaceDifference, ...], float]:
    decoder = study.bench.decoder
    if decoder is None:
        return (), 0.0
    found = study.yardstick.gradients(flow, backward_places(decoder.places))
    return found, foreign_gradient(flow, study.case.groups)


def _sight(study: CaseStudy, subject: Subject, notes: list[str]) -> Sight | None:
    try:
        sight = study.look_through(subject)
    except SubjectError as error:
        notes.append(f"what attends to what was not measured: {error}")
        return None
    if sight is not None and not sight.num_queries:
        notes.append("what attends to what was not measured: attention weights could not be read here")
    return sight


def _sources(study: CaseStudy, actual: Observation, differences: Differences) -> Sources:
    return find_sources(
        actual.per_token_logps, differences.logps_beyond, study.logits(), study.tokens, study.case.groups,
        study.logp_tolerance,
    )  # fmt: skip


def _weights(study: CaseStudy, actual: Observation, differences: Differences) -> Weights | None:
    """By response; by token, which takes a pass for each, where that explains nothing and tokens may weigh wrongly."""
    wrong = differences.beyond
    if actual.gradients is None or "gradients" not in wrong or wrong & {"per_token_logps", "ref_per_token_logps"}:
        return None
    by_response = explain_gradient(actual.gradients, study.gradient_basis(per_token=False))
    if by_response is None or by_response.explained or not study.fits_token_basis:
        return by_response
    if wrong == {"gradients"} and not shared_tokens(study.case.groups):
        return by_response
    return explain_gradient(actual.gradients, study.gradient_basis(per_token=True))

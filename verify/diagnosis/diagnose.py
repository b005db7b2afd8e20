"""Diagnosis of one subject: the case that shows most, the evidence on it, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from verify.cases import Case, CaseKind, over
from verify.checks.check import Finding
from verify.comparison import StructureError
from verify.diagnosis.cases import diagnostic_cases, kinds_to_try, richest_first
from verify.diagnosis.differences import Differences
from verify.diagnosis.gather import gather
from verify.diagnosis.layers import first_differing
from verify.diagnosis.patterns.over_quantities import quantity_patterns, reward_model_patterns
from verify.diagnosis.patterns.over_tensors import tensor_patterns
from verify.diagnosis.patterns.over_tokens import Branches, token_patterns
from verify.diagnosis.patterns.pattern import Pattern
from verify.diagnosis.signature import Signature, nearest, signature_of
from verify.diagnosis.stages.attribution import suspects_from_evidence
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.exact_checks import exact_check_suspects
from verify.diagnosis.stages.rewards import reward_suspects
from verify.diagnosis.stages.suspect import Suspect, rank
from verify.diagnosis.study import CaseStudy, Workbench
from verify.diagnosis.tokens import describe
from verify.diagnosis.triangulation import independent_logps, odd_one_out
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Mutation
from verify.model_state import WeightsChangedError
from verify.models.vision import num_text_tokens
from verify.objective import ObjectiveName, RewardModel, Sft
from verify.observation import Observation
from verify.subject import Subject, SubjectError, kinds_taken, support_for

SAME_VALUES = "no value differs"
"""How a note begins that says on which case a subject did not fail again."""
_NEAREST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NearFault:
    """A planted fault and how far its signature is."""

    fault: Mutation
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found about one subject.

    Args:
        case: The case it was found on; "" where the subject failed on none again.
        patterns: Which values differ, most telling first.
        suspects: Stages, nearest first.
        nearest: Planted faults, nearest first.
        first_layer: Where hidden states differ first, in words.
        odd_one_out: Who disagrees with whom, in words.
        notes: What was left out, and why.
    """

    case: str = ""
    patterns: tuple[Pattern, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    nearest: tuple[NearFault, ...] = ()
    first_layer: str = ""
    odd_one_out: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Diagnostician:
    """Diagnoses subjects on one model in one dtype; what is known about a case is kept between them.

    Args:
        bench: The model.
    """

    bench: Workbench
    _studies: dict[str, CaseStudy] = field(default_factory=dict)
    _paths: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def study(self, case: Case) -> CaseStudy:
        """Everything known about a case.

        Raises:
            SubjectError: The unpacked path cannot be run on it.
            StructureError: Its forms cannot be compared.
        """
        if case.name not in self._studies:
            self._studies[case.name] = CaseStudy.of(self.bench, case)
        return self._studies[case.name]

    def diagnose(
        self,
        subject: Subject,
        failing: Sequence[Case],
        *,
        findings: Sequence[Finding] = (),
        without: frozenset[str] = frozenset(),
    ) -> Diagnosis:
        """Run a subject again and find out what is wrong with it.

        Args:
            subject: The subject that failed.
            failing: Cases of this model on which it did; may be empty, when only diagnostic cases are tried.
            findings: What exact checks found about it.
            without: Names of planted faults to leave out of the search.

        Returns:
            The diagnosis; empty but for its notes where the subject does not fail again or breaks its contract.
        """
        model = self.bench.model
        vocab_size = num_text_tokens(model.config, int(model.get_input_embeddings().num_embeddings))
        try:
            wanted = kinds_to_try(failing, kinds_taken(subject))
        except SubjectError as error:
            return Diagnosis(notes=(str(error),))
        made, too_small = diagnostic_cases(vocab_size, self.bench.seed, wanted)
        if self.bench.request.reference != "adapters-off":
            made = tuple(over(case, self.bench.request.reference) for case in made)
        notes = list(too_small)
        for case in _in_order(wanted, made, failing):
            try:
                support = support_for(subject, case, self.bench.frozen.name)
                if not support.supported:
                    notes.append(f"not run on case {case.name}: {support.reason}")
                    continue
                found = self._on_case(subject, case, findings, without)
            except WeightsChangedError as error:
                self.bench.rebuild()
                self._studies.clear()
                return Diagnosis(notes=(*notes, str(error)))
            except (SubjectError, StructureError) as error:
                notes.append(f"case {case.name}: {error}")
                continue
            if found is not None:
                return replace(found, notes=(*notes, *found.notes))
            notes.append(f"{SAME_VALUES} on case {case.name}")
        return Diagnosis(notes=tuple(notes))

    def _on_case(
        self, subject: Subject, case: Case, findings: Sequence[Finding], without: frozenset[str]
    ) -> Diagnosis | None:
        study = self.study(case)
        actual, flow = self.bench.observe_with_flow(subject, case)
        differences = study.differences(actual)
        if not differences.beyond:
            return None
        if isinstance(study.context.objective, RewardModel):
            return _of_rewards(study, actual, differences, findings, without)
        evidence, notes = gather(study, subject, actual, flow, differences)
        near = _nearest(study, signature_of(differences, evidence.actual, evidence.expected), without)
        decoder_agrees = bool(evidence.hidden) and first_differing(evidence.hidden) is None
        pointed_to = (
            *suspects_from_evidence(evidence),
            *exact_check_suspects(findings, parity_holds=False, decoder_agrees=decoder_agrees),
        )
        return Diagnosis(
            case=case.name,
            patterns=_patterns(differences, is_sft=isinstance(study.context.objective, Sft)),
            suspects=rank(pointed_to, [(n.fault.name, n.fault.stage, n.distance) for n in near]),
            nearest=tuple(near[:_NEAREST_SHOWN]),
            first_layer=_first_layer(evidence),
            odd_one_out=self._odd_one_out(study, subject, actual),
            notes=notes,
        )

    def _odd_one_out(self, study: CaseStudy, subject: Subject, actual: Observation) -> str:
        name = study.case.name
        if name not in self._paths:
            self._paths[name] = independent_logps(study)
        return odd_one_out({**self._paths[name], subject.name: torch.cat(actual.per_token_logps)}, study.logp_budget)


def _in_order(
    wanted: Sequence[tuple[CaseKind, ObjectiveName]], made: Sequence[Case], failing: Sequence[Case]
) -> Iterator[Case]:
    """Of each kind and objective the case that was made for it, then those that failed."""
    for kind, objective_name in wanted:
        for cases in (made, richest_first(failing)):
            yield from (case for case in cases if (case.kind, case.objective_name) == (kind, objective_name))


def _of_rewards(
    study: CaseStudy,
    actual: Observation,
    differences: Differences,
    findings: Sequence[Finding],
    without: frozenset[str],
) -> Diagnosis:
    """Of a reward model there are no log-probs to follow: what differs, and the faults that look alike."""
    near = _nearest(study, study.signature(actual), without)
    return Diagnosis(
        case=study.case.name,
        patterns=(*reward_model_patterns(differences.beyond), *tensor_patterns(differences.gradients)),
        suspects=rank(
            (*reward_suspects(differences), *exact_check_suspects(findings, parity_holds=False)),
            [(n.fault.name, n.fault.stage, n.distance) for n in near],
        ),
        nearest=tuple(near[:_NEAREST_SHOWN]),
        notes=("of a reward model only patterns, nearest faults and exact checks are looked at",),
    )


def _nearest(study: CaseStudy, signature: Signature, without: frozenset[str]) -> list[NearFault]:
    known = {name: planted for name, planted in study.planted().items() if name not in without}
    return [NearFault(mutation_named(name), distance) for name, distance in nearest(signature, known)]


def _patterns(differences: Differences, *, is_sft: bool) -> tuple[Pattern, ...]:
    policy = Branches.of(differences.groups, differences.logps, differences.logps_beyond)
    patterns = [*quantity_patterns(differences.beyond, is_sft=is_sft), *token_patterns(policy)]
    if not policy.differing and not is_sft:
        of_reference = Branches.of(differences.groups, differences.ref_logps, differences.ref_logps_beyond)
        patterns += [replace(p, sentence=f"frozen policy: {p.sentence}") for p in token_patterns(of_reference)]
    return (*patterns, *tensor_patterns(differences.gradients))


def _first_layer(evidence: Evidence) -> str:
    if not evidence.hidden:
        return ""
    first = first_differing(evidence.hidden)
    if first is None:
        return (
            f"no hidden state of {evidence.hidden[0].num_tokens} tokens differs beyond rounding at any of "
            f"{len(evidence.hidden)} places: the fault lies behind the decoder"
        )
    index = evidence.hidden.index(first)
    agree = f"{evidence.hidden[index - 1].place} agrees; " if index else ""
    tokens = describe([evidence.tokens[token] for token in first.differing], evidence.groups)
    return f"{agree}{first.place} differs by up to {first.largest:.2g} (rounding {first.rounding:.1g}) for {tokens}"

"""The record of one run: everything needed to audit the verdict and to render it again.

A record holds measurements and the budgets they were held against, in plain values: it can be read years
later by a program that has no torch. Unknown fields and unknown schema versions are refused,
and so is a record that contradicts itself: a PASS that rests on nothing, another verdict that nothing explains,
counts that do not add up, or parts that name or hold what others rule out (`reports.consistency`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, FiniteFloat, model_validator

from reports.consistency import inconsistencies
from reports.values import Count, Measured, Settings, Text, Versions

SCHEMA_VERSION: Literal[5] = 5
READABLE_VERSIONS = (1, 2, 3, 4, 5)
"""Version 1 had no exact checks, planted faults, blind spots and diagnoses, version 2 only pairs, version 3 no
decisions and no other preference objective than "sigmoid", version 4 no model that the oracle does not know, no
reward model, no autocast, no case over a frozen policy of its own and no second model; all can be read."""

VerdictName = Literal["PASS", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_APPLICABLE"]
DtypeName = Literal["float64", "float32", "bfloat16", "autocast-bfloat16"]
"""Of weights and passes alike, or float32 weights under autocast."""
PreferenceName = Literal[
    "sigmoid", "robust", "hinge", "ipo", "sigmoid_norm", "rpo",
    "groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs",
]  # fmt: skip
ComparingName = PreferenceName | Literal["reward-model"]
ObjectiveName = ComparingName | Literal["sft-token-mean", "sft-example-mean"]
ReferenceName = Literal["adapters-off", "frozen-adapter", "separate-model", "cached"]
CaseKind = Literal["pairs", "groups", "examples"]
QuantityName = Literal[
    "per_token_logps", "ref_per_token_logps", "router_probs", "router_shares", "rewards", "margins", "loss", "gradients"
]

VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)
NOT_A_PASS: tuple[VerdictName, ...] = ("ERROR", "FAIL", "INCONCLUSIVE")
"""Verdicts beside which nothing may be called PASS, worst first."""


def _verdict_keys(counts: dict[str, int]) -> dict[str, int]:
    """Check the keys and bring them into one order."""
    if unknown := counts.keys() - set(VERDICTS):
        raise ValueError(f"{sorted(unknown)} among the verdicts counted; there are {', '.join(VERDICTS)}")
    return {name: counts[name] for name in VERDICTS if name in counts}


CountsByVerdict = Annotated[dict[str, Count], AfterValidator(_verdict_keys)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Environment(_Frozen):
    """Where the run took place."""

    python: str
    platform: str
    processor: str
    num_threads: Count
    device: str
    packages: Versions
    """Exact version of each package that takes part in the computation."""


class ModelRecord(_Frozen):
    """The model under comparison."""

    name: Text
    """Name as given on the command line: "tiny", "qwen3-0.6b", or a checkpoint folder's base name."""
    weights: Text
    """Where the weights come from, e.g. "seeded normal, std 0.2, rounded to bfloat16" or "checkpoint"."""
    weights_sha256: str | None
    num_parameters: Count
    num_layers: Count
    num_layers_published: Count
    """Depth of the published config; larger than ``num_layers`` if the depth was cut."""
    config: Settings
    lora: Settings
    """Empty where every weight is trained."""
    train: Literal["lora", "all"] = "lora"
    """What is trained: LoRA adapters, or every weight of a model without adapters."""
    expected_by: Literal["oracle", "unpacked-float64"] = "oracle"
    """What "to the oracle" means: the oracle, or the unpacked path in float64, where the oracle has no such model."""


class GroupRecord(_Frozen):
    """Lengths of one group, in tokens."""

    source: Text
    prompt: Count
    positives: list[Count]
    negatives: list[Count]
    supervised: list[Count] | None = None
    """Supervised tokens of each completion, positives before negatives; None where all are."""

    @model_validator(mode="after")
    def _has_lengths(self) -> Self:
        lengths = [*self.positives, *self.negatives]
        if not self.positives or not self.prompt or not all(lengths):
            raise ValueError(f"{self.source or 'a group'}: no positive, or a prompt or completion without a token")
        if self.supervised is not None:
            counts = zip(self.supervised, lengths, strict=False)
            if len(self.supervised) != len(lengths) or not all(0 < part <= whole for part, whole in counts):
                raise ValueError(f"{self.source or 'a group'}: supervised {self.supervised} of {lengths} tokens")
        return self


class CaseRecord(_Frozen):
    """One input: preference groups by their lengths in tokens."""

    name: Text
    why: Text
    """What this case is there to show."""
    groups: list[GroupRecord]
    objective: ObjectiveName = "sigmoid"
    reference: ReferenceName | Literal[""] = ""
    """The frozen policy that it was over; "" for that of the objective of the run, or for none."""

    @model_validator(mode="after")
    def _objective_has_what_it_compares(self) -> Self:
        compares = not self.objective.startswith("sft-")
        if not self.groups or any(bool(group.negatives) != compares for group in self.groups):
            needed = "a negative in each group" if compares else "no negative"
            raise ValueError(f"case {self.name}: the objective {self.objective} needs groups, with {needed}")
        if self.reference and self.objective not in get_args(PreferenceName):
            raise ValueError(f"case {self.name}: reference {self.reference}, but {self.objective} has no frozen policy")
        return self


class SubjectRecord(_Frozen):
    """An implementation that was judged."""

    name: Text
    layout: Literal["packed", "unpacked"]
    takes: list[CaseKind] = ["pairs"]
    objectives: list[ObjectiveName] = ["sigmoid", "sft-token-mean", "sft-example-mean"]
    """What its own loss computes."""
    owns_loss: bool
    """The subject computes its own loss; otherwise the runner applied the objective to its log-probs."""


class PlaceRecord(_Frozen):
    """A place where actual and expected differ most, by meaning."""

    where: Text
    """E.g. "group 0, chosen, token 3 of 7, predicted from response token 2" or a parameter's name."""
    actual: Measured
    expected: Measured
    measured: Measured
    budget: Measured


class JudgementRecord(_Frozen):
    """One measured difference held against one budget."""

    quantity: QuantityName
    budget_kind: Literal["oracle", "differential"]
    """Distance to the oracle, or to the unpacked witness."""
    statistic: Literal["max", "rms"]
    unit: Literal["nats", "relative", "share"]
    verdict: VerdictName
    reason: Text
    """Empty on PASS."""
    num_compared: Count
    measured: Measured | None
    """None where nothing was measured (NOT_APPLICABLE)."""
    budget: Measured | None
    witness_error: Measured | None
    """The unpacked path's own error (oracle) or the spread of its harmless variations (differential)."""
    witness_from: Text
    """What ``witness_error`` was measured on: "unpacked witness", "variation eager", "log-prob budgets"."""
    factor: Measured | None
    floor: Measured | None
    signed_mean: Measured | None
    worst: list[PlaceRecord]

    @model_validator(mode="after")
    def _pass_is_within_its_budget(self) -> Self:
        if self.verdict != "PASS":
            return self
        if self.num_compared == 0 or self.measured is None or self.budget is None:
            raise ValueError(f"{self.quantity} is PASS, but nothing was compared")
        if not self.measured <= self.budget:  # also where either is NaN
            raise ValueError(f"{self.quantity} is PASS, but measured {self.measured} against a budget of {self.budget}")
        return self


class SlotsRecord(_Frozen):
    """Token slots that passed the embedding in policy and reference pass: the proof that the packed path ran."""

    slots: Count
    rows: Count
    forward_calls: Count
    pairwise_slots: Count
    """What one unpadded row per completion would have fed."""
    images: Count = 0
    """Images that passed the tower that sees them."""
    pairwise_images: Count = 0
    """What one row per completion would have run through it."""


class DecisionsRecord(_Frozen):
    """Which response of each pair the rewards prefer, packed against unpacked; a tie is half right."""

    num_pairs: Count
    flipped: Count
    ties: Count
    """Margins of exactly 0 on the packed path."""
    halves_right: Count
    """Twice the right decisions of the packed path."""
    expected_halves_right: Count
    """Twice those of the unpacked path."""

    @model_validator(mode="after")
    def _are_of_these_pairs(self) -> Self:
        right = max(self.halves_right, self.expected_halves_right)
        if max(self.flipped, self.ties) > self.num_pairs or right > 2 * self.num_pairs:
            raise ValueError(f"decisions: more flipped, tied or right than there are pairs ({self.num_pairs})")
        return self


class ResultRecord(_Frozen):
    """One subject on one case in one dtype."""

    case: Text
    subject: Text
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[Text]
    judgements: list[JudgementRecord]
    slots: SlotsRecord | None
    num_compared: Count
    """Values compared, over all judgements of this result."""
    decisions: DecisionsRecord | None = None
    """None under SFT, where no response was preferred to another, and in records before version 4."""

    @model_validator(mode="after")
    def _verdict_rests_on_judgements(self) -> Self:
        judged: Counter[str] = Counter(judgement.verdict for judgement in self.judgements)
        _check_pass(self.verdict, f"case {self.case}", self.num_compared, judged, "judgement")
        _check_explained(self.verdict, f"case {self.case}", self.reasons, judged, "judgement")
        compared = sum(judgement.num_compared for judgement in self.judgements)
        if self.num_compared != compared:
            raise ValueError(
                f"case {self.case}: num_compared is {self.num_compared}, but its judgements have {compared}"
            )
        return self


class SubjectSummary(_Frozen):
    """One subject in one dtype, over all cases; the proof that the packed path ran is judged here."""

    subject: Text
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[Text]
    cases_by_verdict: CountsByVerdict
    slots: Count
    pairwise_slots: Count
    worst_ratio: dict[str, Measured]
    """Largest measured / budget for each quantity."""

    @model_validator(mode="after")
    def _verdict_rests_on_cases(self) -> Self:
        passed = self.cases_by_verdict.get("PASS", 0)
        what = f"{self.subject} in {self.dtype}"
        _check_pass(self.verdict, what, passed, self.cases_by_verdict, "case")
        _check_explained(self.verdict, what, self.reasons, self.cases_by_verdict, "case")
        return self


class DataRecord(_Frozen):
    """Where real preference pairs came from."""

    file: Text
    sha256: str
    shape: Text
    rows_read: Count
    usable_rows: Count
    violations_by_reason: dict[str, Count]
    violations: list[Text]
    """The first rows that broke a precondition, each with its place and reason."""
    tokenizer: Text
    tokenizer_sha256: str | None
    num_pairs: Count
    notes: list[Text]


class ExactCheckRecord(_Frozen):
    """One exact check of one subject: no tolerance, or one that follows from rounding alone."""

    check: Text
    """Its name in docs/checks.md, e.g. "branch-isolation"."""
    subject: Text
    dtype: DtypeName
    case: Text
    verdict: VerdictName
    reason: Text
    """Empty on PASS; otherwise what differs and where, by meaning."""
    num_compared: Count
    num_differing: Count

    @model_validator(mode="after")
    def _pass_compared_something(self) -> Self:
        if self.verdict == "PASS" and (self.num_compared == 0 or self.num_differing):
            raise ValueError(
                f"{self.check} of {self.subject} is PASS with {self.num_compared} values compared and "
                f"{self.num_differing} of them different"
            )
        return self


class PlantedRecord(_Frozen):
    """A fault that was planted in this very run, and what the run's own checks made of it."""

    fault: Text
    """Its name in docs/faults.md."""
    stage: Text
    what: Text
    dtype: DtypeName
    cases: list[Text]
    killed: bool
    margin: Measured
    """Largest measured / budget; infinite where a check without a budget caught it."""
    caught_by: list[Text]
    """Families of checks that caught it; empty if it survived."""
    margins: dict[str, Measured]
    """Largest measured / budget in each family of checks that saw it; infinite where a check has no budget."""

    @model_validator(mode="after")
    def _killed_by_something(self) -> Self:
        if self.killed != bool(self.caught_by):
            raise ValueError(f"{self.fault}: killed is {self.killed}, but it was caught by {self.caught_by}")
        return self


class BlindSpotRecord(_Frozen):
    """A kind of fault that this run could not have seen."""

    what: Text
    """E.g. "faults that need positions beyond 256"."""
    why: Text
    """E.g. "the longest path of these cases has 190 tokens"."""
    faults: list[Text]
    """Names in docs/faults.md of faults of this kind; may be empty."""


class NearFaultRecord(_Frozen):
    """A fault of the catalogue whose signature is near to what was seen."""

    fault: Text
    stage: Text
    what: Text
    distance: Measured
    """0 is the same signature, 1 as far as nothing in common; see docs/diagnosis.md."""


class StageRecord(_Frozen):
    """A stage of the packed computation as a suspect."""

    stage: Text
    distance: Measured
    because: Text


class DiagnosisRecord(_Frozen):
    """What is probably wrong with a subject that failed, and where. Every part is a finding, not a proof."""

    subject: Text
    dtype: DtypeName
    case: Text
    """The failing case that the diagnosis was made on."""
    worst: Text
    """The worst place, by meaning."""
    patterns: list[Text]
    """Which values differ, most telling first, e.g. "all tokens of the rejected response but its first"."""
    stages: list[StageRecord]
    """Suspects, nearest first."""
    nearest: list[NearFaultRecord]
    first_layer: Text
    """The first decoder layer whose hidden states differ beyond rounding, in words; "" where it was not looked for."""
    odd_one_out: Text
    """Which of unpacked, dense, sparse and split disagrees with the others; "" where it was not looked for."""
    reproduction: Text
    """Folder of the shrunk reproduction; "" where none was asked for."""
    notes: list[Text]
    """What was left out of the diagnosis, and why."""


class TimingRecord(_Frozen):
    """Wall time by stage."""

    total_s: FiniteFloat
    import_s: FiniteFloat
    model_passes_s: FiniteFloat
    """Forward and backward passes of oracle, witness, variations and subjects, summed over all processes."""
    peak_host_bytes: Count
    """Of the process that took most."""
    num_processes: Count = 1
    """Processes that shared the passes."""


class Record(_Frozen):
    """One run of the gate."""

    schema_version: Literal[1, 2, 3, 4, 5] = SCHEMA_VERSION
    tool_version: str
    command: list[Text]
    created_utc: str
    verdict: VerdictName
    reasons: list[Text]
    counts: CountsByVerdict
    """Number of results by verdict."""
    num_compared: Count
    environment: Environment
    model: ModelRecord
    model_with_images: ModelRecord | None = None
    """What cases with images were run on, where the model sees none."""
    objective: Settings
    seeds: dict[str, int]
    policy: Settings
    """The tolerance policy as used, with the rationale of every number."""
    variations: list[Text]
    """The harmless variations of the witness that set the noise floor."""
    subjects: list[SubjectRecord]
    cases: list[CaseRecord]
    summaries: list[SubjectSummary]
    results: list[ResultRecord]
    exact_checks: list[ExactCheckRecord] = []
    planted: list[PlantedRecord] = []
    """Faults planted in this run: what it would have caught."""
    blind_spots: list[BlindSpotRecord] = []
    """What this run would not have seen."""
    diagnoses: list[DiagnosisRecord] = []
    """One for each subject that failed, up to a few: in the most exact dtype in which it did."""
    data: DataRecord | None
    timing: TimingRecord
    notes: list[Text]
    """Anything a reader must know, e.g. a cut depth or a backend that ran uncompiled."""

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        _check_counts("counts", self.counts, (result.verdict for result in self.results))
        for summary in self.summaries:
            own = (r.verdict for r in self.results if (r.subject, r.dtype) == (summary.subject, summary.dtype))
            _check_counts(f"cases of {summary.subject} in {summary.dtype}", summary.cases_by_verdict, own)
        total = sum(result.num_compared for result in self.results)
        if self.num_compared != total:
            raise ValueError(f"num_compared is {self.num_compared}, but the results compared {total} values")
        return self

    @model_validator(mode="after")
    def _verdict_other_than_pass_is_explained(self) -> Self:
        """The reasons may be all there is: where nothing was judged, or where planted faults cast doubt on the run."""
        parts: list[ResultRecord | SubjectSummary | ExactCheckRecord]
        parts = [*self.results, *self.summaries, *self.exact_checks]
        judged: Counter[str] = Counter(part.verdict for part in parts)
        _check_explained(self.verdict, "the run", self.reasons, judged, "result, summary or exact check")
        return self

    @model_validator(mode="after")
    def _pass_rests_on_results(self) -> Self:
        _check_pass(self.verdict, "the run", self.num_compared, self.counts, "result")
        judged: Counter[str] = Counter(summary.verdict for summary in self.summaries)
        _check_pass(self.verdict, "the run", self.num_compared, judged, "summary")
        if self.verdict != "PASS":
            return self
        for check in self.exact_checks:
            if check.verdict in NOT_A_PASS:
                raise ValueError(f"the run is PASS, but {check.check} of {check.subject} is {check.verdict}")
        if survivors := [planted.fault for planted in self.planted if not planted.killed]:
            raise ValueError(f"the run is PASS, but planted faults survived it: {', '.join(survivors)}")
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if (problem := next(inconsistencies(self), None)) is not None:
            raise ValueError(problem)
        return self


def _check_explained(
    verdict: VerdictName, what: str, reasons: Sequence[str], parts: Mapping[str, int], part: str
) -> None:
    """Refuse a verdict other than PASS that no part has and no reason is given for; no part at all is an ERROR."""
    if verdict == "ERROR" and not any(parts.values()):
        return
    if verdict in NOT_A_PASS and not parts.get(verdict, 0) and not any(reasons):
        raise ValueError(f"{what} is {verdict}, but no {part} is, and no reason is given")


def _check_pass(verdict: VerdictName, what: str, num_compared: int, parts: Mapping[str, int], part: str) -> None:
    """Refuse a PASS over nothing, without a part that passed, or beside a part that did not."""
    if verdict != "PASS":
        return
    if num_compared == 0:
        raise ValueError(f"{what} is PASS, but nothing was compared")
    for name in NOT_A_PASS:
        if parts.get(name, 0):
            raise ValueError(f"{what} is PASS, but has {parts[name]} {part} with verdict {name}")
    if not parts.get("PASS", 0):
        raise ValueError(f"{what} is PASS, but no {part} is")


def _check_counts(what: str, counts: Mapping[str, int], verdicts: Iterable[VerdictName]) -> None:
    seen = Counter(verdicts)
    for name in VERDICTS:
        if counts.get(name, 0) != seen[name]:
            raise ValueError(f"{what} say {counts.get(name, 0)} {name}, but the results hold {seen[name]}")

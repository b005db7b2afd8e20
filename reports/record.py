"""The record of one run: everything needed to audit the verdict and to render it again.

A record holds measurements and the budgets they were held against, in plain values: it can be read years
later by a program that has no torch. Unknown fields and unknown schema versions are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

SCHEMA_VERSION: Literal[1] = 1

VerdictName = Literal["PASS", "FAIL", "ERROR", "INCONCLUSIVE", "NOT_APPLICABLE"]
DtypeName = Literal["float64", "float32", "bfloat16"]
Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Environment(_Frozen):
    """Where the run took place."""

    python: str
    platform: str
    processor: str
    num_threads: Count
    device: str
    packages: dict[str, str]
    """Exact version of each package that takes part in the computation."""


class ModelRecord(_Frozen):
    """The model under comparison."""

    name: str
    """Name as given on the command line: "tiny", "qwen3-0.6b", or a checkpoint folder's base name."""
    weights: str
    """Where the weights come from, e.g. "seeded normal, std 0.2, rounded to bfloat16" or "checkpoint"."""
    weights_sha256: str | None
    num_parameters: Count
    num_layers: Count
    num_layers_published: Count
    """Depth of the published config; larger than ``num_layers`` if the depth was cut."""
    config: dict[str, object]
    lora: dict[str, object]


class CaseRecord(_Frozen):
    """One input: preference groups by their lengths in tokens."""

    name: str
    why: str
    """What this case is there to show."""
    groups: list[GroupRecord]


class GroupRecord(_Frozen):
    """Lengths of one group, in tokens."""

    source: str
    prompt: Count
    positives: list[Count]
    negatives: list[Count]


class SubjectRecord(_Frozen):
    """An implementation that was judged."""

    name: str
    layout: Literal["packed", "unpacked"]
    owns_loss: bool
    """The subject computes its own loss; otherwise the runner applied the objective to its log-probs."""


class PlaceRecord(_Frozen):
    """A place where actual and expected differ most, by meaning."""

    where: str
    """E.g. "group 0, chosen, token 3 of 7, predicted from response token 2" or a parameter's name."""
    actual: float
    expected: float
    measured: float
    budget: float


class JudgementRecord(_Frozen):
    """One measured difference held against one budget."""

    quantity: Literal["per_token_logps", "ref_per_token_logps", "rewards", "margins", "loss", "gradients"]
    budget_kind: Literal["oracle", "differential"]
    """Distance to the oracle, or to the unpacked witness."""
    statistic: Literal["max", "rms"]
    unit: Literal["nats", "relative"]
    verdict: VerdictName
    reason: str
    """Empty on PASS."""
    num_compared: Count
    measured: float | None
    """None where nothing was measured (NOT_APPLICABLE)."""
    budget: float | None
    witness_error: float | None
    """The unpacked path's own error (oracle) or the spread of its harmless variations (differential)."""
    witness_from: str
    """What ``witness_error`` was measured on: "unpacked witness", "variation eager", "from log-prob budgets"."""
    factor: float | None
    floor: float | None
    signed_mean: float | None
    worst: list[PlaceRecord]


class SlotsRecord(_Frozen):
    """Token slots that passed the embedding in the policy pass: the proof that the packed path ran."""

    slots: Count
    rows: Count
    forward_calls: Count
    pairwise_slots: Count
    """What one unpadded row per completion would have fed."""


class ResultRecord(_Frozen):
    """One subject on one case in one dtype."""

    case: str
    subject: str
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[str]
    judgements: list[JudgementRecord]
    slots: SlotsRecord | None
    num_compared: Count
    """Values compared, over all judgements of this result."""


class SubjectSummary(_Frozen):
    """One subject in one dtype, over all cases; the proof that the packed path ran is judged here."""

    subject: str
    dtype: DtypeName
    verdict: VerdictName
    reasons: list[str]
    cases_by_verdict: dict[str, Count]
    slots: Count
    pairwise_slots: Count
    worst_ratio: dict[str, float]
    """Largest measured / budget for each quantity."""


class DataRecord(_Frozen):
    """Where real preference pairs came from."""

    file: str
    sha256: str
    shape: str
    rows_read: Count
    usable_rows: Count
    violations_by_reason: dict[str, Count]
    violations: list[str]
    """The first rows that broke a precondition, each with its place and reason."""
    tokenizer: str
    tokenizer_sha256: str | None
    num_pairs: Count
    notes: list[str]


class TimingRecord(_Frozen):
    """Wall time by stage."""

    total_s: FiniteFloat
    import_s: FiniteFloat
    model_passes_s: FiniteFloat
    """Forward and backward passes of oracle, witness, variations and subjects."""
    peak_host_bytes: Count


class Record(_Frozen):
    """One run of the gate."""

    schema_version: Literal[1] = 1
    tool_version: str
    command: list[str]
    created_utc: str
    verdict: VerdictName
    reasons: list[str]
    counts: dict[str, Count]
    """Number of results by verdict."""
    num_compared: Count
    environment: Environment
    model: ModelRecord
    objective: dict[str, object]
    seeds: dict[str, int]
    policy: dict[str, object]
    """The tolerance policy as used, with the rationale of every number."""
    variations: list[str]
    """The harmless variations of the witness that set the noise floor."""
    subjects: list[SubjectRecord]
    cases: list[CaseRecord]
    summaries: list[SubjectSummary]
    results: list[ResultRecord]
    data: DataRecord | None
    timing: TimingRecord
    notes: list[str]
    """Anything a reader must know, e.g. a cut depth or a backend that ran uncompiled."""


CaseRecord.model_rebuild()

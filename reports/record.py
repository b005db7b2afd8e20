"""The record of one run: everything needed to audit the verdict and to render it again.

A record holds measurements and the budgets they were held against, in plain values: it can be read years
later by a program that has no torch. Unknown fields and unknown schema versions are refused,
and so is a record that contradicts itself: a PASS that rests on nothing, another verdict that nothing explains,
counts that do not add up, or parts that name or hold what others rule out (`reports.consistency`).
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, Self

from pydantic import Field, model_validator

from reports.claims import CountsByVerdict, check_counts, check_explained, check_pass
from reports.consistency import inconsistencies
from reports.record_faults import BlindSpotRecord, DiagnosisRecord, PlantedRecord
from reports.record_names import NOT_A_PASS, VerdictName
from reports.record_results import ExactCheckRecord, ResultRecord, SubjectSummary
from reports.record_setting import CaseRecord, DataRecord, Environment, ModelRecord, SubjectRecord, TimingRecord
from reports.values import Count, RecordPart, Settings, Text

SCHEMA_VERSION: Literal[5] = 5
READABLE_VERSIONS = (1, 2, 3, 4, 5)
"""Version 1 had no exact checks, planted faults, blind spots and diagnoses, version 2 only pairs, version 3 no
decisions and no other preference objective than "sigmoid", version 4 no model that the oracle does not know, no
reward model, no autocast, no case over a frozen policy of its own and no second model; all can be read."""


class Record(RecordPart):
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
    exact_checks: list[ExactCheckRecord] = Field(default_factory=list)
    planted: list[PlantedRecord] = Field(default_factory=list)
    """Faults planted in this run: what it would have caught."""
    blind_spots: list[BlindSpotRecord] = Field(default_factory=list)
    """What this run would not have seen."""
    diagnoses: list[DiagnosisRecord] = Field(default_factory=list)
    """One for each subject that failed, up to a few: in the most exact dtype in which it did."""
    data: DataRecord | None
    timing: TimingRecord
    notes: list[Text]
    """Anything a reader must know, e.g. a cut depth or a backend that ran uncompiled."""

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        check_counts("counts", self.counts, (result.verdict for result in self.results))
        for summary in self.summaries:
            own = (r.verdict for r in self.results if (r.subject, r.dtype) == (summary.subject, summary.dtype))
            check_counts(f"cases of {summary.subject} in {summary.dtype}", summary.cases_by_verdict, own)
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
        check_explained(self.verdict, "the run", self.reasons, judged, "result, summary or exact check")
        return self

    @model_validator(mode="after")
    def _pass_rests_on_results(self) -> Self:
        check_pass(self.verdict, "the run", self.num_compared, self.counts, "result")
        judged: Counter[str] = Counter(summary.verdict for summary in self.summaries)
        check_pass(self.verdict, "the run", self.num_compared, judged, "summary")
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

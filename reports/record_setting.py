"""What a run took place on: machine, model, cases, subjects, data, and the time it took."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, FiniteFloat, model_validator

from reports.record_names import CaseKind, ObjectiveName, PreferenceName, ReferenceName
from reports.values import Count, RecordPart, Settings, Text, Versions


class Environment(RecordPart):
    """Where the run took place."""

    python: str
    platform: str
    processor: str
    num_threads: Count
    device: str
    packages: Versions
    """Exact version of each package that takes part in the computation."""
    float32_products: Text = ""
    """Whether the device multiplies float32 matrices in float32, or in TF32 or less, as measured; "" where no record
    said yet."""


class ModelRecord(RecordPart):
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


class GroupRecord(RecordPart):
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


class CaseRecord(RecordPart):
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


class SubjectRecord(RecordPart):
    """An implementation that was judged."""

    name: Text
    layout: Literal["packed", "unpacked"]
    takes: list[CaseKind] = Field(default=["pairs"])
    objectives: list[ObjectiveName] = Field(default=["sigmoid", "sft-token-mean", "sft-example-mean"])
    """What its own loss computes."""
    owns_loss: bool
    """The subject computes its own loss; otherwise the runner applied the objective to its log-probs."""


class DataRecord(RecordPart):
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


class TimingRecord(RecordPart):
    """Wall time by stage."""

    total_s: FiniteFloat
    import_s: FiniteFloat
    model_passes_s: FiniteFloat
    """Forward and backward passes of oracle, witness, variations and subjects, summed over all processes."""
    peak_host_bytes: Count
    """Of the process that took most."""
    num_processes: Count = 1
    """Processes that shared the passes."""

"""The record of one survey: what can be packed, how long it is, and what packing would save.

Of a preference file, or of lengths drawn from a named distribution, where every row is usable.

Like the record of the gate it holds plain values, refuses unknown fields, and refuses to contradict itself.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from reports.values import Count, RecordPart, Text

DATA_REPORT_VERSION: Literal[2] = 2

Advice = Literal["pays", "does-not-pay", "cannot-be-used"]
PartName = Literal["prompt", "chosen", "rejected", "response", "group"]
UnitName = Literal["tokens", "characters"]
Share = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[FiniteFloat, Field(gt=0)]


class CountedRowsRecord(RecordPart):
    """Rows about which the same thing is to be said, and the first of them."""

    name: Text
    meaning: Text
    rows: Count
    examples: list[Text]

    @model_validator(mode="after")
    def _examples_are_rows(self) -> Self:
        if not 1 <= len(self.examples) <= self.rows:
            raise ValueError(f"{self.name}: {len(self.examples)} examples of {self.rows} rows")
        return self


class BinRecord(RecordPart):
    """Prompts, responses or groups whose length lies between two bounds, both included."""

    least: Count
    greatest: Count
    number: Count


class PartLengthsRecord(RecordPart):
    """Lengths of one part of the usable groups."""

    part: PartName
    """"group" is the prompt once and all responses; "response" any response, where none is preferred."""
    mean: FiniteFloat
    shortest: Count
    longest: Count
    quantiles: dict[str, Count]
    """Share in percent to a length that at least this share does not exceed, up to the width of a bin."""
    bins: list[BinRecord]

    @model_validator(mode="after")
    def _is_a_distribution(self) -> Self:
        if not self.shortest <= self.mean <= self.longest:
            raise ValueError(f"{self.part}: mean {self.mean} outside {self.shortest} to {self.longest}")
        if any(low > high for low, high in pairwise(self.quantiles.values())):
            raise ValueError(f"{self.part}: quantiles do not ascend")
        if any(a.greatest >= b.least for a, b in pairwise(self.bins)):
            raise ValueError(f"{self.part}: bins overlap or do not ascend")
        return self


class ByResponsesRecord(RecordPart):
    """Groups with one number of responses: packed / unpacked, by the exact algebra and by Eq. 1."""

    responses: Count
    or_more: bool
    groups: Count
    token_ratio: Ratio
    attention_ratio: Ratio
    flop_ratio: Ratio | None
    eq1_ratio: Ratio
    eq1_share: Share


class AlgebraRecord(RecordPart):
    """Exact sums over the usable groups, without padding: what sharing the prompt saves in any layout."""

    tokens_unpacked: Count
    tokens_packed: Count
    attention_pairs_unpacked: Count
    attention_pairs_packed: Count
    shared_share: Share
    """Second and further copies of prompts / unpacked tokens."""
    token_ratio: Ratio
    """Packed / unpacked, as the ratios below."""
    flop_ratio: Ratio | None
    """Forward FLOPs of the named model; None where lengths are not in tokens."""
    memory_ratio: Ratio
    """Packed slots / slots of sequences padded to the longest of their group (Preference Packing)."""
    eq1_unpacked: Count
    """Cost as Preference Packing's Eq. 1 counts it: dense attention over padded sequences, no linear layers."""
    eq1_packed: Count
    eq1_ratio: Ratio
    eq1_share: Share
    """Share of groups for which Eq. 1 calls packing cheaper."""
    by_responses: list[ByResponsesRecord]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        saved = self.tokens_unpacked - self.tokens_packed
        for name, value, expected in (
            ("token_ratio", self.token_ratio, self.tokens_packed / self.tokens_unpacked),
            ("shared_share", self.shared_share, saved / self.tokens_unpacked),
            ("eq1_ratio", self.eq1_ratio, self.eq1_packed / self.eq1_unpacked),
        ):
            if not math.isclose(value, expected, rel_tol=1e-9):
                raise ValueError(f"{name} is {value}, but the tokens give {expected}")
        if self.attention_pairs_packed > self.attention_pairs_unpacked:
            raise ValueError("packed pairs of attention exceed unpacked ones, which the branch mask rules out")
        return self


class PlanRecord(RecordPart):
    """One way of filling rows, simulated over the sampled pairs."""

    plan: str
    row_limit: Count | None
    """None where a row holds one sequence or one group."""
    speed_up: Ratio
    """Time of an epoch with padded sequences ("plain") / with this plan."""
    token_utilisation: Share
    waiting_share: Share
    """Share of the ranks' time in which they wait for the slowest of the step."""
    examples_per_row: Ratio
    examples_per_step: Ratio
    useful_tokens_per_step: Ratio
    padded_tokens_per_step: Annotated[FiniteFloat, Field(ge=0)]
    peak_slots: Count
    """Most slots that a rank holds in one step."""
    flops_per_example: Ratio
    """Forward FLOPs of a group, padding included; of characters, slots."""

    @property
    def slots_per_example(self) -> float:
        """Slots that a group takes, padding included."""
        return (self.useful_tokens_per_step + self.padded_tokens_per_step) / self.examples_per_step

    @model_validator(mode="after")
    def _utilisation_follows(self) -> Self:
        slots = self.useful_tokens_per_step + self.padded_tokens_per_step
        if not math.isclose(self.token_utilisation, self.useful_tokens_per_step / slots, rel_tol=1e-9):
            raise ValueError(f"{self.plan}: utilisation {self.token_utilisation} does not follow from the tokens")
        return self


class OrderRecord(RecordPart):
    """Whether the rows of sequence packing, filled after a shuffle, follow the order of the file."""

    seed: Count
    pairs_in_a_row: Count
    """Two groups that share a row."""
    mean_distance: FiniteFloat
    random_distance: FiniteFloat
    standard_deviations: FiniteFloat
    follows_file_order: bool
    unshuffled_standard_deviations: FiniteFloat
    """The same of rows that are filled without a shuffle."""


class AlikenessRecord(RecordPart):
    """How much more alike neighbours in the file are than rows in random order."""

    found: FiniteFloat
    random: FiniteFloat
    follows: bool


class FileOrderRecord(RecordPart):
    """Whether the file itself follows an order."""

    repeated_prompts: Count
    """Rows with the prompt of the row before."""
    num_sources: Count
    sources: AlikenessRecord | None
    """Share of neighbours from one source."""
    lengths: AlikenessRecord | None
    """Correlation of the logarithms of neighbours' lengths."""

    @property
    def follows(self) -> bool:
        """Whether neighbours are alike in either way."""
        return any(alike is not None and alike.follows for alike in (self.sources, self.lengths))


class SimulationRecord(RecordPart):
    """What the plans were simulated with."""

    groups_sampled: Count
    seed: Count
    num_ranks: Count
    groups_per_rank: Count
    row_limit: Count
    time_is: Text
    """What a rank's time is made of."""
    plans: list[PlanRecord]
    by_row_limit: list[PlanRecord]
    """Sequence packing over several row limits."""
    order: OrderRecord | None


class SharedPrefixesRecord(RecordPart):
    """One way to share what sequences begin with, and what is left to compute; without padding."""

    way: Text
    tokens: Count
    attention_pairs: Count
    """Pairs of a token and one that it attends to: itself, and all before it on its own path."""
    flop_ratio: Ratio
    """Forward FLOPs of the named model / those of the first way."""


class PrefixTreesRecord(RecordPart):
    """What prefix trees hold, counted on the tokens of sampled groups."""

    groups_sampled: Count
    seed: Count
    row_limit: Count
    ways: list[SharedPrefixesRecord]
    """From each sequence alone to one tree of all of them."""

    @model_validator(mode="after")
    def _each_way_shares_more(self) -> Self:
        for before, after in pairwise(self.ways):
            if after.tokens > before.tokens or after.attention_pairs > before.attention_pairs:
                raise ValueError(f"{after.way!r} holds more than {before.way!r}, and shares all that that one does")
        return self


class TokenizerRecord(RecordPart):
    """What counted the tokens."""

    name: Text
    tokenizer_sha256: str | None
    chat_template_sha256: str | None


class AdviceRecord(RecordPart):
    """The recommendation and why."""

    advice: Advice
    reasons: list[Text]

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if not self.reasons:
            raise ValueError(f"advice {self.advice!r} without a reason")
        return self


class DataReport(RecordPart):
    """One survey of a preference file, or of lengths that were drawn."""

    kind: Literal["data-report"] = "data-report"
    schema_version: Literal[2] = DATA_REPORT_VERSION
    tool_version: Text
    created_utc: Text
    command: list[Text]
    file: Text
    """Base name of the file, or the name of the distribution."""
    sha256: str | None
    shape: str | None
    """Name of the shape that all rows have; None where lengths were drawn."""
    unit: UnitName
    unit_note: Text
    """How lengths were counted, in words."""
    tokenizer: TokenizerRecord | None
    model: Text
    max_length: Count | None
    """Length at which the trainer cuts a sequence; longer ones count as broken."""
    max_tokens: Count | None
    """Longest packed group that is used."""
    rows_read: Count
    rows_usable: Count
    most_broken_share: Share
    """A larger share of unusable rows means that packing cannot be used on the file as it is."""
    violations: list[CountedRowsRecord]
    remarks: list[CountedRowsRecord]
    unchecked: list[Text]
    """What could not be looked for, and why."""
    lengths: list[PartLengthsRecord]
    file_order: FileOrderRecord | None
    algebra: AlgebraRecord | None
    simulation: SimulationRecord | None
    prefix_trees: PrefixTreesRecord | None = None
    """None where rows were not tokenised, or none is usable."""
    advice: AdviceRecord
    notes: list[Text]
    read_s: Annotated[FiniteFloat, Field(ge=0)]
    total_s: Annotated[FiniteFloat, Field(ge=0)]

    @property
    def rows_per_s(self) -> float:
        """Rows read, checked and measured in a second."""
        return self.rows_read / self.read_s if self.read_s else math.inf

    @property
    def noun(self) -> str:
        """What a usable row is called: "pair" where all have two responses."""
        only_pairs = self.algebra is None or [each.responses for each in self.algebra.by_responses] == [2]
        return "pair" if only_pairs else "group"

    @property
    def broken_share(self) -> float:
        """Share of the rows that cannot be packed."""
        return 1 - self.rows_usable / self.rows_read

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if not self.rows_read:
            raise ValueError("no row was read: there is nothing to report")
        if self.rows_usable + sum(violation.rows for violation in self.violations) != self.rows_read:
            raise ValueError(f"{self.rows_usable} usable rows and the violations do not add up to {self.rows_read}")
        measured = (self.algebra, self.simulation)
        if any(part is None for part in measured) != (not self.rows_usable) or bool(self.lengths) != bool(
            self.rows_usable
        ):
            raise ValueError(
                f"{self.rows_usable} usable rows: lengths, costs and plans exist exactly if there are some"
            )
        for lengths in self.lengths:
            counted = sum(each.number for each in lengths.bins)
            if counted < self.rows_usable or (lengths.part in ("prompt", "group") and counted > self.rows_usable):
                raise ValueError(f"the bins of {lengths.part} do not hold all {self.rows_usable} usable groups")
        if self.algebra is not None and sum(each.groups for each in self.algebra.by_responses) != self.rows_usable:
            raise ValueError(f"groups by number of responses do not add up to {self.rows_usable}")
        if self.prefix_trees is not None and self.prefix_trees.groups_sampled > self.rows_usable:
            raise ValueError(f"prefix trees of {self.prefix_trees.groups_sampled} of {self.rows_usable} usable rows")
        cannot = not self.rows_usable or self.broken_share > self.most_broken_share
        if (self.advice.advice == "cannot-be-used") != cannot:
            raise ValueError(
                f"advice {self.advice.advice!r}, but {self.broken_share:.3g} of the rows cannot be packed, "
                f"where {self.most_broken_share:.3g} is the limit"
            )
        return self

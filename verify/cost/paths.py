"""The paths whose cost is measured: how the batch of a step becomes rows, and through which attention it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from reports.cost_record import PathName
from verify.groups import PreferenceGroup
from verify.objective import Preference
from verify.packing_plan.costs import GroupLengths, Work, causal_pairs, packed_work, unpacked_work
from verify.subjects.packed import PackedSubject
from verify.subjects.unshared import PADDED, ROW_PER_SEQUENCE

Role = Literal["unpacked", "packed"]


class Steps(Protocol):
    """A subject that computes its own loss."""

    @property
    def name(self) -> str: ...  # noqa: D102

    def loss(self, model: Any, groups: Sequence[PreferenceGroup], objective: Preference) -> Any: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Fed:
    """What one pass over a batch is fed, and what it has to do with it.

    Args:
        slots: Positions that go through the model, padding included.
        tokens: Those of them that are no padding.
        work: Tokens, attention pairs and predictors that the path computes, padding and masked squares included.
    """

    slots: int
    tokens: int
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way to compute the same step.

    Args:
        name: Name in reports.
        role: "unpacked": nothing is shared, what packing has to beat; or "packed".
        how: Rows and attention, in words.
        subject: Computes the loss; its name is what a parity record calls it.
    """

    name: PathName
    role: Role
    how: str
    subject: Steps

    def not_applicable(self, device_type: str) -> str:
        """Why the path has no training step on a kind of device; "" where it has one."""
        if self.name == "sparse" and device_type != "cuda":
            return f"FlexAttention has no backward pass on {device_type}, so that there is no training step to measure"
        return ""

    def fed(self, groups: Sequence[GroupLengths]) -> Fed:
        """What one pass is fed, by the arithmetic of the layout; a run holds it against what passes the embedding."""
        match self.name:
            case "padded":
                return _padded(groups)
            case "unpadded" | "padding-free":
                return _exact(map(unpacked_work, groups))
            case "dense":
                return _dense(groups)
            case "sparse" | "split":
                return _exact(map(packed_work, groups))


def _exact(works: Iterable[Work]) -> Fed:
    work = sum(works, Work(0, 0, 0))
    return Fed(work.tokens, work.tokens, work)


def _padded(groups: Sequence[GroupLengths]) -> Fed:
    sequences = [length for group in groups for length in group.sequences]
    width, slots = max(sequences), len(sequences) * max(sequences)
    work = Work(slots, len(sequences) * causal_pairs(width), sum(sum(group.responses) for group in groups))
    return Fed(slots, sum(sequences), work)


def _dense(groups: Sequence[GroupLengths]) -> Fed:
    """A row for each group, and in each the whole square: a dense mask throws away what was computed."""
    rows = [group.packed for group in groups]
    width, slots = max(rows), len(rows) * max(rows)
    work = Work(slots, len(rows) * width**2, sum(sum(group.responses) for group in groups))
    return Fed(slots, sum(rows), work)


_ALL: tuple[Path, ...] = (
    Path(
        name="padded",
        role="unpacked",
        how="one batch of all sequences, padded on the right, causal SDPA without a mask",
        subject=PADDED,
    ),
    Path(
        name="unpadded",
        role="unpacked",
        how="a forward call for each sequence, causal SDPA without a mask",
        subject=ROW_PER_SEQUENCE,
    ),
    Path(
        name="padding-free",
        role="unpacked",
        how="all sequences side by side in one row, one causal SDPA call for each",
        subject=PackedSubject(backend="split", segments="block-diagonal"),
    ),
    Path(
        name="dense",
        role="packed",
        how="a row for each pair, padded, SDPA under a dense mask: computes the whole square",
        subject=PackedSubject(backend="dense-sdpa", rows="row-per-group"),
    ),
    Path(
        name="sparse",
        role="packed",
        how="all pairs in one row, FlexAttention with a block mask",
        subject=PackedSubject(backend="flex"),
    ),
    Path(
        name="split",
        role="packed",
        how="all pairs in one row, one SDPA call for each segment over the keys of its path",
        subject=PackedSubject(backend="split"),
    ),
)
PATHS: Mapping[str, Path] = MappingProxyType({path.name: path for path in _ALL})


def paths_named(names: Sequence[str]) -> tuple[Path, ...]:
    """The paths of these names.

    Raises:
        ValueError: An unknown name, one twice, or none.
    """
    for name in names:
        if name not in PATHS:
            raise ValueError(f"unknown path {name!r}: give some of {', '.join(PATHS)}, with commas between them")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--paths {','.join(names)}: give each path once, and at least one")
    return tuple(PATHS[name] for name in names)

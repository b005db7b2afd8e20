"""Model families as GitHub Markdown: how many isolate in which way, then one line a family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.families_overview import measured, reasons, shown, summary
from reports.families_record import OUTCOMES, FamiliesRecord, FamilyRecord
from reports.markdown import escape

_EXPLANATION = """\
Each family is built tiny, with random weights, and is fed short examples one behind the other in a row, `position_ids`
restarted at each. Nothing else tells the library where an example begins.

- **isolated**: other tokens in the first example leave the logits of the second as they are, to the last bit unless
  the cell says "but for rounding" (experts, or kernels that depend on values), and packed log-probs are those of the
  examples alone.
- **LEAKS s**: other tokens in front change the logits. `s` is the contamination score: 1 is as much as if the
  neighbours were part of the prompt.
- **other values s**: other tokens in front change nothing, and yet packed log-probs are not those of the examples
  alone.
- **refused**: an error was raised, which is at the end. **unresolved**: nothing can be said, and why is at the end.

Positions: whether `position_ids` change the logits of a single sequence. **shifted**: they do, and a sequence's own do
not begin at 0, so that restarting at 0 computes something else than a call without them; packed rows are compared with
single sequences that are given positions from 0."""


def render(record: FamiliesRecord) -> str:
    """Render as Markdown.

    Args:
        record: The record.

    Returns:
        A whole document; equal records give equal text.
    """
    return "\n\n".join(_blocks(record)) + "\n"


def _blocks(record: FamiliesRecord) -> Iterable[str]:
    yield "# Model families on packed rows with restarted `position_ids`"
    yield (
        f"{escape(summary(record))}. Of these "
        f"{record.count(record.judged_way, 'isolated')} isolate without a mask and with `use_cache=False`."
    )
    yield _EXPLANATION
    yield "## Ways of calling"
    yield _table(
        ("way", "call", *OUTCOMES),
        [
            (way, f"`{call}`", *(str(record.count(way, outcome)) for outcome in OUTCOMES))
            for way, call in record.ways.items()
        ],
    )
    if found := measured(record):
        yield "## Families"
        yield _table(("family", "class", "positions", "layers", *record.ways), map(_line, found))
    missing = [family for family in record.families if not family.ways]
    if missing:
        yield "## Not measured"
        yield _table(
            ("family", "class", "", "reason"), [(f.model_type, f.architecture, f.state, f.reason) for f in missing]
        )
    if lines := reasons(found):
        yield "## Refused and unresolved"
        yield _table(
            ("family", "ways", "reason"),
            [(family, ", ".join(way.way for way in ways), reason) for family, ways, reason in lines],
        )
    yield (
        f"packparity {escape(record.tool_version)}, {escape(record.created_utc)}, seed {record.seed}, "
        f"{record.total_s:.0f} s: `{' '.join(record.command)}`"
    )


def _line(family: FamilyRecord) -> Sequence[str]:
    kinds = ", ".join(family.layer_kinds)
    return (family.model_type, family.architecture, family.positions or "", kinds, *map(shown, family.ways))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|") if text.startswith("`") else escape(text)

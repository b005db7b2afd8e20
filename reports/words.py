"""How numbers, names and verdicts are worded, in one place for all renderings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from reports.record_names import QuantityName
from reports.record_results import JudgementRecord, PlaceRecord
from reports.record_setting import ModelRecord

NONE = "-"
"""Shown where there is no value."""
NO_REASON = "no reason was recorded"

QUANTITIES: dict[QuantityName, str] = {
    "per_token_logps": "log-probs",
    "ref_per_token_logps": "ref log-probs",
    "router_probs": "router probs",
    "router_shares": "router shares",
    "loss": "loss",
    "rewards": "rewards",
    "margins": "margins",
    "gradients": "gradients",
}

DISTANCES = {"oracle": "oracle", "differential": "unpacked witness"}
"""What a difference is measured to, by kind of budget."""

_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # controls, among them the escape that steers a terminal
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # overrides of the reading direction
    r"|[\ud800-\udfff\ufffe\uffff]"  # what XML refuses
)


def printable(text: str) -> str:
    r"""The text with every character written out that a reader could not see or that would steer a terminal.

    Line breaks and tabs stay. Escape sequences, bidirectional overrides and code points that XML refuses become
    visible, like ``\x1b``.

    Args:
        text: Any text; names come from data and from third parties.

    Returns:
        Text that is valid in XML, HTML and on a terminal.
    """
    return _INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same on one line: a name with a line break in it must not pass for a line of the report."""
    return " ".join(printable(text).split())


def percent(share: float) -> str:
    """A share in percent to two digits; all of it is 100 %."""
    return f"{100 * share:.3g} %" if share >= 0.995 else f"{100 * share:.2g} %"


def number(value: float | None) -> str:
    """A measurement with three significant digits: "0", "0.410", "12.3", "3.20e-6", "NaN", "inf"."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    text = f"{value:#.3g}".rstrip(".") if 1e-3 <= abs(value) < 1e3 else f"{value:.2e}"
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].replace('+', '')}{m[2]}", text)


def precise(value: float) -> str:
    """A value to nine significant digits, as many as a float32 has: two that differ must not look alike."""
    return number(value) if not math.isfinite(value) else f"{value:.9g}"


def count(value: int) -> str:
    """A count with thousands separated by commas."""
    return f"{value:,}"


def seconds(value: float) -> str:
    """A duration, e.g. "41.3 s"."""
    return f"{number(value)} s" if value < 1000 else f"{count(round(value))} s"


def size(num_bytes: int) -> str:
    """A size in memory, e.g. "1.50 GiB"."""
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, 3)
    return f"{num_bytes / 1024**power:.2f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def plural(amount: int, singular: str, several: str = "") -> str:
    """An amount with its noun, e.g. "1 case", "1,024 cases"."""
    return f"{count(amount)} {singular if amount == 1 else several or singular + 's'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def depth(model: ModelRecord) -> str:
    """How much of the published depth was run, e.g. "8 of 28 layers" or "all 28 layers"."""
    if model.num_layers == model.num_layers_published:
        return f"all {plural(model.num_layers, 'layer')}"
    return f"{count(model.num_layers)} of {plural(model.num_layers_published, 'layer')}"


def budget_name(judgement: JudgementRecord) -> str:
    """Which difference was held against which budget, e.g. "log-probs, to the oracle, max"."""
    return f"{QUANTITIES[judgement.quantity]}, to the {DISTANCES[judgement.budget_kind]}, {judgement.statistic}"


def against(judgement: JudgementRecord) -> str:
    """What was measured and what was allowed, e.g. "3.20e-4 against a budget of 6.10e-6 nats"."""
    unit = "nats" if judgement.unit == "nats" else "(relative)"
    if judgement.budget is None or not math.isfinite(judgement.budget):
        return f"{number(judgement.measured)} {unit}, without a finite budget"
    return f"{number(judgement.measured)} against a budget of {number(judgement.budget)} {unit}"


def at(place: PlaceRecord) -> str:
    """Where actual and expected differ most, e.g. "group 0, chosen, token 3 of 7: actual -3.25, expected -3.5"."""
    return f"{place.where}: actual {precise(place.actual)}, expected {precise(place.expected)}"


def setting(value: object) -> str:
    """A setting in words: numbers as they are, text without quotes, lists with commas, null as "none"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(setting(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {setting(item)}" for key, item in value.items()) or "none"
    return repr(value) if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """E.g. "40 s", "4 minutes"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"

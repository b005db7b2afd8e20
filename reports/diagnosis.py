"""What is probably wrong with a subject that failed, in the words that all renderings share."""

from __future__ import annotations

from reports.record_faults import DiagnosisRecord
from reports.words import number

_NAMED = 3
"""Suspects and faults that are named, nearest first."""


def diagnosis_title(diagnosis: DiagnosisRecord) -> str:
    """Whose diagnosis it is and what it was made on."""
    return f"{diagnosis.subject}, {diagnosis.dtype}, diagnosed on case {diagnosis.case}"


def diagnosis_facts(diagnosis: DiagnosisRecord) -> dict[str, str]:
    """Findings by what they are, most telling first; findings that there are not are left out.

    Args:
        diagnosis: A diagnosis.

    Returns:
        Name to text, in a fixed order.
    """
    stages = [f"{s.stage} (distance {number(s.distance)}: {s.because})" for s in diagnosis.stages[:_NAMED]]
    nearest = [f"{f.fault} ({f.stage}, distance {number(f.distance)}): {f.what}" for f in diagnosis.nearest[:_NAMED]]
    facts = {
        "probable stage": "; ".join(stages[:1]),
        "or else": "; ".join(stages[1:]),
        "worst place": diagnosis.worst,
        "what differs": "; ".join(diagnosis.patterns),
        "resembles": " ".join(nearest),
        "first layer that differs": diagnosis.first_layer,
        "odd one out": diagnosis.odd_one_out,
        "reproduction": diagnosis.reproduction,
        "left out": "; ".join(diagnosis.notes),
    }
    return {name: text for name, text in facts.items() if text}

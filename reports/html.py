"""A record as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

from jinja2 import Environment
from markupsafe import Markup

from reports import decisions, detection, diagnosis, exact, facts, fault_picture, overview, picture, words
from reports.page import page_environment
from reports.record import Record
from reports.record_faults import PlantedRecord
from reports.record_results import ResultRecord

_MAX_BLIND_SPOTS = 6


def render(record: Record) -> str:
    """Render as HTML.

    Args:
        record: The record.

    Returns:
        A whole page. Text that comes from the run is escaped; equal records give equal text.
    """
    template = _environment().get_template("report.html.j2")
    return (
        template.render(
            record=record,
            rows=overview.summary_rows(record),
            families=tuple(overview.FAMILIES),
            attention=overview.needs_attention(record),
            left_out=overview.not_applicable(record),
            policy=overview.policy_rows(record.policy),
            depth=words.depth(record.model),
            quantities=words.QUANTITIES,
            distances=words.DISTANCES,
            closing=overview.closing_line(record),
            reasons=overview.run_reasons(record),
            proof=[
                line
                for line in (
                    exact.exact_line(record),
                    decisions.decisions_line(record),
                    *detection.proof_lines(record, _MAX_BLIND_SPOTS),
                )
                if line
            ],
            missed=detection.missed(record),
            check_families=detection.families(record),
            exact_red=[group for group in exact.exact_groups(record) if group.is_red],
            exact_rows=exact.exact_rows(record),
            facts={
                "Model": facts.model_facts(record),
                "Subjects": facts.subject_facts(record),
                "Environment": facts.environment_facts(record),
                "Timing": facts.timing_facts(record),
            },
            data_facts=facts.data_facts(record.data) if record.data else {},
            # Drawn by this package from numbers and its own words only.
            picture=Markup(picture.draw(record)),
            fault_picture=Markup(fault_picture.draw(record)),
        )
        + "\n"
    )


def _environment() -> Environment:
    environment = page_environment()
    environment.filters.update(
        number=words.number,
        count=words.count,
        at=words.at,
        finding=overview.finding,
        speaks_for_itself=overview.speaks_for_itself,
        budget_name=words.budget_name,
        ratio=overview.ratio,
        counts=overview.counts_line,
        broken=overview.broken,
        own_reasons=overview.own_reasons,
        lengths=facts.group_lengths,
        kind=detection.kind,
        margin=detection.margin,
        caught_in=_caught_in,
        diagnosis_title=diagnosis.diagnosis_title,
        diagnosis_facts=diagnosis.diagnosis_facts,
        nearest=_nearest,
        is_over=_is_over,
    )
    return environment


def _nearest(result: ResultRecord) -> float | None:
    nearest = overview.worst([result], tuple(words.QUANTITIES))
    return None if nearest is None else nearest.value


def _caught_in(planted: PlantedRecord, family: str) -> bool:
    """Whether a family of checks caught a fault, for the shade of its cell."""
    return family in planted.caught_by


def _is_over(ratio: float | None) -> bool:
    """Whether a ratio is over its budget; NaN is."""
    return ratio is not None and not ratio <= 1

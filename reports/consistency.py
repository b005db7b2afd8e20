"""What a record must agree with itself about beyond its verdicts: names, the grid of results, versions, what it notes.

A record that was edited by hand is refused where one part of it gives another away. It is no proof against forgery: see
docs/checks.md for what an edit can still hide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.record import Record
from reports.record_names import CaseKind
from reports.record_setting import CaseRecord

# In the words of verify.proof_of_life.
PLANTED_NOTE = re.compile(r"faults planted in this run: (\d+)")
HIDDEN = "planted and within budget: "
_OBJECTIVES_BEFORE_4 = ("sigmoid", "sft-token-mean", "sft-example-mean")


def inconsistencies(record: Record) -> Iterator[str]:
    """Where parts of a record contradict each other.

    Args:
        record: Whose parts are each sound.

    Yields:
        One sentence for each contradiction; none for a record as a run writes it.
    """
    yield from _unknown_names(record)
    yield from _gaps(record)
    yield from _cases_not_taken(record)
    yield from _planted_against_notes(record)
    if (later := _later_than_its_version(record)) is not None:
        yield f"schema_version is {record.schema_version}, but the record holds {later}"


def kind_of(case: CaseRecord) -> CaseKind:
    """Of which kind a case is, by its objective and its groups."""
    if case.objective.startswith("sft-"):
        return "examples"
    pairs = all(len(g.positives) == len(g.negatives) == 1 and g.supervised is None for g in case.groups)
    return "pairs" if pairs else "groups"


def _unknown_names(record: Record) -> Iterator[str]:
    """Parts about a case or a subject that the record does not have; exact checks bring cases of their own."""
    cases, subjects = {case.name for case in record.cases}, {subject.name for subject in record.subjects}
    in_cases = [("a result", result.case) for result in record.results]
    in_cases += [(f"planted fault {planted.fault}", case) for planted in record.planted for case in planted.cases]
    of_subjects = [("a result", result.subject) for result in record.results]
    of_subjects += [("a summary", summary.subject) for summary in record.summaries]
    of_subjects += [(f"exact check {check.check}", check.subject) for check in record.exact_checks]
    of_subjects += [("a diagnosis", diagnosis.subject) for diagnosis in record.diagnoses]
    yield from (
        f"{what} is of case {name}, which is not among the cases" for what, name in in_cases if name not in cases
    )
    yield from (
        f"{what} is of subject {name}, which is not among the subjects"
        for what, name in of_subjects
        if name not in subjects
    )


def _gaps(record: Record) -> Iterator[str]:
    """A run judges every subject on every case in every dtype, if only to say that it does not apply."""
    dtypes = dict.fromkeys(summary.dtype for summary in record.summaries)
    summaries = Counter((summary.subject, summary.dtype) for summary in record.summaries)
    wanted = Counter(product((subject.name for subject in record.subjects), dtypes))
    for subject, dtype in summaries | wanted:
        if summaries[subject, dtype] != wanted[subject, dtype]:
            yield _instead(summaries[subject, dtype], "summaries", f"{subject} in {dtype}", wanted[subject, dtype])
            return
    results = Counter((result.subject, result.dtype, result.case) for result in record.results)
    grid = Counter((*of, case.name) for of in summaries.elements() for case in record.cases)
    for subject, dtype, case in results | grid:
        found, expected = results[subject, dtype, case], grid[subject, dtype, case]
        if found != expected:
            yield _instead(found, "results", f"{subject} in {dtype} on case {case}", expected)
            return


def _instead(found: int, what: str, of: str, expected: int) -> str:
    return f"the record holds {found} {what} of {of}, where its subjects, dtypes and cases ask for {expected}"


def _cases_not_taken(record: Record) -> Iterator[str]:
    """Values compared on a kind of case that the subject does not take."""
    kinds = {case.name: kind_of(case) for case in record.cases}
    takes = {subject.name: subject.takes for subject in record.subjects}
    for result in record.results:
        kind = kinds.get(result.case)
        if result.num_compared and kind is not None and kind not in takes.get(result.subject, (kind,)):
            yield f"{result.subject} was judged on case {result.case}, which is of {kind}, and takes no such case"


def _planted_against_notes(record: Record) -> Iterator[str]:
    """Each fault that a note says was planted is there, or was hidden by rounding, which a blind spot names."""
    noted = sum(int(note[1]) for note in map(PLANTED_NOTE.match, record.notes) if note)
    hidden = (spot.why.removeprefix(HIDDEN).split(", ") for spot in record.blind_spots if spot.why.startswith(HIDDEN))
    planted = {planted.fault for planted in record.planted} | {name for names in hidden for name in names}
    if noted and len(planted) != noted:
        yield (
            f"a note says that {noted} faults were planted, but the record holds {len(planted)} of them, "
            "those that rounding hid included"
        )


def _later_than_its_version(record: Record) -> str | None:
    """Something that records of this version did not have yet."""
    version = record.schema_version
    if version < 2 and (record.exact_checks or record.planted or record.blind_spots or record.diagnoses):
        return "exact checks, planted faults, blind spots or diagnoses"
    if version < 3 and any(subject.takes != ["pairs"] for subject in record.subjects):
        return "a subject that takes more than pairs"
    if version < 3 and (others := [case.name for case in record.cases if kind_of(case) != "pairs"]):
        return f"case {others[0]}, which is none of pairs"
    if version < 4 and any(result.decisions is not None for result in record.results):
        return "decisions"
    objectives = [case.objective for case in record.cases]
    objectives += [objective for subject in record.subjects for objective in subject.objectives]
    if version < 4 and (others := [name for name in objectives if name not in _OBJECTIVES_BEFORE_4]):
        return f"the objective {others[0]}"
    if version < 5 and "reward-model" in objectives:
        return "a reward model"
    if version < 5 and record.model.expected_by != "oracle":
        return f"expectations of {record.model.expected_by}"
    if version < 5 and record.model.train != "lora":
        return "a model whose every weight is trained"
    if version < 5 and any(summary.dtype == "autocast-bfloat16" for summary in record.summaries):
        return "autocast"
    if version < 5 and (over := [case.name for case in record.cases if case.reference]):
        return f"case {over[0]} over a frozen policy of its own"
    if version < 5 and any(result.slots and result.slots.pairwise_images for result in record.results):
        return "images"
    if version < 5 and record.model_with_images is not None:
        return "a second model"
    return None

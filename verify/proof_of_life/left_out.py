"""What a run would not have seen since it has no cases of it, or did not run the exact checks that see it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from reports.record_faults import BlindSpotRecord
from reports.words import listed
from verify.faults.catalogue import (
    FAULTS,
    FAULTS_OF_IMAGES,
    FAULTS_OF_OBJECTIVES,
    FAULTS_OF_REFERENCES,
    FAULTS_OF_REWARDS,
)
from verify.faults.fault import Fault
from verify.gate import GateRequest
from verify.objective import RewardModel
from verify.proof_of_life.kinds import concerning, kinds_of

_OF_OTHER_CASES: Mapping[str, tuple[Fault, ...]] = {
    "faults of other preference objectives": FAULTS_OF_OBJECTIVES,
    "faults of other frozen policies": FAULTS_OF_REFERENCES,
    "faults of reward models": FAULTS_OF_REWARDS,
    "faults of images in prompts": FAULTS_OF_IMAGES,
}
"""What takes cases of its own, which a run has with ``--full`` or where it is asked for."""


def left_out(request: GateRequest, exact_checks: Collection[str]) -> Iterator[BlindSpotRecord]:
    """Kinds of fault that a run leaves out.

    A run of a reward model is about rewards alone: what else there is it is not asked.

    Args:
        request: The run.
        exact_checks: Names of the exact checks that were put to some subject.

    Yields:
        One blind spot for each kind of case that is not there, and one for the exact checks that were not run.
    """
    kinds = kinds_of(request.subjects)
    for what, group in _OF_OTHER_CASES.items():
        faults = [fault for fault in concerning(group, kinds) if request.model.train in fault.trains]
        unseen = [fault.name for fault in faults if not any(fault.bites(case) for case in request.cases)]
        if unseen and not isinstance(request.objective, RewardModel):
            yield BlindSpotRecord(what=what, why="the run has no case of them", faults=unseen)
    seen_by = {"parity", "packed-ran", *exact_checks}
    alone = [
        fault
        for fault in concerning(FAULTS, kinds)
        if request.model.train in fault.trains and not seen_by & {*fault.must_kill}
    ]
    if alone:
        checks = listed(list(dict.fromkeys(check for fault in alone for check in fault.must_kill)))
        yield BlindSpotRecord(
            what="faults that no value of a case shows",
            why=f"not run, of the exact checks that see them: {checks}",
            faults=[fault.name for fault in alone],
        )

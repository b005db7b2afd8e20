"""How often the right stage is named first: every planted fault treated as an unknown subject.

Signatures are taken on the case of the subject itself, so a fault that is in the catalogue finds itself at distance 0,
which shows nothing. What is measured is leave-one-out: the fault is taken out of the catalogue first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from verify.cases import CASE_KINDS, Case, CaseKind
from verify.diagnosis.cases import diagnostic_cases, kinds_to_try
from verify.diagnosis.diagnose import Diagnosis, Diagnostician
from verify.faults.catalogue import FAULTS
from verify.faults.fault import Fault
from verify.faults.stages import StageName
from verify.subjects.faulty import FaultySubject


@dataclass(frozen=True, slots=True)
class Attribution:
    """One unknown subject: the stage that is wrong, and what the diagnosis said.

    Args:
        name: Name of the fault or subject.
        stage: The stage that is wrong.
        diagnosis: What was found.
    """

    name: str
    stage: StageName
    diagnosis: Diagnosis

    @property
    def named(self) -> str:
        """The stage that was named first, "" where none was."""
        return self.diagnosis.suspects[0].stage if self.diagnosis.suspects else ""

    @property
    def place(self) -> int:
        """Place of the right stage among the suspects, from 1; 0 where it is not among them."""
        stages = [suspect.stage for suspect in self.diagnosis.suspects]
        return stages.index(self.stage) + 1 if self.stage in stages else 0

    @property
    def right(self) -> bool:
        """Whether the right stage was named first."""
        return self.place == 1


def leave_one_out(
    diagnostician: Diagnostician,
    cases: Sequence[Case],
    *,
    faults: Sequence[Fault] = FAULTS,
    kinds: Sequence[CaseKind] = CASE_KINDS,
    progress: Callable[[str], None] = lambda name: None,
) -> Iterator[Attribution]:
    """Diagnose each fault with a catalogue that does not hold it.

    Faults that change no value, and are found by counting slots, are left out: nobody is FAIL because of them.

    Args:
        diagnostician: Model, dtype and objective.
        cases: Cases for faults that do not bite on a diagnostic one; the smallest that fits is taken.
        faults: Which ones.
        kinds: Kinds of case, in the order in which they are tried; faults that are not planted on any, or bite on no
            case of them but may on one of another kind, are left out.
        progress: Called with each name.

    Yields:
        One attribution per fault.

    Raises:
        ValueError: A fault that bites on no case at all.
    """
    vocab_size = int(diagnostician.bench.model.get_input_embeddings().num_embeddings)
    for fault in faults:
        planted_on = [kind for kind in kinds if kind in fault.kinds]
        if "parity" not in fault.must_kill or not planted_on:
            continue
        progress(fault.name)
        failing = _failing(fault, planted_on, cases, vocab_size, diagnostician.bench.seed)
        if not failing:
            if set(fault.kinds) <= set(kinds):
                raise ValueError(f"fault {fault.name} bites on none of {', '.join(case.name for case in cases)}")
            continue
        found = diagnostician.diagnose(FaultySubject(mutation=fault), failing, without=frozenset({fault.name}))
        yield Attribution(fault.name, fault.stage, found)


def _failing(fault: Fault, kinds: Sequence[CaseKind], cases: Sequence[Case], vocab_size: int, seed: int) -> list[Case]:
    """The smallest case of the first kind on which a fault bites; the diagnostic one where there is no other."""
    for kind in kinds:
        made, _ = diagnostic_cases(vocab_size, seed, kinds_to_try([], [kind]))
        others = sorted((case for case in cases if case.kind == kind), key=lambda case: case.pairwise_slots)
        biting = [case for case in (*others, *made) if fault.bites(case)]
        if biting:
            return biting[:1]
    return []

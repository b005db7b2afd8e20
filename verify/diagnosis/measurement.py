"""How often the right stage is named first: every planted fault treated as an unknown subject.

Signatures are taken on the case of the subject itself, so a fault that is in the catalogue finds itself at distance 0,
which shows nothing. What is measured is leave-one-out: the fault is taken out of the catalogue first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from verify.cases import Case
from verify.diagnosis.cases import diagnostic_case
from verify.diagnosis.diagnose import Diagnosis, Diagnostician
from verify.diagnosis.study import plantable
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
    progress: Callable[[str], None] = lambda name: None,
) -> Iterator[Attribution]:
    """Diagnose each fault with a catalogue that does not hold it.

    Faults that change no value, and are found by counting slots, are left out: nobody is FAIL because of them.

    Args:
        diagnostician: Model, dtype and objective.
        cases: Cases for faults that do not bite on the diagnostic one; the smallest that fits is taken.
        faults: Which ones.
        progress: Called with each name.

    Yields:
        One attribution per fault.

    Raises:
        ValueError: A fault that bites on no case.
    """
    vocab_size = int(diagnostician.bench.model.get_input_embeddings().num_embeddings)
    made = diagnostic_case(vocab_size, diagnostician.bench.seed)
    for fault in faults:
        if "parity" not in fault.must_kill:
            continue
        progress(fault.name)
        biting = sorted((case for case in cases if fault.bites(case)), key=lambda case: case.pairwise_slots)
        if not biting and (made is None or not plantable([fault], made)):
            raise ValueError(f"fault {fault.name} bites on none of {', '.join(case.name for case in cases)}")
        found = diagnostician.diagnose(FaultySubject(mutation=fault), biting[:1], without=frozenset({fault.name}))
        yield Attribution(fault.name, fault.stage, found)

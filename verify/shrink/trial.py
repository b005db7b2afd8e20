"""One trial: the whole gate on one candidate, with budgets from the candidate's own noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from verify.gate import GateRequest, run_gate
from verify.model_holder import LeftBehindError
from verify.shrink.candidate import Candidate
from verify.shrink.failure import CLEARLY, Failure, failure_of
from verify.subject import Subject


@dataclass(frozen=True, slots=True)
class Trials:
    """What every trial of one shrinking shares.

    Args:
        request: The run that failed; its objective, policy, variations and seed count.
        subject: The subject that failed.
        dtype: The dtype in which it failed.
    """

    request: GateRequest
    subject: Subject
    dtype: str

    def failure(self, candidate: Candidate, *, at_least: float = CLEARLY) -> Failure | None:
        """How the subject fails on a candidate, or None: a trial that raises or proves nothing is no failure.

        Raises:
            LeftBehindError: The subject changed what every model computes: no later trial means anything.
        """
        request = replace(
            self.request,
            model=candidate.model,
            dtypes=(self.dtype,),
            subjects=(self.subject,),
            cases=(candidate.case,),
        )
        try:
            (result,) = run_gate(request, lambda done, total, text: None).results
        except LeftBehindError:
            raise
        except Exception:  # a shape that something cannot compute, whatever it raises there
            return None
        return failure_of(result, at_least=at_least)

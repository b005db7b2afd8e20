"""One subject on one model, for all checks: passes that several of them need are run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.checks.cases import CheckCases
from verify.checks.yardsticks import Yardsticks
from verify.groups import PreferenceGroup
from verify.model_state import seed_torch
from verify.objective import DpoSigmoid
from verify.observation import to_float64
from verify.subject import Subject, SubjectError, check_logps, said_by
from verify.tolerance import Policy

Groups = tuple[PreferenceGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all subjects of one dtype share.

    Args:
        dtype: Name of the dtype.
        objective: beta and label smoothing.
        policy: Factors and floors of budgets.
        seed: Seed of torch's generator before each pass.
        cases: The cases.
        yardsticks: What the unpacked path measured on them.
    """

    dtype: str
    objective: DpoSigmoid
    policy: Policy
    seed: int
    cases: CheckCases
    yardsticks: Yardsticks


class Bench:
    """A subject and the model that it is put to the checks on.

    Args:
        subject: The subject.
        model: The PEFT-wrapped model of the run.
        setting: What all subjects share.
    """

    def __init__(self, subject: Subject, model: Any, setting: Setting) -> None:
        self.subject, self.model, self.setting = subject, model, setting
        self._logps: dict[Groups, tuple[Tensor, ...]] = {}

    def logps(self, groups: Groups) -> tuple[Tensor, ...]:
        """Log-probs of every completion, float64 on the CPU; each input is run once.

        Raises:
            SubjectError: The subject raised, or what it returned is no log-probs.
        """
        if groups not in self._logps:
            self._logps[groups] = self.run_logps(groups)
        return self._logps[groups]

    def run_logps(self, groups: Groups, model: Any = None, *, seeded: bool = True) -> tuple[Tensor, ...]:
        """The same, run now; on another model where one is given, with random numbers as they come if not seeded."""
        on = self.model if model is None else model
        with torch.no_grad():
            logps = self.call(lambda: self.subject.per_token_logps(on, groups), seeded=seeded)
        checked = check_logps(logps, groups, subject=self.subject.name, differentiable=False)
        return tuple(map(to_float64, checked))

    def call(self, work: Callable[[], Any], *, seeded: bool = True) -> Any:
        """Run the subject's own code, by default with seeded random numbers.

        Raises:
            SubjectError: It raised whatever it raised.
        """
        if seeded:
            seed_torch(self.setting.seed)
        try:
            return work()
        except (SubjectError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a script that exits must not end the run with its own status
            raise SubjectError(f"subject {self.subject.name} raised {said_by(error)}") from error

    def drop_gradients(self) -> None:
        """Forget the gradients that a backward pass left on the model's parameters."""
        for parameter in self.model.parameters():
            parameter.grad = None


def flat(logps: Sequence[Tensor]) -> Tensor:
    """All completions as one vector, in completion order."""
    return torch.cat(list(logps))

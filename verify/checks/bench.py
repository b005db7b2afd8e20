"""One subject on one model, for all checks: passes that several of them need are run once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from verify.cases import Case
from verify.checks.cases import CheckCases
from verify.checks.embedded import embedded_ids
from verify.checks.training_yardsticks import TrainingYardsticks
from verify.checks.yardsticks import Yardsticks
from verify.groups import PreferenceGroup
from verify.model_state import seed_torch
from verify.objective import REWARD_MODEL, Objective, Preference, RewardModel, RunObjective, Sft, objective_named
from verify.returned_values import backward_done, check_logps, check_loss, check_rewards
from verify.subject import Subject, SubjectError, computes_loss, said_by
from verify.supervised_values import supervised_logps
from verify.tolerance import Policy
from verify.trained_gradients import to_float64, trained_gradients

Groups = tuple[PreferenceGroup, ...]
_T = TypeVar("_T")


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
        training: What it measured in training.
    """

    dtype: str
    objective: RunObjective
    policy: Policy
    seed: int
    cases: CheckCases
    yardsticks: Yardsticks
    training: TrainingYardsticks


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnLoss:
    """What a subject's own loss returned, float64 on the CPU.

    Args:
        loss: In nats.
        rewards: One per completion; none under SFT.
        logps: Log-probs of all tokens, one vector per completion; None where they did not come with the loss.
        refs: The same of the reference; None without one.
        epsilon: Of the narrowest dtype among float32 and those of the log-probs, or of a reward model's rewards.
        gradients: Of every LoRA tensor; None where they were not asked for.
        fed: Token ids that passed the embedding, one tensor for each of its calls.
    """

    loss: float
    rewards: Tensor
    logps: tuple[Tensor, ...] | None
    refs: tuple[Tensor, ...] | None
    epsilon: float
    gradients: Mapping[str, Tensor] | None
    fed: tuple[Tensor, ...]


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
        self._losses: dict[tuple[Groups, Objective], OwnLoss] = {}
        self._known: dict[Hashable, Any] = {}
        self._fed: dict[Groups, tuple[Tensor, ...]] = {}

    def objective_of(self, case: Case) -> Objective:
        """The objective of a case, with the parameters of the run."""
        return objective_named(case.objective_name, self.setting.objective)

    def once(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """What work gives, done for the first check that asks for it."""
        if key not in self._known:
            self._known[key] = work()
        known: _T = self._known[key]
        return known

    def logps(self, groups: Groups) -> tuple[Tensor, ...]:
        """Log-probs of the supervised tokens of every completion, float64 on the CPU; each input is run once.

        Raises:
            SubjectError: The subject raised, or what it returned is no log-probs.
        """
        if groups not in self._logps:
            with embedded_ids(self.model) as fed:
                self._logps[groups] = self.run_logps(groups)
            self._fed[groups] = tuple(fed)
        return self._logps[groups]

    def run_logps(self, groups: Groups, model: Any = None, *, seeded: bool = True) -> tuple[Tensor, ...]:
        """The same, run now; on another model where one is given, with random numbers as they come if not seeded."""
        on = self.model if model is None else model
        with torch.no_grad():
            logps = self.call(lambda: self.subject.per_token_logps(on, groups), seeded=seeded)
        checked = check_logps(logps, groups, subject=self.subject.name, differentiable=False)
        return supervised_logps(tuple(map(to_float64, checked)), groups)

    def rewards(self, groups: Groups) -> Tensor:
        """Rewards of every completion by a reward model, float64 on the CPU; each input is run once.

        Raises:
            SubjectError: The subject raised, or what it returned is no rewards.
        """
        return self.once(("rewards", groups), lambda: self.run_rewards(groups))

    def run_rewards(self, groups: Groups, *, seeded: bool = True) -> Tensor:
        """The same, run now, by the subject's own loss where it has one of reward models."""
        if computes_loss(self.subject, REWARD_MODEL):
            return self.run_own_loss(groups, RewardModel(), seeded=seeded).rewards
        with torch.no_grad():
            rewards = self.call(lambda: self.subject.rewards(self.model, groups), seeded=seeded)  # type: ignore[attr-defined]
        checked = check_rewards(rewards, groups, subject=self.subject.name, differentiable=False)
        return to_float64(torch.stack(checked))

    def fed(self, groups: Groups) -> tuple[Tensor, ...]:
        """Token ids that passed the embedding for log-probs of these groups, one tensor for each of its calls."""
        self.logps(groups)
        return self._fed[groups]

    def own_loss(self, groups: Groups, objective: Objective, *, gradients: bool = False) -> OwnLoss:
        """The subject's own loss; each input is run once, and once more where gradients are asked for later.

        Raises:
            SubjectError: The subject raised, or what it returned is no loss.
        """
        known = self._losses.get((groups, objective))
        if known is None or (gradients and known.gradients is None):
            known = self._losses[groups, objective] = self.run_own_loss(groups, objective, gradients=gradients)
        return known

    def run_own_loss(
        self, groups: Groups, objective: Objective, *, gradients: bool = False, seeded: bool = True
    ) -> OwnLoss:
        """The same, run now."""
        name, is_sft = self.subject.name, isinstance(objective, Sft)
        with torch.set_grad_enabled(gradients):
            with embedded_ids(self.model) as fed:
                output = self.call(lambda: self.subject.loss(self.model, groups, objective), seeded=seeded)  # type: ignore[attr-defined]
            num_rewards = 0 if is_sft else sum(len(group.completions) for group in groups)
            loss, rewards = check_loss(output, subject=name, num_completions=num_rewards, differentiable=gradients)
            done = backward_done(output, name)
            of_tensors = None
            if gradients:
                of_tensors = self.call(lambda: trained_gradients(loss, self.model, done=done), seeded=False)
        if gradients or done:
            self.drop_gradients()
        given = [
            None if isinstance(objective, RewardModel) else getattr(output, "per_token_logps", None),
            getattr(output, "ref_per_token_logps", None) if isinstance(objective, Preference) else None,
        ]
        checked = [
            None if part is None else check_logps(part, groups, subject=name, differentiable=False) for part in given
        ]
        dtypes = {torch.float32, *(logp.dtype for part in checked if part is not None for logp in part)}
        if isinstance(objective, RewardModel):  # what its loss is computed from
            dtypes |= {reward.dtype for reward in output.rewards if isinstance(reward, Tensor)}
        logps, refs = (None if part is None else tuple(map(to_float64, part)) for part in checked)
        return OwnLoss(
            loss=float(loss.detach()),
            rewards=rewards,
            logps=logps,
            refs=refs,
            epsilon=max(float(torch.finfo(dtype).eps) for dtype in dtypes),
            gradients=of_tensors,
            fed=tuple(fed),
        )

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

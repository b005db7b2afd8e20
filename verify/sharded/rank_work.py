"""What a rank does for a subject: losses of groups by their places, and what was seen of each group on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from verify.checks.shares import weight_of
from verify.frozen_policy import CachedLogps
from verify.groups import PreferenceGroup
from verify.objective import Objective, Preference, RewardModel, Sft
from verify.passes import reference_logps
from verify.returned_values import backward_done, check_logps, check_loss, check_rewards
from verify.sharded.alone import alone, is_sharded
from verify.sharded.board import is_broken_collective
from verify.sharded.models import nothing_is_computed
from verify.slots import count_slots
from verify.subject import Subject, SubjectError, computes_loss, owns_loss, said_by
from verify.subjects.oracle import apply_objective
from verify.subjects.sharded import RankWork
from verify.supervised_values import supervised_logps
from verify.trained_gradients import to_float64

DUMMY_GROUP = PreferenceGroup((0,), ((0,),), ((1,),))
DUMMY_EXAMPLE = PreferenceGroup((0,), ((0,),))

Table = Sequence[tuple[Tensor, ...]]
"""Cached log-probs of the frozen policy: for each group of the data one tensor per completion."""


class NotShardedError(Exception):
    """A subject that cannot be run sharded, with the reason."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SeenGroup:
    """What a rank computed of a group: float64 on the CPU, supervised tokens only.

    Args:
        logps: Policy log-probs, one tensor per completion; empty under a reward model.
        ref_logps: Of the frozen policy; empty under an objective without one.
        rewards: Of each completion; empty under an objective without rewards.
        loss: Of the micro-batch that the group was in.
    """

    logps: tuple[Tensor, ...]
    ref_logps: tuple[Tensor, ...]
    rewards: Tensor
    loss: float


@dataclass(slots=True)
class SubjectOnRank:
    """A subject on a model, for the groups of a batch.

    Args:
        subject: The subject.
        model: The model, sharded or whole.
        groups: All groups of the batch.
        objective: The objective.
        table: Cached values of the frozen policy, in the order of the data; None where it is run.
        dummy_factor: What the value of dummy calls is multiplied by; infinity shows that they are thrown away.
        seen: What was computed of each group, by its place; a list, since a group may be computed twice.
    """

    subject: Subject
    model: Any
    groups: Sequence[PreferenceGroup]
    objective: Objective
    table: Table | None = None
    dummy_factor: float = 1.0
    seen: dict[int, list[SeenGroup]] = field(default_factory=dict)

    @property
    def work(self) -> RankWork:
        """The subject as the sharded step calls it."""
        return RankWork(loss_of=self.loss_of, num_units=self.num_units, dummy=self.dummy)

    @property
    def _dummy_group(self) -> PreferenceGroup:
        return DUMMY_EXAMPLE if isinstance(self.objective, Sft) else DUMMY_GROUP

    def num_units(self, places: Sequence[int]) -> int:
        """Units of some groups."""
        return weight_of(self.objective.name, [self.groups[place] for place in places])

    def loss_of(self, places: Sequence[int], reference_places: Sequence[int]) -> Tensor:
        """The mean loss of some groups; what was computed of them is kept."""
        groups = [self.groups[place] for place in places]
        objective = self.objective
        if self.table is not None:
            objective = with_cached(objective, groups, [self.table[place] for place in reference_places])
        loss, rewards, logps, refs = self._run(groups, objective)
        self._keep(places, float(loss.detach()), rewards, logps, refs)
        return loss

    def dummy(self) -> Tensor:
        """A differentiable value of a call like any other."""
        group, objective = self._dummy_group, self.objective
        if self.table is not None:
            objective = with_cached(objective, [group], [(torch.zeros(1), torch.zeros(1))])
        return self._run([group], objective)[0] * self.dummy_factor

    def _run(
        self, groups: Sequence[PreferenceGroup], objective: Objective
    ) -> tuple[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """Loss, rewards and log-probs of the policy and of the frozen one; a SubjectError for whatever is raised."""
        try:
            with nullcontext() if is_sharded(self.model) else alone():
                return self._call(groups, objective)
        except (SubjectError, NotShardedError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a script that exits must not end its rank without a word
            if is_broken_collective(error):  # which another rank is to blame for
                raise
            raise SubjectError(f"subject {self.subject.name} raised {said_by(error)}") from error

    def _call(
        self, groups: Sequence[PreferenceGroup], objective: Objective
    ) -> tuple[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]]:
        subject, name, learns = self.subject, self.subject.name, torch.is_grad_enabled()
        if isinstance(objective, RewardModel) and not computes_loss(subject, objective.name):
            given = subject.rewards(self.model, groups)  # type: ignore[attr-defined]
            values = apply_objective(
                check_rewards(given, groups, subject=name, differentiable=learns), (), groups, objective
            )
            return values.loss, values.rewards.detach(), (), ()
        compares = isinstance(objective, Preference)
        if owns_loss(subject):
            output = subject.loss(self.model, groups, objective)  # type: ignore[attr-defined]
            if backward_done(output, name):
                raise NotShardedError(
                    "its loss runs backward itself, so that a rank's share of the global mean cannot be put on it"
                )
            num_rewards = 0 if isinstance(objective, Sft) else sum(len(group.completions) for group in groups)
            loss, rewards = check_loss(output, subject=name, num_completions=num_rewards, differentiable=learns)
            policy, refs = (getattr(output, kind, None) for kind in ("per_token_logps", "ref_per_token_logps"))
            if isinstance(objective, RewardModel) or policy is None or (compares and refs is None):
                return loss, rewards, (), ()
            policy = check_logps(policy, groups, subject=name, differentiable=False)
            refs = check_logps(refs, groups, subject=name, differentiable=False) if compares else ()
            return loss, rewards, policy, refs
        refs = ()
        if isinstance(objective, Preference):
            given = reference_logps(subject, self.model, groups, objective.reference)
            refs = tuple(
                ref.clone() for ref in check_logps(given, groups, subject=name, differentiable=False)
            )  # a subject may write its next result into the same buffers
        policy = check_logps(subject.per_token_logps(self.model, groups), groups, subject=name, differentiable=learns)
        values = apply_objective(policy, refs, groups, objective)
        return values.loss, values.rewards.detach(), policy, refs

    def _keep(
        self, places: Sequence[int], loss: float, rewards: Tensor, logps: Sequence[Tensor], refs: Sequence[Tensor]
    ) -> None:
        start = 0
        for place in places:
            group = self.groups[place]
            stop = start + len(group.completions)
            seen = SeenGroup(
                logps=supervised_logps([to_float64(logp) for logp in logps[start:stop]], [group]) if logps else (),
                ref_logps=supervised_logps([to_float64(logp) for logp in refs[start:stop]], [group]) if refs else (),
                rewards=to_float64(rewards[start:stop]),
                loss=loss,
            )
            self.seen.setdefault(place, []).append(seen)
            start = stop

    def see_logps(self, places: Sequence[int]) -> None:
        """Add the log-probs of groups of which the subject's own loss returned none; no gradients are needed."""
        groups = [self.groups[place] for place in places]
        with torch.no_grad():
            logps, refs = self._logps(groups)
        start = 0
        for place, group in zip(places, groups, strict=True):
            stop = start + len(group.completions)
            last = self.seen[place][-1]
            self.seen[place][-1] = replace(
                last,
                logps=supervised_logps(logps[start:stop], [group]),
                ref_logps=supervised_logps(refs[start:stop], [group]) if refs else (),
            )
            start = stop

    def dummy_logps(self) -> None:
        """Passes like those of ``see_logps``, for nothing."""
        with torch.no_grad():
            self._logps([self._dummy_group])

    def _logps(self, groups: Sequence[PreferenceGroup]) -> tuple[list[Tensor], list[Tensor]]:
        name, refs = self.subject.name, list[Tensor]()
        if isinstance(self.objective, Preference):
            given = reference_logps(self.subject, self.model, groups, self.objective.reference)
            refs = list(map(to_float64, check_logps(given, groups, subject=name, differentiable=False)))
        policy = check_logps(
            self.subject.per_token_logps(self.model, groups), groups, subject=name, differentiable=False
        )
        return list(map(to_float64, policy)), refs


def with_cached(objective: Objective, groups: Sequence[PreferenceGroup], values: Table) -> Objective:
    """The objective with cached values as the frozen policy.

    A cache is read by place. Where it gives the values of another group, whose completions have other lengths or
    another number, each completion gets a sum that stands there, as a cache of sums would give it.

    Args:
        objective: A preference objective.
        groups: The groups.
        values: What the cache gives for each.

    Returns:
        The same objective with another frozen policy.
    """
    if not isinstance(objective, Preference):
        return objective
    known = {}
    for group, cached in zip(groups, values, strict=True):
        for number, completion in enumerate(group.completions):
            value = cached[number % len(cached)]
            if len(value) != len(completion):
                value = (value.sum() / len(completion)).expand(len(completion))
            known[group.prompt_ids, group.images, completion] = value
    return replace(objective, reference=CachedLogps(nothing_is_computed, known))


def forward_calls(subject: SubjectOnRank, places: Sequence[int]) -> int:
    """Forward calls that the step makes for some groups, counted on a model; of a dummy call where there are none.

    Args:
        subject: The subject on a whole model: a sharded one would wait for other ranks.
        places: The groups.

    Returns:
        The number of calls.

    Raises:
        SubjectError: As the step.
        NotShardedError: As the step.
    """
    with torch.enable_grad(), count_slots(subject.model) as count:
        if places:
            subject.loss_of(places, places)
        else:
            subject.dummy()
    return count.forward_calls

"""What ``packparity check`` refuses before any work: options, subjects and cases that do not go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verify.cases import Case
from verify.groups import check_token_ids
from verify.images import check_format
from verify.models.vision import image_format
from verify.objective import REWARD_MODEL
from verify.router_balance import experts_per_token
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.training import TrainName, check_reference, references_under

if TYPE_CHECKING:
    from verify.check_request import CheckOptions


def refuse_what_does_not_go_together(options: CheckOptions) -> None:
    """Refuse options that exclude each other, or that go with one that was not given."""
    if options.shrink and options.out is None:
        raise ValueError("--shrink goes with --out DIR: that is where the reproduction is written")
    check_reference(options.train, options.frozen_policy)
    if options.reference not in (None, "adapters-off") and options.objective == REWARD_MODEL:
        raise ValueError(f"--reference {options.reference}: {REWARD_MODEL} has no frozen policy")


def check_routers(options: CheckOptions, config: Any, cases: Sequence[Case]) -> None:
    """Refuse the loss of routers where there are none, where no case has it, and where it is not judged."""
    if options.router_loss is None:
        return
    if not experts_per_token(config):
        raise ValueError(
            f"--router-loss {options.router_loss}: a model of type {config.model_type} has no routers whose load "
            "balancing loss the oracle knows, and nothing else would vouch for that of the unpacked path; give a "
            "Qwen3-MoE, e.g. --model tiny-qwen3-moe"
        )
    if all(case.objective_name == REWARD_MODEL for case in cases):
        raise ValueError(
            f"--router-loss {options.router_loss}: every case is of a {REWARD_MODEL}, which has none; name another case"
        )


def check_planted_fit(subjects: Sequence[Subject], train: TrainName, *, router_loss: bool, window: int | None) -> None:
    """Refuse faults that sit where the step of the run has nothing: they would pass as harmless, or not run."""
    for subject in subjects:
        mutation = subject.mutation if isinstance(subject, FaultySubject) else None
        if mutation is not None and train not in mutation.trains:
            raise ValueError(f"--subject {subject.name} with --train {train}: it is a fault under {mutation.trains[0]}")
        if mutation is not None and mutation.of_routers and not router_loss:
            raise ValueError(f"--subject {subject.name}: it is a fault of the loss of routers; give --router-loss too")
        if mutation is not None and mutation.of_windows and window is None:
            raise ValueError(
                f"--subject {subject.name}: it is a fault of a sliding window, which no layer of this model has; "
                "give one that has, e.g. --model tiny-mistral"
            )


def check_cases_fit(cases: Sequence[Case], config: Any, no_oracle: str, train: TrainName) -> None:
    """Refuse cases that the model cannot run: tokens, images, frozen policies, and reward models without an oracle."""
    images = image_format(config)
    if no_oracle and (of_rewards := [case.name for case in cases if case.objective_name == REWARD_MODEL]):
        raise ValueError(
            f"case {of_rewards[0]} is of a reward model, which is judged where there is an oracle: {no_oracle}"
        )
    for case in cases:
        if case.reference not in (None, *references_under(train)):
            raise ValueError(
                f"case {case.name} is over the frozen policy {case.reference}, whose weights are trained with "
                f"--train {train}: give cases over one of {', '.join(references_under(train))}"
            )
        check_token_ids(case.groups, int(config.get_text_config().vocab_size))
        for index, group in enumerate(case.groups):
            check_format(group.images, group.prompt_ids, images, f"case {case.name}, group {index}")

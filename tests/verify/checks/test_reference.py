"""Reference log-probs kept by the lengths of a batch are stale for other tokens, and group-isolation says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.checks.check import Finding
from verify.checks.group_isolation import GROUP_ISOLATION
from verify.groups import PreferenceGroup
from verify.models.adapters import adapters_off
from verify.objective import Preference
from verify.subject import Subject
from verify.subjects.packed import PackedSubject
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
Key = Callable[[Groups], object]
HONEST = PackedSubject(backend="dense-sdpa")


REWRITING = "rewriting the prompt of group 1 and the responses of group 2"


def lengths(groups: Groups) -> object:
    return tuple((len(g.prompt_ids), *map(len, g.completions)) for g in groups)


def second_prompt(groups: Groups) -> object:
    """Rewritten in every check that rewrites: kept log-probs are asked for with their own tokens only."""
    return groups[1].prompt_ids


def responses_of_second(groups: Groups) -> object:
    return lengths(groups), groups[1].completions


def prompt_of_third(groups: Groups) -> object:
    return lengths(groups), groups[2].prompt_ids


@dataclass(frozen=True)
class KeptReference:
    """Runs the reference only where it knows none by this key."""

    key: Key
    known: dict[object, list[Tensor]] = field(default_factory=dict)
    name: str = "kept-reference"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        if not any(getattr(module, "disable_adapters", False) is True for module in model.modules()):
            return HONEST.per_token_logps(model, groups)
        key = self.key(groups)
        if key not in self.known:
            self.known[key] = HONEST.per_token_logps(model, groups)
        return self.known[key]


@dataclass(frozen=True)
class KeptReferenceInLoss(KeptReference):
    """The same inside a loss of its own, which returns rewards alone or log-probs with them."""

    returns_logps: bool = False
    reward_off_by: float = 0.0

    def loss(self, model: Any, groups: Groups, objective: Preference) -> Any:
        with torch.no_grad(), adapters_off(model):
            refs = self.per_token_logps(model, groups)
        logps = self.per_token_logps(model, groups)
        rewards = torch.stack(
            [
                objective.beta * (logp.sum() - ref.sum()) + self.reward_off_by
                for logp, ref in zip(logps, refs, strict=True)
            ]
        )
        margins = rewards[0::2] - rewards[1::2]
        losses = (objective.label_smoothing - 1) * margins.sigmoid().log()
        losses = losses - objective.label_smoothing * (-margins).sigmoid().log()
        output: dict[str, Any] = {"loss": losses.mean(), "rewards": rewards}
        if self.returns_logps:
            output |= {"per_token_logps": logps, "ref_per_token_logps": refs}
        return SimpleNamespace(**output)


STEPS: dict[str, Callable[[Key], Subject]] = {
    "adapters off": KeptReference,
    "own loss, rewards": KeptReferenceInLoss,
    "own loss, log-probs": lambda key: KeptReferenceInLoss(key, returns_logps=True),
}
WORDS = {
    "adapters off": "group 1, chosen, token 0 kept its bits, though it sees them",
    "own loss, rewards": "group 1, chosen: by its reward their sum is ",
    "own loss, log-probs": "group 1, chosen, token 0 kept its bits, though it sees them",
}


def put_to(subject: Subject, put: Callable[..., dict[str, Finding]]) -> Finding:
    return put(subject, [GROUP_ISOLATION])["group-isolation"]


@pytest.mark.parametrize("step", STEPS)
def test_a_reference_kept_by_lengths_is_stale_for_other_tokens(
    step: str, put: Callable[..., dict[str, Finding]]
) -> None:
    finding = put_to(STEPS[step](lengths), put)
    assert finding.verdict is Verdict.FAIL
    assert finding.reason.startswith(f"reference log-probs: {REWRITING}: ")
    assert WORDS[step] in finding.reason
    assert finding.ratio > 1000


@pytest.mark.parametrize("key", [responses_of_second, prompt_of_third])
def test_a_reference_kept_by_prompts_alone_or_by_responses_alone_is_stale(
    key: Key, put: Callable[..., dict[str, Finding]]
) -> None:
    finding = put_to(KeptReference(key), put)
    assert finding.verdict is Verdict.FAIL
    assert finding.reason.startswith(f"reference log-probs: {REWRITING}: ")


@pytest.mark.parametrize("step", STEPS)
def test_a_reference_kept_by_tokens_that_tell_the_batches_apart_is_not_flagged(
    step: str, put: Callable[..., dict[str, Finding]]
) -> None:
    finding = put_to(STEPS[step](second_prompt), put)
    assert (finding.verdict, finding.reason) == (Verdict.PASS, "")
    assert finding.ratio < 0.1


def test_a_reward_that_is_no_number_is_found(put: Callable[..., dict[str, Finding]]) -> None:
    finding = put_to(KeptReferenceInLoss(second_prompt, reward_off_by=float("nan")), put)
    assert finding.verdict is Verdict.FAIL
    assert "their sum is nan" in finding.reason


def test_no_other_check_sees_a_reference_kept_by_lengths_in_a_loss_of_rewards(
    put: Callable[..., dict[str, Finding]],
) -> None:
    """Each of the other checks runs the reference once for each shape."""
    failed = {
        name for name, finding in put(STEPS["own loss, rewards"](lengths)).items() if finding.verdict is Verdict.FAIL
    }
    assert failed == {"group-isolation"}

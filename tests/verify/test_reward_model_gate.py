"""The gate on reward models: what a subject may have, what it must not do, and what is said where it has nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from verify.cases import Case
from verify.checks.catalogue import EXACT_CHECKS
from verify.checks.run import measure_setting, run_checks
from verify.gate import GateOutcome, Result
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import RewardModel
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.subjects.selection import BUILT_IN
from verify.tolerance import Policy
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
GROUPS = (
    PreferenceGroup((9, 4, 7, 30), ((5, 8, 2), (6, 1)), ((11, 3), (12, 13, 14, 15), (40,))),
    PreferenceGroup((21, 22), ((23,),), ((24, 25, 26),)),
)
CASE = Case(name="two-groups", why="uneven groups", groups=GROUPS, objective_name="reward-model")
LARGER = Case(
    name="four-groups",
    why="as many as fill bins, and responses that begin alike",
    groups=(
        *GROUPS,
        PreferenceGroup((31, 32, 33, 34), ((35, 36, 37), (35, 38)), ((35, 36, 39, 40), (41,))),
        PreferenceGroup((51, 52, 53), ((54, 55, 56, 57),), ((54, 58),)),
    ),
    objective_name="reward-model",
)
PAIR = Case(name="pair", why="a pair", groups=GROUPS[1:], objective_name="reward-model")


def last_hidden(model: Any, ids: Sequence[int]) -> Tensor:
    hidden: Tensor = model.get_base_model().model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
    return hidden[0, -1]


class ByHand:
    """Each response behind its own prompt, the head applied to its last token."""

    name, layout, takes = "by-hand", "unpacked", ("pairs", "groups")

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        raise AssertionError("a reward model has no log-probs")

    def rewards(self, model: Any, groups: Groups) -> Any:
        head = model.get_base_model().score
        return torch.cat([head(last_hidden(model, g.prompt_ids + ids)) for g in groups for ids in g.completions])


class OwnLoss(ByHand):
    """The same with a loss of its own."""

    name, objectives = "own-loss", ("reward-model",)

    def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
        assert objective.name == "reward-model"
        rewards, losses, start = super().rewards(model, groups), [], 0
        for group in groups:
            stop, middle = start + len(group.completions), start + len(group.positives)
            losses.append(-logsigmoid(rewards[start:middle, None] - rewards[None, middle:stop]).mean())
            start = stop
        return SimpleNamespace(loss=torch.stack(losses).mean(), rewards=rewards)

    rewards = None  # type: ignore[assignment]


class Altered(ByHand):
    """By hand, and then something else."""

    def __init__(self, alter: Callable[[Tensor], Any]) -> None:
        self.name, self.alter = "altered", alter

    def rewards(self, model: Any, groups: Groups) -> Any:
        return self.alter(super().rewards(model, groups))


def judged(gate: Callable[..., GateOutcome], subject: Any, case: Case = CASE, **changes: Any) -> Result:
    changes = {"objective": RewardModel(), "variations": ("eager", "padded-left"), **changes}
    (result,) = gate([subject], [case], **changes).results
    return result


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("subject", [ByHand(), OwnLoss()], ids=["rewards", "loss"])
def test_rewards_or_a_loss_are_judged(gate: Callable[..., GateOutcome], subject: Any, dtype: str) -> None:
    result = judged(gate, subject, dtypes=(dtype,), variations=tuple(VARIATIONS))
    assert result.verdict is Verdict.PASS, result.reasons
    quantities = {judgement.quantity for judgement in result.judgements}
    assert quantities == {"rewards", "margins", "loss", "gradients"}
    assert result.decisions is not None
    assert result.decisions.num_pairs == 7
    assert result.passes == 1


def test_the_head_is_among_the_tensors_that_are_compared(gate: Callable[..., GateOutcome]) -> None:
    class HeadOff(ByHand):
        def rewards(self, model: Any, groups: Groups) -> Any:
            head = model.get_base_model().score.weight
            hidden = [last_hidden(model, g.prompt_ids + ids) for g in groups for ids in g.completions]
            return torch.stack(hidden) @ (head + 0.01 * (head - head.detach()))[0]

    result = judged(gate, HeadOff())
    assert result.verdict is Verdict.FAIL
    assert any("score.weight" in reason for reason in result.reasons)


@pytest.mark.parametrize("name", [name for name, s in BUILT_IN.items() if hasattr(s, "backend") and "two" not in name])
def test_packed_subjects_pass_wherever_they_take_the_case(gate: Callable[..., GateOutcome], name: str) -> None:
    result = judged(gate, BUILT_IN[name], LARGER)
    wanted = Verdict.NOT_APPLICABLE if "block-diagonal" in name else Verdict.PASS
    assert result.verdict is wanted, result.reasons


@pytest.mark.parametrize("name", ["two-pass", "hf-position-ids"])
def test_who_has_neither_rewards_nor_such_a_loss_is_not_judged(gate: Callable[..., GateOutcome], name: str) -> None:
    subject = next(subject for known, subject in BUILT_IN.items() if name in known)
    result = judged(gate, subject, PAIR)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reasons == ("no method rewards, and no loss of its own that names reward-model",)


@pytest.mark.parametrize(
    ("alter", "verdict", "reason"),
    [
        (lambda r: r + 1e-3, Verdict.FAIL, "rewards: max distance to the oracle 0.001"),
        (lambda r: r.flip(0), Verdict.FAIL, "rewards"),
        (lambda r: r * torch.tensor([1.0] * 6 + [float("nan")]), Verdict.FAIL, "nan at group 1, rejected"),
        (lambda r: r.detach(), Verdict.ERROR, "group 0, completion 0: carries no graph"),
        (lambda r: r[:-1], Verdict.ERROR, "rewards returned 6 values for 7 completions"),
        (lambda r: r[:, None, None], Verdict.ERROR, r"rewards returned shape \(7, 1, 1\)"),
        (lambda r: r.tolist(), Verdict.ERROR, "group 0, completion 0: float; a scalar tensor is needed"),
        (lambda r: [torch.stack([x, x]) for x in r], Verdict.ERROR, r"shape \(2,\); a scalar is needed"),
        (lambda r: [x.round().long() for x in r], Verdict.ERROR, "dtype torch.int64; a floating point dtype"),
        (lambda r: None, Verdict.ERROR, "rewards returned NoneType"),
    ],
)
def test_what_is_wrong_is_said(
    gate: Callable[..., GateOutcome], alter: Callable[[Tensor], Any], verdict: Verdict, reason: str
) -> None:
    result = judged(gate, Altered(alter))
    assert result.verdict is verdict
    assert any(re.search(reason, line) for line in result.reasons), result.reasons


def test_gradients_that_were_there_before_are_an_error(gate: Callable[..., GateOutcome]) -> None:
    def leave(rewards: Tensor) -> Tensor:
        rewards.sum().backward(retain_graph=True)
        return rewards

    result = judged(gate, Altered(leave))
    assert result.verdict is Verdict.ERROR
    assert "was there before backward" in result.reasons[0]


def test_every_form_of_the_unpacked_path_reads_the_last_token() -> None:
    holder = ModelHolder(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), "float64",
                         is_reward_model=True)  # fmt: skip
    with torch.no_grad():
        wanted = ByHand().rewards(holder.model, GROUPS)
        for form in (WITNESS, *VARIATIONS.values()):
            torch.testing.assert_close(torch.stack(form.rewards(holder.model, GROUPS)), wanted, atol=1e-5, rtol=0)


# Exact checks.


@pytest.fixture(scope="module")
def put(policy: Policy) -> Callable[[Any], dict[str, Verdict]]:
    holder = ModelHolder(ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)), "float32",
                         is_reward_model=True)  # fmt: skip
    setting = measure_setting(EXACT_CHECKS, holder, dtype="float32", objective=RewardModel(), policy=policy, seed=0)

    def run(subject: Any) -> dict[str, Verdict]:
        found: dict[str, set[Verdict]] = {}
        for finding in run_checks(subject, EXACT_CHECKS, setting, holder):
            found.setdefault(finding.check, set()).add(finding.verdict)
        worst = (Verdict.ERROR, Verdict.FAIL, Verdict.PASS, Verdict.NOT_APPLICABLE)
        return {check: next(v for v in worst if v in verdicts) for check, verdicts in found.items()}

    return run


def test_an_honest_subject_passes_the_checks_of_rewards(put: Callable[[Any], dict[str, Verdict]]) -> None:
    passed = {check for check, verdict in put(BUILT_IN["dense-sdpa"]).items() if verdict is Verdict.PASS}
    assert passed == {"branch-isolation", "group-isolation", "causality", "row-map", "repeat", "own-objective"}
    assert {v for check, v in put(BUILT_IN["dense-sdpa"]).items() if check not in passed} == {Verdict.NOT_APPLICABLE}
    assert put(ByHand())["own-objective"] is Verdict.NOT_APPLICABLE
    assert put(OwnLoss())["own-objective"] is Verdict.PASS


@pytest.mark.parametrize(
    ("alter", "fails"),
    [
        (lambda r: r + 1e-6 * r.sum(), {"branch-isolation", "group-isolation", "causality"}),
        (lambda r: r - r.detach() + 1, {"branch-isolation", "group-isolation", "causality"}),
        (lambda r: r + torch.rand(1), {"branch-isolation", "group-isolation", "causality", "repeat"}),
    ],
    ids=["sees all", "sees nothing", "random"],
)
def test_bits_that_must_not_change_or_must_are_found(
    put: Callable[[Any], dict[str, Verdict]], alter: Callable[[Tensor], Tensor], fails: set[str]
) -> None:
    found = {check for check, verdict in put(Altered(alter)).items() if verdict is Verdict.FAIL}
    if "repeat" in fails:  # with one seed before each pass, only the second call of repeat is another draw
        assert "repeat" in found
    else:
        assert found == fails


def test_a_loss_of_other_rewards_than_those_returned_is_found(put: Callable[[Any], dict[str, Verdict]]) -> None:
    class Scaled(OwnLoss):
        def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
            output = super().loss(model, groups, objective)
            return SimpleNamespace(loss=output.loss * (1 + 1e-5), rewards=output.rewards)

    found = put(Scaled())
    assert {check for check, verdict in found.items() if verdict is Verdict.FAIL} == {"own-objective"}

"""Objectives, frozen policies and reward models on two ranks: what is right passes, what is wrong fails."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from verify.frozen_policy import ADAPTERS_OFF, ReferenceName
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference, RewardModel, RunObjective
from verify.sharded.faults import FAULTS, HARMLESS
from verify.sharded.ranks import RankPlace, _free_port, process_group
from verify.sharded.run import ShardedOutcome, ShardedRequest, run_sharded_parity
from verify.sharded.scenarios import as_asked, named_scenarios
from verify.subjects.selection import select_subject
from verify.tolerance import load_policy
from verify.verdict import Verdict

NUM_RANKS = 2
PLANTED = (
    "local-denominators", "frozen-policy-is-trained", "frozen-policy-without-adapters",
    "reward-one-slot-early-on-last-rank", "dummy-call-adds",
)  # fmt: skip
RUNS: dict[str, tuple[RunObjective, ReferenceName]] = {
    "ipo": (Preference(name="ipo"), "frozen-adapter"),
    "rpo": (Preference(name="rpo", label_smoothing=0.1, nll_weight=0.5), "separate-model"),
    "sigmoid": (Preference(), "cached"),
    "reward-model": (RewardModel(), "adapters-off"),
}


KEPT_AFTER_FORWARD = tuple(change for change in HARMLESS if not change.reshard_after_forward)


class LogpsOnly:
    """Right, and without a loss of its own: whatever is the frozen policy is put in place for it."""

    name, takes = "logps-only", ("pairs",)

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        return select_subject("split").per_token_logps(model, groups)


class OwnLoss(LogpsOnly):
    """The packed step; below it is made wrong."""

    name = "own-loss"
    objectives = ("sigmoid", "ipo", "rpo", "reward-model")
    references = ("adapters-off", "frozen-adapter", "separate-model", "cached")

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        return select_subject("split").loss(model, groups, objective)  # type: ignore[attr-defined]


class OtherLoss(OwnLoss):
    """The sigmoid loss under any objective."""

    name = "sigmoid-under-all"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        return super().loss(model, groups, Preference(reference=objective.reference))


class OffOnLastRank(OwnLoss):
    """The last rank takes adapters off, whatever the frozen policy is."""

    name = "off-on-last-rank"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        is_last = dist.get_rank() == NUM_RANKS - 1
        return super().loss(model, groups, Preference() if is_last else objective)


class AlwaysOff(OwnLoss):
    """Every rank takes adapters off, whatever the frozen policy is."""

    name = "always-off"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        return super().loss(model, groups, replace(objective, reference=ADAPTERS_OFF))


class TrainedOn(OwnLoss):
    """The frozen policy is the policy itself: its adapter stays on."""

    name = "trained-adapter-on"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        output = super().loss(model, groups, objective)
        refs = [logps.detach() for logps in output.per_token_logps]
        rewards = torch.zeros(len(refs), dtype=output.loss.dtype)
        return SimpleNamespace(
            loss=output.loss, rewards=rewards, per_token_logps=output.per_token_logps, ref_per_token_logps=refs
        )


class NextRewardOnLastRank(OwnLoss):
    """The last rank gives each response the reward of another."""

    name = "next-reward-on-last-rank"

    def loss(self, model: Any, groups: Any, objective: Any) -> Any:
        output = super().loss(model, groups, objective)
        rewards = output.rewards.roll(1) if dist.get_rank() == NUM_RANKS - 1 else output.rewards
        margins = rewards[0::2] - rewards[1::2]
        return SimpleNamespace(loss=-torch.nn.functional.logsigmoid(margins).mean(), rewards=rewards.detach())


WRONG: dict[str, tuple[Any, ...]] = {
    "ipo": (OtherLoss(), OffOnLastRank(), TrainedOn()),
    "rpo": (OtherLoss(), AlwaysOff()),
    "sigmoid": (AlwaysOff(),),
    "reward-model": (NextRewardOnLastRank(),),
}


def request_of(name: str) -> ShardedRequest:
    objective, reference = RUNS[name]
    right = (OwnLoss(),) if name == "reward-model" else (OwnLoss(), LogpsOnly())
    return ShardedRequest(
        model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3), reference=reference),
        precisions=("float32",),
        subjects=(*right, *WRONG[name]),
        scenarios=as_asked(named_scenarios((), 257, 0, NUM_RANKS), objective.name, reference)[:1],
        policy=load_policy(None),
        variations=("eager", "padded-left"),
        seed=0,
        faults=tuple(fault for fault in FAULTS if fault.name in PLANTED),
        harmless=KEPT_AFTER_FORWARD if reference == "frozen-adapter" else (),
        objective=objective,
    )


def run_rank(rank: int, port: int, outcomes: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with process_group(RankPlace(rank, NUM_RANKS, rank), 300.0):
        found = {name: run_sharded_parity(request_of(name), lambda text: None) for name in RUNS}
        if rank == 0:
            outcomes.put({name: replace(outcome, model=None) for name, outcome in found.items()})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ran() -> dict[str, ShardedOutcome]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_rank.__module__, "verify.sharded.request"])
    outcomes, port = context.Queue(), _free_port()
    ranks = [context.Process(target=run_rank, args=(rank, port, outcomes)) for rank in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    found = outcomes.get(timeout=600)
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * NUM_RANKS
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RUNS)
def test_a_right_step_passes_and_wrong_ones_fail(ran: dict[str, ShardedOutcome], name: str) -> None:
    wrong = {subject.name for subject in WRONG[name]}
    verdicts = {result.subject: result.verdict for result in ran[name].parity}
    assert verdicts == {each: Verdict.FAIL if each in wrong else Verdict.PASS for each in verdicts}
    assert verdicts.keys() > wrong


@pytest.mark.parametrize("name", RUNS)
def test_checks_pass_and_every_fault_that_can_show_is_caught(ran: dict[str, ShardedOutcome], name: str) -> None:
    outcome = ran[name]
    assert {finding.check: finding.verdict for finding in outcome.findings if finding.verdict is not Verdict.PASS} == {}
    assert all(planted.caught_by for planted in outcome.planted)
    planted, left_out = {each.name for each in outcome.planted}, {each.name for each in outcome.not_planted}
    assert (planted | left_out, planted & left_out) == (set(PLANTED), set())
    assert not any(change.caught_by for change in outcome.harmless)


def test_each_fault_is_planted_in_some_run(ran: dict[str, ShardedOutcome]) -> None:
    assert {planted.name for outcome in ran.values() for planted in outcome.planted} == set(PLANTED)


def test_of_a_reward_model_rewards_and_the_gradient_of_its_head_are_held(ran: dict[str, ShardedOutcome]) -> None:
    (result, *_) = ran["reward-model"].parity
    assert {judgement.quantity for _, judgement in result.judgements} == {"rewards", "margins", "loss", "gradients"}

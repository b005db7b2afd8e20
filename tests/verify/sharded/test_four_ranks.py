"""Four ranks, and subjects of users': forked from one process that has loaded everything, so that it is loaded once."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.sharded.faults import FAULTS
from verify.sharded.ranks import RankPlace, _free_port, process_group
from verify.sharded.run import ShardedOutcome, ShardedRequest, run_sharded_parity
from verify.sharded.scenarios import named_scenarios
from verify.subjects.selection import select_subject
from verify.tolerance import load_policy
from verify.verdict import Verdict

NUM_RANKS = 4
OF_USERS = Path(__file__).parents[1] / "third_party_subjects.py"
SUBJECTS = ("split", f"{OF_USERS}:ByHand", f"{OF_USERS}:OwnLoss", f"{OF_USERS}:OffByOnePredictor", "split/two-pass")
PLANTED = ("clip-over-local-shard", "dummy-call-times-zero", "mean-of-rank-means")


class CountsRounds:
    """Divides its loss by the groups of all ranks, as if each micro-batch of a round counted alike."""

    name, takes = "counts-rounds", ("pairs",)

    def __init__(self) -> None:
        self._packed = select_subject("split")

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        return self._packed.per_token_logps(model, groups)

    def loss(self, model: Any, groups: Any, objective: Any) -> SimpleNamespace:
        with torch.no_grad(), model.disable_adapter():
            refs = self.per_token_logps(model, groups)
        policy = self.per_token_logps(model, groups)
        moved = zip(policy, refs, strict=True)
        rewards = objective.beta * torch.stack([logps.sum() - of_frozen.sum() for logps, of_frozen in moved])
        of_pairs = -torch.nn.functional.logsigmoid(rewards[0::2] - rewards[1::2])
        num_groups = torch.tensor([float(len(groups))])
        if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            dist.all_reduce(num_groups)
            num_groups /= dist.get_world_size()
        return SimpleNamespace(loss=of_pairs.sum() / num_groups.squeeze(), rewards=rewards)


def run_rank(rank: int, port: int, outcomes: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with process_group(RankPlace(rank, NUM_RANKS, rank), 300.0):
        request = ShardedRequest(
            model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)),
            precisions=("float32",),
            subjects=(*map(select_subject, SUBJECTS), CountsRounds()),
            scenarios=named_scenarios(("balanced",), 257, 0, NUM_RANKS),
            policy=load_policy(None),
            variations=("eager", "padded-left"),
            seed=0,
            faults=tuple(fault for fault in FAULTS if fault.name in PLANTED),
            harmless=(),
        )
        outcome = run_sharded_parity(request, lambda text: None)
        if rank == 0:
            outcomes.put((outcome.parity, outcome.findings, outcome.planted))


@pytest.fixture(scope="module")
def outcome() -> ShardedOutcome:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_rank.__module__, "verify.sharded.run", "verify.subjects.selection"])
    outcomes, port = context.Queue(), _free_port()
    ranks = [context.Process(target=run_rank, args=(rank, port, outcomes)) for rank in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    parity, findings, planted = outcomes.get(timeout=600)
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * NUM_RANKS
    return ShardedOutcome(parity=parity, findings=findings, planted=planted, harmless=(), model=None)  # type: ignore[arg-type]


def results(outcome: ShardedOutcome, subject: str) -> dict[str, Any]:
    return {result.scenario: result for result in outcome.parity if result.subject == subject}


def test_four_ranks_of_which_three_have_no_group_compute_what_one_process_does(outcome: ShardedOutcome) -> None:
    found = results(outcome, "split")
    assert {scenario: result.verdict for scenario, result in found.items()} == dict.fromkeys(found, Verdict.PASS)
    assert found["uneven-over-ranks"].groups_of_ranks == (3, 2, 2, 2)
    assert (found["balanced"].groups_of_ranks, found["balanced"].dummies_of_ranks) == ((1, 0, 0, 0), (0, 1, 1, 1))


@pytest.mark.parametrize("subject", ["by-hand", "own-loss"])
def test_a_users_subject_that_makes_a_call_for_each_group_is_run_group_by_group(
    outcome: ShardedOutcome, subject: str
) -> None:
    found = results(outcome, subject)
    assert found["uneven-over-ranks"].verdict is Verdict.PASS
    assert found["uneven-over-ranks"].micro_size == 1
    assert found["uneven-over-ranks"].dummies_of_ranks == (0, 1, 1, 1)
    assert found["balanced"].verdict is Verdict.PASS


def test_a_loss_of_ones_own_without_a_cached_reference_says_so(outcome: ShardedOutcome) -> None:
    cached = results(outcome, "own-loss")["uneven-over-ranks/cached"]
    assert (cached.verdict, "reference cached" in cached.reasons[0]) == (Verdict.NOT_APPLICABLE, True)


def test_a_subject_that_is_wrong_in_one_process_fails_against_the_oracle_and_not_against_itself(
    outcome: ShardedOutcome,
) -> None:
    found = results(outcome, "off-by-one-predictor")["uneven-over-ranks"]
    assert found.verdict is Verdict.FAIL
    failed = {against for against, judgement in found.judgements if judgement.verdict is Verdict.FAIL}
    assert failed == {"oracle", "unpacked"}


def test_a_loss_that_counts_groups_of_other_ranks_fails_where_micro_batches_of_a_round_are_unlike(
    outcome: ShardedOutcome,
) -> None:
    found = results(outcome, "counts-rounds")
    assert found["unlike-in-one-round"].groups_of_ranks == (3, 2, 2, 2)
    verdicts = {name: result.verdict for name, result in found.items()}
    assert (verdicts["unlike-in-one-round"], verdicts["balanced"]) == (Verdict.FAIL, Verdict.PASS)


def test_a_step_that_runs_backward_itself_is_not_run(outcome: ShardedOutcome) -> None:
    for result in results(outcome, "split/two-pass").values():
        assert result.verdict is Verdict.NOT_APPLICABLE
        assert result.reasons


def test_checks_pass_and_faults_are_caught_on_four_ranks(outcome: ShardedOutcome) -> None:
    assert {finding.check: finding.verdict for finding in outcome.findings if finding.verdict is not Verdict.PASS} == {}
    assert {planted.name: bool(planted.caught_by) for planted in outcome.planted} == dict.fromkeys(PLANTED, True)

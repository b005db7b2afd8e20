"""Four ranks, subjects of users', and real pairs: forked from one process that has loaded everything, once for all."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.distributed.tensor import DTensor

from reports.record_setting import DataRecord
from verify.check_cases import data_record
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.sharded.agreement import check_same_data
from verify.sharded.faults import FAULTS
from verify.sharded.ranks import RankPlace, _free_port, process_group
from verify.sharded.request import ShardedOptions, prepare
from verify.sharded.run import ShardedOutcome, ShardedRequest, run_sharded_parity
from verify.sharded.scenarios import named_scenarios
from verify.subjects.selection import select_subject
from verify.tolerance import load_policy
from verify.verdict import Verdict

NUM_RANKS = 4
OF_USERS = Path(__file__).parents[1] / "third_party_subjects.py"
SUBJECTS = ("split", f"{OF_USERS}:ByHand", f"{OF_USERS}:OwnLoss", f"{OF_USERS}:OffByOnePredictor", "split/two-pass")
PLANTED_IN_REAL = ("local-denominators", "cached-reference-by-local-index")
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


class LeavesGradientHooks:
    """Doubles a gradient by a hook that it hangs on the sharded model, once, and never takes off."""

    name, takes = "leaves-gradient-hooks", ("pairs",)

    def __init__(self) -> None:
        self._packed, self._is_hung = select_subject("split"), False

    def per_token_logps(self, model: Any, groups: Any) -> Any:
        trained = [p for p in model.parameters() if p.requires_grad and isinstance(p, DTensor)]
        if trained and not self._is_hung:
            self._is_hung = True
            trained[0].register_post_accumulate_grad_hook(lambda weight: weight.grad.mul_(2.0))
        return self._packed.per_token_logps(model, groups)


def write_pairs(folder: Path) -> Path:
    """Pairs of plain text, one too long, and a tokenizer of one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    rows = [
        {"prompt": "why? " * number, "chosen": "y" * (12 - number), "rejected": "because" * (number % 4 + 1)}
        for number in range(1, 12)
    ]
    rows.append({"prompt": "long", "chosen": "x" * 200, "rejected": "n"})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def real_options(folder: Path) -> ShardedOptions:
    return ShardedOptions(
        model="tiny", layers=1, subjects=("split",), backends=(), precisions=("float32",), cases=(), full=False,
        data=folder / "pairs.jsonl", tokenizer=folder, pairs=11, max_tokens=150, seed=0, policy=None, train="all",
    )  # fmt: skip


def run_real_pairs(place: RankPlace, folder: Path) -> tuple[ShardedOutcome, DataRecord]:
    request, loaded = prepare(real_options(folder), place)
    assert loaded is not None
    check_same_data(loaded)
    few = replace(
        request, variations=("eager",), harmless=(), faults=tuple(f for f in FAULTS if f.name in PLANTED_IN_REAL)
    )
    outcome = run_sharded_parity(few, lambda text: None)
    return replace(outcome, model=None), data_record(loaded, request.cases)  # type: ignore[arg-type]


def run_rank(rank: int, port: int, folder: Path, outcomes: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    place = RankPlace(rank, NUM_RANKS, rank)
    with process_group(place, 300.0):
        request = ShardedRequest(
            model=ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3)),
            precisions=("float32",),
            subjects=(*map(select_subject, SUBJECTS), CountsRounds(), LeavesGradientHooks()),
            scenarios=named_scenarios(("balanced",), 257, 0, NUM_RANKS),
            policy=load_policy(None),
            variations=("eager", "padded-left"),
            seed=0,
            faults=tuple(fault for fault in FAULTS if fault.name in PLANTED),
            harmless=(),
        )
        outcome = run_sharded_parity(request, lambda text: None)
        of_real = run_real_pairs(place, folder)
        if rank == 0:
            outcomes.put((replace(outcome, model=None), of_real))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[ShardedOutcome, tuple[ShardedOutcome, DataRecord]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_rank.__module__, "verify.sharded.request", "verify.data.tokenise"])
    outcomes, port = context.Queue(), _free_port()
    folder = write_pairs(tmp_path_factory.mktemp("data"))
    ranks = [context.Process(target=run_rank, args=(rank, port, folder, outcomes)) for rank in range(NUM_RANKS)]
    for rank in ranks:
        rank.start()
    found = outcomes.get(timeout=600)
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * NUM_RANKS
    return found  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def outcome(ran: tuple[ShardedOutcome, object]) -> ShardedOutcome:
    return ran[0]


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


def test_what_a_subject_leaves_on_the_sharded_model_is_its_own_fault_and_not_that_of_the_next(
    outcome: ShardedOutcome,
) -> None:
    found = results(outcome, "leaves-gradient-hooks")
    assert {found[scenario].verdict for scenario in ("uneven-over-ranks", "balanced")} == {Verdict.FAIL}
    assert results(outcome, "split")["balanced"].verdict is Verdict.PASS  # which was run after it


def test_a_step_that_runs_backward_itself_is_not_run(outcome: ShardedOutcome) -> None:
    for result in results(outcome, "split/two-pass").values():
        assert result.verdict is Verdict.NOT_APPLICABLE
        assert result.reasons


def test_checks_pass_and_faults_are_caught_on_four_ranks(outcome: ShardedOutcome) -> None:
    assert {finding.check: finding.verdict for finding in outcome.findings if finding.verdict is not Verdict.PASS} == {}
    assert {planted.name: bool(planted.caught_by) for planted in outcome.planted} == dict.fromkeys(PLANTED, True)


def test_real_pairs_are_judged_on_ranks_that_have_uneven_numbers_of_them_and_train_every_weight(
    ran: tuple[ShardedOutcome, tuple[ShardedOutcome, DataRecord]],
) -> None:
    real, data = ran[1]
    found = {
        result.scenario: (result.verdict, result.groups_of_ranks, result.dummies_of_ranks) for result in real.parity
    }
    assert found == {
        "real-pairs-0": (Verdict.PASS, (3, 2, 2, 2), (0, 1, 1, 1)),
        "real-pairs-0/cached": (Verdict.PASS, (3, 2, 2, 2), (0, 1, 1, 1)),
        "unlike-in-one-round": (Verdict.PASS, (3, 2, 2, 2), (0, 0, 0, 0)),
        "real-pairs-1": (Verdict.PASS, (1, 1, 0, 0), (0, 0, 1, 1)),
    }  # fmt: skip
    assert {finding.verdict for finding in real.findings} == {Verdict.PASS}
    assert {planted.name: bool(planted.caught_by) for planted in real.planted} == dict.fromkeys(PLANTED_IN_REAL, True)
    assert (data.rows_read, data.num_pairs, data.violations_by_reason) == (12, 11, {"over_max_tokens": 1})
    of_adapters, of_weights = (
        sum(judgement.num_compared for _, judgement in result.judgements if judgement.quantity == "gradients")
        for result in (results(ran[0], "split")["uneven-over-ranks"], results(real, "split")["real-pairs-0"])
    )
    assert of_weights > 2 * of_adapters

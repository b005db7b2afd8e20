"""Faults of a reward model's step: caught on one layer in every dtype, and doing what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from verify.default_cases.objectives import objective_cases
from verify.default_cases.tiny import tiny_cases
from verify.faults.catalogue import FAULTS_OF_REWARDS, mutation_named
from verify.faults.fault import Fault, Packing
from verify.faults.kill_matrix import Kill, Outcome, kill_of
from verify.faults.reward_model import MUTANTS
from verify.faults.rows import Rows
from verify.faults.stages import Batch
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.objective import RewardModel
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
from verify.verdict import Verdict

DTYPES = ("float64", "float32", "bfloat16")
CASES = objective_cases(257, 0)
(CASE,) = (case for case in CASES if case.objective_name == "reward-model")


@pytest.fixture(scope="module")
def kills(gate: Callable[..., GateOutcome]) -> Mapping[tuple[str, str], Kill]:
    subjects = [FaultySubject(), *(FaultySubject(mutation=m) for m in (*FAULTS_OF_REWARDS, *MUTANTS))]
    outcome = gate(subjects, [CASE], objective=RewardModel(), variations=("eager", "padded-left"), dtypes=DTYPES)
    assert {r.verdict for r in outcome.results if r.subject == "fault:none"} == {Verdict.PASS}
    summaries = {(s.subject, s.dtype): s for s in summarise(outcome.results, subjects, DTYPES)}
    return {
        (s.mutation.name, dtype): kill_of(s.mutation, summaries[s.name, dtype])
        for s in subjects
        if s.mutation
        for dtype in DTYPES
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS_OF_REWARDS, ids=lambda fault: fault.name)
def test_a_fault_is_killed(kills: Mapping[tuple[str, str], Kill], fault: Fault, dtype: str) -> None:
    kill = kills[fault.name, dtype]
    if dtype not in fault.dtypes:  # may be within budget: then own-objective catches it (packparity faults)
        assert kill.outcome in (Outcome.HIDDEN, Outcome.KILLED)
        return
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert kill.weakest_margin > (2 if dtype == "bfloat16" else 1000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_harmless_change_is_left_alone(kills: Mapping[tuple[str, str], Kill], mutant: object, dtype: str) -> None:
    name = mutant.name  # type: ignore[attr-defined]
    assert kills[name, dtype].outcome is Outcome.QUIET, kills[name, dtype].reasons


@pytest.mark.parametrize("mutation", [*FAULTS_OF_REWARDS, *MUTANTS], ids=lambda mutation: mutation.name)
def test_it_bites_on_reward_models_and_nowhere_else(mutation: Fault) -> None:
    assert [case.name for case in CASES if mutation.bites(case)] == ["objective-reward-model"]
    assert not any(mutation.bites(case) for case in tiny_cases(257, 0))
    assert not FaultySubject(mutation=mutation).supports(CASES[0]).supported


def test_a_fault_of_log_probs_is_not_run_on_a_reward_model() -> None:
    assert not FaultySubject(mutation=mutation_named("neighbour-predicts")).supports(CASE).supported
    assert FaultySubject(mutation=mutation_named("branches-not-isolated")).supports(CASE).supported
    assert not mutation_named("branches-not-isolated").bites(CASE)


# The slots that heads read. A row of one group: prompt 0 1 2, then branches 3 4, 5 and 6 7 8; slot 8 holds token 0.

GROUP = PreferenceGroup((1, 2, 3), ((4, 5),), ((6,), (7, 8, 0)))
SLOTS = {
    None: [4, 5, 8],
    "reward-read-one-token-early": [3, 2, 7],
    "reward-read-at-end-of-row": [8, 8, 8],
    "reward-read-at-end-of-prompt": [2, 2, 2],
    "reward-read-at-first-token": [3, 5, 6],
    "reward-read-in-branch-before": [4, 4, 5],
    "reward-read-before-zeros": [4, 5, 7],
}


@pytest.mark.parametrize("name", SLOTS)
def test_the_head_is_read_where_it_says(name: str | None) -> None:
    stages = honest_stages(Packing())
    rows: Rows = stages.layout([GROUP])
    if name is not None:
        stages = stages.replaced("readout", mutation_named(name).replacement)
    assert stages.readout(rows).tolist() == [[0, slot] for slot in SLOTS[name]]


def test_of_a_response_in_several_pieces_the_last_one_is_read() -> None:
    stages = honest_stages(Packing(segments="prefix-tree"))
    rows = stages.layout([PreferenceGroup((1, 2), ((3, 4, 5),), ((3, 4), (3, 6)))])
    tokens = [int(rows.input_ids[row, slot]) for row, slot in stages.readout(rows).tolist()]
    assert tokens == [5, 4, 6]


# Losses, by hand: rewards 1 | 0, -1, so margins 1 and 2.

REWARDS = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)


def softplus(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).exp().log1p())


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        (None, (softplus(-1) + softplus(-2)) / 2),
        ("reward-loss-as-softplus", (softplus(-1) + softplus(-2)) / 2),
        ("reward-preference-reversed", (softplus(1) + softplus(2)) / 2),
        ("reward-pairs-summed", softplus(-1) + softplus(-2)),
        ("reward-loss-of-mean-margin", softplus(-1.5)),
    ],
)
def test_a_replaced_loss_is_what_it_says(name: str | None, loss: float) -> None:
    stages = honest_stages(Packing())
    if name is not None:
        stages = stages.replaced("objective", mutation_named(name).replacement)
    terms = stages.objective(REWARDS, REWARDS.new_empty(0), Batch([GROUP], torch.tensor([2, 1, 3])), RewardModel())
    assert terms.losses.tolist() == pytest.approx([loss])
    assert torch.equal(terms.rewards, REWARDS)


@pytest.mark.parametrize(
    ("name", "learned"),
    [
        (None, [6.0, 8.0]),
        ("reward-head-without-gradient", None),
        ("reward-head-learns-from-chosen", [1.0, 2.0]),
        ("reward-only-head-learns", [6.0, 8.0]),
    ],
)
def test_the_head_learns_what_it_says(name: str | None, learned: list[float] | None) -> None:
    stages = honest_stages(Packing())
    if name is not None:
        stages = stages.replaced("scores", mutation_named(name).replacement)
    hidden = torch.tensor([[1.0, 2.0], [2.0, 2.0], [3.0, 4.0]], requires_grad=True)
    head = torch.tensor([[0.5, -1.0]], requires_grad=True)
    rewards = stages.scores(hidden, head, Batch([GROUP], torch.tensor([2, 1, 3])))
    assert rewards.tolist() == [-1.5, -1.0, -2.5]
    rewards.sum().backward()
    assert (None if head.grad is None else head.grad[0].tolist()) == learned
    assert (hidden.grad is None) is (name == "reward-only-head-learns")

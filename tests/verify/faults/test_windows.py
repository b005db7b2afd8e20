"""Faults of a sliding window: masks by hand, and what the gate makes of them in a model that has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, MistralConfig, Qwen2Config

from verify.cases import Case
from verify.check_request import CheckOptions, prepare_check
from verify.checks.gradient_yardsticks import PADDED_AND_EAGER, held_against_itself, measure_gradients
from verify.fault_grounds import OBJECTIVE
from verify.fault_request import FaultOptions, prepare_faults
from verify.fault_run import run_faults
from verify.faults.catalogue import FAULTS_OF_WINDOWS, mutation_named
from verify.faults.fault import Packing
from verify.faults.kill_matrix import Outcome, kill_of
from verify.faults.windows import MUTANTS
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.models.sliding_window import sliding_window
from verify.objective import Preference
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
from verify.subjects.within_window import shows_within
from verify.tolerance import Policy

MISTRAL = ModelRequest(name="tiny-mistral", num_layers=1, lora=LoraSpec(strength=0.3))
PAIR = PreferenceGroup(prompt_ids=(1, 2), positives=((3,),), negatives=((4, 5, 6),))
"""In one row: ``1 2 | 3 | 4 5 6``, slots 0 to 5."""
LONGER = Case(name="longer", why="", groups=(PreferenceGroup((1, 2), ((3, 4),), ((5, 6, 7, 8),)),))
LONG = Case(
    name="long",
    why="",
    groups=(PreferenceGroup(tuple(range(10, 22)), (tuple(range(30, 41)),), (tuple(range(50, 64)),)),) * 2,
)


def keys(window: Callable[..., Tensor], size: int = 2) -> list[list[int]]:
    """The keys that each slot of the pair sees."""
    stages = honest_stages(Packing())
    rows = stages.layout([PAIR])
    mask = window(stages.window, rows, stages.mask(rows), size)[0]
    return [row.nonzero()[:, 0].tolist() for row in mask]


def test_under_a_window_of_two_a_branch_sees_the_end_of_its_prompt_whatever_lies_between() -> None:
    seen = keys(lambda honest, *of_rows: honest(*of_rows))
    assert seen == [[0], [0, 1], [1, 2], [1, 3], [3, 4], [4, 5]]


BY_HAND = {
    "model-window-forgotten": [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4], [0, 1, 3, 4, 5]],
    "model-window-in-row-slots": [[0], [0, 1], [1, 2], [3], [3, 4], [4, 5]],
    "model-window-own-segment-only": [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4], [0, 1, 4, 5]],
    "model-window-from-first-query": [[0], [0, 1], [1, 2], [1, 3], [1, 3, 4], [1, 3, 4, 5]],
    "model-window-one-too-long": [[0], [0, 1], [0, 1, 2], [0, 1, 3], [1, 3, 4], [3, 4, 5]],
    "model-window-one-too-short": [[0], [1], [2], [3], [4], [5]],
    "model-window-by-place": [[0], [0, 1], [1, 2], [1, 3], [3, 4], [4, 5]],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_a_fault_of_the_window_shows_of_a_pair(name: str) -> None:
    assert keys(mutation_named(name).replacement) == BY_HAND[name]


def test_every_fault_of_windows_was_walked_by_hand() -> None:
    assert BY_HAND.keys() == {mutation.name for mutation in (*FAULTS_OF_WINDOWS, *MUTANTS)}


@pytest.fixture(scope="module")
def outcome(gate: Callable[..., GateOutcome]) -> tuple[GateOutcome, list[FaultySubject]]:
    subjects = [FaultySubject(mutation=mutation) for mutation in (*FAULTS_OF_WINDOWS, *MUTANTS)]
    return gate([*subjects, FaultySubject()], [LONG], model=MISTRAL, objective=OBJECTIVE), subjects


@pytest.mark.parametrize("name", BY_HAND)
def test_a_model_with_a_window_shows_its_faults_and_not_what_is_harmless(
    outcome: tuple[GateOutcome, list[FaultySubject]], name: str
) -> None:
    found, subjects = outcome
    (subject,) = (s for s in subjects if s.mutation is not None and s.mutation.name == name)
    assert subject.mutation is not None
    kill = kill_of(subject.mutation, summarise(found.results, [subject], ["float32"])[0])
    assert kill.outcome is (Outcome.QUIET if name == MUTANTS[0].name else Outcome.KILLED), kill.reasons


def test_with_the_window_as_it_is_the_stages_pass(outcome: tuple[GateOutcome, list[FaultySubject]]) -> None:
    assert [r.verdict.value for r in outcome[0].results if r.subject == FaultySubject().name] == ["PASS"]


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS_OF_WINDOWS])
def test_a_window_that_reaches_every_token_shows_no_fault_of_its_own(name: str) -> None:
    """Distances in row slots go beyond it sooner than those on a path, of which five tokens predict."""
    fault, case = mutation_named(name), Case(name="pair", why="", groups=(PAIR,))
    assert shows_within(2, fault, case)
    assert not shows_within(64, fault, case)
    assert shows_within(5, fault, LONGER) == (name in ("model-window-in-row-slots", "model-window-one-too-short"))


def test_a_fault_of_a_window_is_refused_where_no_layer_has_one() -> None:
    subject = "fault:model-window-forgotten"
    with pytest.raises(ValueError, match=f"--subject {subject}: .*no layer of this model has.*--model tiny-mistral"):
        prepare_check(CheckOptions(subjects=(subject,)))
    prepare_check(CheckOptions(subjects=(subject,), model="tiny-mistral"))


def test_faults_of_windows_are_planted_where_layers_have_one_on_cases_that_are_longer() -> None:
    (run,) = prepare_faults(FaultOptions(faults=("model-window-forgotten",), jobs=1)).runs
    assert run.request.model.name == "tiny-mistral"
    planted = run.request.subjects[0]
    names = {case.name for case in run.request.cases}
    assert isinstance(planted, FaultySubject)
    assert planted.cases == names, "no others are run"
    longest = {
        case.name: max(len(group.prompt_ids) + len(ids) for group in case.groups for ids in group.completions)
        for case in run.request.cases
    }
    assert min(longest.values()) > 8


def test_a_fault_of_a_users_own_window_that_raises_is_an_error_of_that_fault(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from verify.faults.fault import Fault\n"
        "def no(honest, rows, mask, window):\n    raise RuntimeError('no such window')\n"
        "MINE = Fault(name='mine', stage='window', replacement=no, what='It raises.', signature='none')\n",
        encoding="utf-8",
    )
    options = FaultOptions(
        faults=(f"{tmp_path}/mine.py:MINE",), cases=("two-tokens-in-turn",), dtypes=("float32",), jobs=1
    )
    matrix = run_faults(prepare_faults(options), lambda *_: None, command=["faults"], started=0.0, import_s=0.0)
    (mutation,) = matrix.mutations
    assert (matrix.verdict, mutation.outcome) == ("ERROR", "error")
    assert any("no such window" in reason for reason in mutation.reasons)


def qwen2(**fields: object) -> Qwen2Config:
    return Qwen2Config(num_hidden_layers=3, sliding_window=16, **fields)


@pytest.mark.parametrize(
    ("config", "num_layers", "expected"),
    [
        (MistralConfig(sliding_window=8), None, 8),
        (MistralConfig(sliding_window=None), None, None),
        (qwen2(use_sliding_window=False), None, None),
        (qwen2(use_sliding_window=True, max_window_layers=1), None, 16),
        (qwen2(use_sliding_window=True, max_window_layers=1), 1, None),
        (qwen2(use_sliding_window=True, max_window_layers=3), None, None),
        (GPT2Config(), None, None),
    ],
)
def test_a_window_counts_where_some_layer_that_is_left_has_it(
    config: object, num_layers: int | None, expected: int | None
) -> None:
    assert sliding_window(config, num_layers) == expected


@pytest.mark.parametrize("forms", [PADDED_AND_EAGER, held_against_itself("float64")], ids=["eager", "itself"])
def test_budgets_are_finite_in_float64_where_padding_lies_beyond_the_window(forms: object, policy: Policy) -> None:
    """Eager attention there gives NaN to padding that sees no key, and NaN times zero is NaN."""
    holder = ModelHolder(MISTRAL, "float64")
    groups = (LONG.groups[0], PreferenceGroup((1, 2), ((3,),), ((4,),)))
    measured = measure_gradients(
        holder.model,
        holder.baseline,
        Case(name="uneven", why="", groups=groups),
        dtype="float64",
        objective=Preference(),
        policy=policy,
        seed=0,
        forms=forms,  # type: ignore[arg-type]
    )
    budgets = torch.tensor([measured.loss_budget, *measured.gradient_budgets.values()])
    assert bool(budgets.isfinite().all())
    assert float(budgets.max()) < 1e-3  # eager softmax works in float32

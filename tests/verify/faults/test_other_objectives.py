"""Faults of preference objectives and of the two-pass step: caught on one layer, where they are named to bite only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from verify.cases import Case, under
from verify.default_cases.objectives import objective_cases
from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.diagnose import Diagnostician
from verify.diagnosis.measurement import leave_one_out
from verify.diagnosis.study import Workbench
from verify.fault_grounds import OBJECTIVE as SETTINGS
from verify.fault_request import ExactPiece, FaultOptions, prepare_faults
from verify.faults import other_objectives, two_pass
from verify.faults.catalogue import FAULTS_OF_OBJECTIVES, mutation_named
from verify.faults.exact_checks import ExactFaultWork
from verify.faults.fault import Fault, Packing
from verify.faults.kill_matrix import Kill, Outcome, kill_of
from verify.faults.stages import Batch, Terms
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.objective import Preference, PreferenceName, objective_named
from verify.packed_proof import summarise
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
from verify.threads import torch_threads
from verify.tolerance import Policy
from verify.verdict import Verdict

CASES = objective_cases(257, 0)
MUTANTS = (*other_objectives.MUTANTS, *two_pass.MUTANTS)
LOSS = ("rewards, margins, loss", "gradients")
GRADIENTS = ("gradients",)
GROUPDPO: tuple[PreferenceName, ...] = ("groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs")

BITES_UNDER: dict[str, tuple[PreferenceName, ...]] = {
    "scores-summed-for-averaged": ("ipo", "sigmoid_norm"),
    "ipo-towards-one-over-beta": ("ipo",),
    "ipo-towards-half-of-beta": ("ipo",),
    "divided-by-padded-length": ("sigmoid_norm",),
    "robust-not-divided": ("robust",),
    "hinge-without-beta": ("hinge",),
    "mpo-over-negatives": ("groupdpo-mpo",),
    "softmax-summed-over-positives": ("groupdpo-softmax",),
    "margin-of-each-pair": ("groupdpo-margin",),
    "all-pairs-of-the-batch": ("groupdpo-all-pairs",),
    "likelihood-summed": ("rpo",),
    "likelihood-of-rejected-too": ("rpo",),
    "likelihood-by-token": ("rpo", *GROUPDPO),
    "likelihood-forgotten": GROUPDPO,
    "coefficients-stale": GROUPDPO,
    "coefficients-divided-by-micro-batches": GROUPDPO,
    "coefficients-of-the-sequence-before": GROUPDPO,
}


@pytest.fixture(scope="module")
def outcome(gate: Callable[..., GateOutcome]) -> tuple[GateOutcome, list[FaultySubject]]:
    subjects = [FaultySubject()]
    for mutation in (*FAULTS_OF_OBJECTIVES, *MUTANTS):
        names = frozenset(case.name for case in CASES if mutation.bites(case))
        subjects.append(FaultySubject(mutation=mutation, cases=names))
    return gate(subjects, CASES, objective=SETTINGS, variations=("eager", "padded-left")), subjects


@pytest.fixture(scope="module")
def kills(outcome: tuple[GateOutcome, list[FaultySubject]]) -> Mapping[str, Kill]:
    run, subjects = outcome
    summaries = summarise(run.results, subjects, ["float32"])
    return {s.mutation.name: kill_of(s.mutation, m) for s, m in zip(subjects, summaries, strict=True) if s.mutation}


def test_every_fault_of_an_objective_is_here() -> None:
    assert list(BITES_UNDER) == [fault.name for fault in FAULTS_OF_OBJECTIVES]


@pytest.mark.parametrize("name", BITES_UNDER)
def test_a_fault_bites_under_the_objectives_that_it_is_about_only(name: str) -> None:
    bites = tuple(case.name for case in CASES if mutation_named(name).bites(case))
    assert bites == tuple(f"objective-{under}" for under in BITES_UNDER[name])
    assert not any(mutation_named(name).bites(case) for case in tiny_cases(257, 0))


@pytest.mark.parametrize("fault", FAULTS_OF_OBJECTIVES, ids=lambda fault: fault.name)
def test_a_fault_is_killed_by_far_wherever_it_bites(kills: Mapping[str, Kill], fault: Fault) -> None:
    kill = kills[fault.name]
    assert kill.outcome is Outcome.KILLED, kill.reasons
    assert len(kill.cases) == len(BITES_UNDER[fault.name])
    assert kill.weakest_margin > 10
    of_two_passes = {fault.name for fault in two_pass.FAULTS}
    assert kill.caught_by == (GRADIENTS if fault.name in of_two_passes else LOSS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_harmless_change_is_left_alone(kills: Mapping[str, Kill], mutant: Any) -> None:
    assert kills[mutant.name].outcome is Outcome.QUIET, kills[mutant.name].reasons


def test_without_a_fault_every_objective_passes(outcome: tuple[GateOutcome, list[FaultySubject]]) -> None:
    verdicts = {result.case: result.verdict for result in outcome[0].results if result.subject == "fault:none"}
    assert verdicts == {case.name: Verdict.PASS for case in CASES}


ONE_PAIR = Case(
    name="one-pair", why="one response of one token on either side", groups=(PreferenceGroup((1, 2), ((3,),), ((4,),)),)
)
SHOWN_BY_ONE_PAIR = {
    "ipo-towards-one-over-beta", "ipo-towards-half-of-beta", "robust-not-divided", "hinge-without-beta",
    "likelihood-of-rejected-too", "likelihood-forgotten", "mpo-over-negatives", "coefficients-stale",
    "coefficients-of-the-sequence-before",
}  # fmt: skip


def test_a_pair_of_single_tokens_shows_no_fault_of_lengths_or_groups() -> None:
    bites = {name for name, names in BITES_UNDER.items() if mutation_named(name).bites(under(ONE_PAIR, names[0]))}
    assert bites == SHOWN_BY_ONE_PAIR


# Replacements, held against values worked out by hand. Two groups: 1+1 of 1 and 2 tokens, and 2+1 of 2, 4 and 4.

GROUPS = (
    PreferenceGroup((1,), ((2,),), ((3, 3),)),
    PreferenceGroup((1,), ((2, 2), (4, 4, 4, 4)), ((5, 5, 5, 5),)),
)
COUNTS = torch.tensor([1, 2, 2, 4, 4])
SUMS = torch.tensor([-1.0, -4.0, -2.0, -8.0, -12.0], dtype=torch.float64)  # means -1, -2, -1, -2, -3
REFS = torch.tensor([-2.0, -4.0, -4.0, -4.0, -8.0], dtype=torch.float64)  # means -2, -2, -2, -1, -2
# beta 0.5: rewards of means 0.5, 0 | 0.5, -0.5, -0.5; margins 0.5 | 1, 0.  Of sums 0.5, 0 | 1, -2, -2; 0.5 | 3, 0.


def terms(name: str | None, objective: Any, sums: torch.Tensor = SUMS, refs: torch.Tensor = REFS) -> Terms:
    preference = objective_named(objective, Preference(beta=0.5, label_smoothing=0.1))
    honest = honest_stages(Packing()).objective
    stage = honest if name is None else honest_stages(Packing()).replaced("objective", replacement(name)).objective
    return stage(sums, refs, Batch(GROUPS, COUNTS), preference)


def replacement(name: str) -> Callable[..., Any]:
    return mutation_named(name).replacement


def change(name: str, objective: Any) -> list[float]:
    """What a fault adds to the loss of either group."""
    difference = terms(name, objective).losses - terms(None, objective).losses
    return [round(value, 9) for value in difference.tolist()]


def softplus(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).exp().log1p())


BY_HAND: dict[tuple[str, str], list[float]] = {
    # h = z / beta is 1 | 2, 0; the target 1 becomes 2, or 1/4
    ("ipo-towards-one-over-beta", "ipo"): [1 - 0, (0 + 4) / 2 - 1],
    ("ipo-towards-half-of-beta", "ipo"): [0.75**2, (1.75**2 + 0.25**2) / 2 - 1],
    # margins of sums 0.5 | 3, 0, and twice as large
    ("hinge-without-beta", "hinge"): [0 - 0.5, 0.5 - 0.5],
    # minus mean log-probs of positives 1 | 1, 2
    ("likelihood-summed", "rpo"): [0, (2 + 8) / 2 - 1.5],
    ("likelihood-of-rejected-too", "rpo"): [1.5 - 1, 2 - 1.5],
    ("likelihood-by-token", "rpo"): [11 / 7 - 1, 11 / 7 - 1.5],
    ("likelihood-by-token", "groupdpo-mpo"): [11 / 7 - 1, 11 / 7 - 1.5],
    ("likelihood-forgotten", "groupdpo-softmax"): [-1, -1.5],
    ("softmax-summed-over-positives", "groupdpo-softmax"): [0, (softplus(-1) + softplus(0)) / 2],
    ("margin-of-each-pair", "groupdpo-margin"): [0, (softplus(-1) + softplus(0)) / 2 - softplus(-0.5)],
    # 1 and 2 pairs: weights 2/3 and 4/3
    ("all-pairs-of-the-batch", "groupdpo-all-pairs"): [-softplus(-0.5) / 3, (softplus(-1) + softplus(0)) / 6],
}


@pytest.mark.parametrize(("name", "objective"), BY_HAND)
def test_a_replacement_does_what_it_says(name: str, objective: str) -> None:
    assert change(name, objective) == pytest.approx(BY_HAND[name, objective], abs=1e-8)
    assert torch.equal(terms(name, objective).rewards, terms(None, objective).rewards)


def test_a_denominator_of_negatives_leaves_a_difference_of_log_sums() -> None:
    losses = terms("mpo-over-negatives", "groupdpo-mpo").losses.tolist()
    log_of_both = float(torch.tensor([0.5, -0.5], dtype=torch.float64).exp().sum().log())
    assert losses == pytest.approx([0 - 0.5 + 1, -0.5 - log_of_both + 1.5])


def test_a_loss_not_divided_lacks_one_minus_two_e() -> None:
    wrong, right = terms("robust-not-divided", "robust").losses, terms(None, "robust").losses
    assert wrong.tolist() == pytest.approx((0.8 * right).tolist())


def test_padded_length_is_that_of_the_longest_of_the_batch() -> None:
    rewards = terms("divided-by-padded-length", "sigmoid_norm").rewards.tolist()
    assert rewards == pytest.approx([0.5 / 4, 0, 1 / 4, -2 / 4, -2 / 4])


# The two-pass step.


def gradient(name: str | None, objective: Any = "groupdpo-mpo") -> torch.Tensor:
    sums = SUMS.clone().requires_grad_()
    (by_sum,) = torch.autograd.grad(terms(name, objective, sums).losses.sum(), sums)
    return by_sum


@pytest.mark.parametrize("fault", two_pass.FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("objective", GROUPDPO)
def test_a_wrong_replay_has_the_right_loss(fault: Fault, objective: str) -> None:
    wrong, right = terms(fault.name, objective), terms(None, objective)
    assert torch.equal(wrong.losses, right.losses)
    assert torch.equal(wrong.rewards, right.rewards)
    assert not torch.allclose(gradient(fault.name, objective), gradient(None, objective))


def test_micro_batches_of_two_divide_a_group_of_three_by_two() -> None:
    expected = gradient(None) / torch.tensor([1, 1, 2, 2, 2])
    torch.testing.assert_close(gradient("coefficients-divided-by-micro-batches"), expected)


def test_each_sequence_has_the_coefficient_of_the_one_before() -> None:
    torch.testing.assert_close(gradient("coefficients-of-the-sequence-before"), gradient(None)[[4, 0, 1, 2, 3]])


def test_stale_coefficients_are_those_of_equal_rewards() -> None:
    """All positives of a group have one share of the softmax, whose sum over all responses is 0."""
    # phi at u = 0: 1/(m + n) - 1/m for a positive, 1/(m + n) for a negative; times beta / n_i, and the likelihood
    phi = torch.tensor([1 / 2 - 1, 1 / 2, 1 / 3 - 1 / 2, 1 / 3 - 1 / 2, 1 / 3], dtype=torch.float64)
    likelihood = torch.tensor([1, 0, 1 / 2, 1 / 2, 0], dtype=torch.float64)
    torch.testing.assert_close(gradient("coefficients-stale"), (0.5 * phi - likelihood) / COUNTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.parametrize("objective", GROUPDPO)
def test_a_harmless_change_is_one_in_value_and_gradient(mutant: Any, objective: str) -> None:
    torch.testing.assert_close(terms(mutant.name, objective).losses, terms(None, objective).losses)
    torch.testing.assert_close(terms(mutant.name, objective).rewards, terms(None, objective).rewards)
    torch.testing.assert_close(gradient(mutant.name, objective), gradient(None, objective))


# Exact checks under their objectives.


@pytest.fixture(scope="module")
def exact_work() -> tuple[Sequence[ExactPiece], ExactFaultWork]:
    names = ("robust-not-divided", "coefficients-of-the-sequence-before", "coefficients-replayed")
    (run,) = prepare_faults(FaultOptions(faults=names, dtypes=("bfloat16", "float32"))).runs
    return run.exact_pieces, ExactFaultWork(run.request)


@pytest.mark.parametrize(
    ("name", "dtype", "objective", "seen_by"),
    [
        ("robust-not-divided", "bfloat16", "robust", {"own-objective"}),
        ("coefficients-of-the-sequence-before", "float32", "groupdpo-all-pairs", {"normalisation"}),
        ("coefficients-replayed", "float32", "groupdpo-all-pairs", set()),
    ],
)
def test_exact_checks_see_them_under_their_own_objective_alone(
    name: str,
    dtype: str,
    objective: str,
    seen_by: set[str],
    exact_work: tuple[Sequence[ExactPiece], ExactFaultWork],
) -> None:
    pieces, work = exact_work
    (piece,) = (p for p in pieces if (p.mutation.name, p.dtype) == (name, dtype))
    assert piece.objective == objective
    with torch_threads(1):
        findings = work(dtype, piece.mutation, lambda text: None, piece.objective)
    assert {finding.check for finding in findings} == {"normalisation", "own-objective"}
    assert {finding.check for finding in findings if finding.verdict is Verdict.FAIL} == seen_by
    assert not any(finding.verdict is Verdict.ERROR for finding in findings)


# What a diagnosis makes of them, with no fault of the catalogue to compare with.

# One for each kind of evidence; all of them take a minute.
NAMED_FIRST = {
    "scores-summed-for-averaged": "reduction",
    "hinge-without-beta": "objective",
    "likelihood-forgotten": "objective",
    "coefficients-stale": "objective",
    "divided-by-padded-length": "reduction",  # what a sum is divided by cannot be told from the sum
    "robust-not-divided": "accumulation",  # a factor of the objective is one of every group
}


@pytest.mark.parametrize("name", NAMED_FIRST)
def test_a_diagnosis_names_the_stage(name: str, policy: Policy) -> None:
    model = ModelRequest(name="tiny", num_layers=1, lora=LoraSpec(strength=0.3))
    bench = Workbench(model, "float32", SETTINGS, policy, seed=0, variations=("eager", "padded-left"), faults=())
    fault = next(fault for fault in FAULTS_OF_OBJECTIVES if fault.name == name)
    (found,) = leave_one_out(Diagnostician(bench), CASES, faults=[fault], kinds=("groups",))
    assert found.named == NAMED_FIRST[name]


# Which cases `packparity faults` gives to whom.


def cases_of(**options: Any) -> dict[str, list[str]]:
    (run,) = prepare_faults(FaultOptions(jobs=1, **options)).runs
    return {s.name.removeprefix("fault:"): sorted(s.cases or ()) for s in map(as_planted, run.request.subjects)}


def as_planted(subject: Any) -> FaultySubject:
    assert isinstance(subject, FaultySubject)
    return subject


def test_other_faults_are_not_run_on_the_cases_of_objectives() -> None:
    found = cases_of(faults=("first-negative-only", "nothing-replaced", "hinge-without-beta"))
    assert found.pop("hinge-without-beta") == ["objective-hinge"]
    assert not any(name.startswith("objective-") for names in found.values() for name in names)


def test_with_cases_of_objectives_alone_only_what_is_about_them_is_left() -> None:
    found = cases_of(cases=("objective-hinge",))
    assert set(found) == {"hinge-without-beta", "responses-of-a-side-reordered"}


def test_what_is_named_with_such_a_case_is_run_on_it() -> None:
    found = cases_of(faults=("first-negative-only",), cases=("objective-ipo",))
    assert found == {"first-negative-only": ["objective-ipo"]}

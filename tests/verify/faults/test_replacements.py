"""What replacements do to their stage, by hand on the row ``5 6 | 7 | 8 9 | 1 | 2 | 3`` of two groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verify.faults.activations import prompt_gradient_averaged
from verify.faults.catalogue import mutation_named
from verify.faults.fault import Packing
from verify.faults.rows import Rows
from verify.faults.stages import Batch, Stages, Terms
from verify.groups import PreferenceGroup
from verify.objective import Preference
from verify.subjects.honest_stages import honest_stages

GROUPS = (PreferenceGroup((5, 6), ((7,),), ((8, 9),)), PreferenceGroup((1,), ((2,),), ((3,),)))


def planted(name: str) -> tuple[Stages, Rows]:
    mutation = mutation_named(name)
    stages = honest_stages(mutation.packing).replaced(mutation.stage, mutation.replacement)
    return stages, stages.layout(GROUPS)


BATCH = Batch(GROUPS, torch.tensor([1, 2, 1, 1]))


def terms_of(losses: list[float]) -> Terms:
    return Terms(torch.tensor(losses), torch.ones(len(losses)), torch.zeros(4))


def seen(stages: Stages, rows: Rows, query: int) -> list[int]:
    return stages.mask(rows)[0, query].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("name", "query", "keys"),
    [
        ("causal-mask-only", 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("branches-not-isolated", 4, [0, 1, 2, 3, 4]),
        ("branches-not-isolated", 7, [5, 6, 7]),
        ("trees-not-isolated", 4, [0, 1, 3, 4]),
        ("trees-not-isolated", 7, [0, 1, 2, 3, 4, 5, 7]),
        ("third-tree-sees-second", 7, [5, 7]),
        ("lengths-times-segment-number", 3, [0, 1, 2, 3]),
        ("lengths-times-segment-number", 4, [0, 1, 3, 4]),
        ("sees-the-future", 0, [0, 1]),
        ("sees-the-future", 3, [0, 1, 3, 4]),
        ("prompt-sees-responses", 1, [0, 1, 2, 3, 4]),
        ("token-does-not-see-itself", 4, [0, 1, 3]),
        ("token-does-not-see-itself", 5, [5]),
        ("branch-misses-last-prompt-token", 4, [0, 3, 4]),
        ("branch-misses-first-prompt-token", 4, [1, 3, 4]),
        ("rejected-sees-last-chosen", 4, [0, 1, 2, 3, 4]),
        ("prompt-hidden-from-rejected", 4, [3, 4]),
        ("causal-corner-top-left", 3, [0]),
        ("causal-corner-top-left", 4, [0, 1]),
        ("element-test-lost", 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("sliding-window", 7, [5, 7]),
        ("block-missing", 7, [5, 7]),
    ],
)
def test_masks(name: str, query: int, keys: list[int]) -> None:
    assert seen(*planted(name), query) == keys


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("positions-run-on", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("positions-restart-at-branches", [0, 1, 0, 0, 1, 0, 0, 0]),
        ("positions-stand-still-in-branches", [0, 1, 1, 1, 1, 0, 0, 0]),
        ("rejected-positions-one-late", [0, 1, 2, 3, 4, 0, 1, 2]),
        ("branch-positions-one-early", [0, 1, 1, 1, 2, 0, 0, 0]),
        ("positions-after-padded-prompt", [0, 1, 64, 64, 65, 0, 64, 64]),
        ("positions-zero", [0] * 8),
        ("positions-shifted", [37, 38, 39, 39, 40, 37, 38, 38]),
        ("positions-shifted-by-tree", [0, 1, 2, 2, 3, 5, 6, 6]),
    ],
)
def test_positions(name: str, positions: list[int]) -> None:
    stages, rows = planted(name)
    assert stages.positions(rows)[0].tolist() == positions


@pytest.mark.parametrize(
    ("name", "of_7_8_9_2_3"),
    [
        ("neighbour-predicts", [1, 2, 3, 5, 6]),
        ("predictor-is-the-token", [2, 3, 4, 6, 7]),
        ("predictor-two-before", [0, 0, 1, 5, 5]),
        ("first-token-from-other-branch", [4, 2, 3, 7, 6]),
        ("first-token-from-prompt-start", [0, 0, 3, 5, 5]),
        ("first-token-one-early", [0, 0, 3, 5, 5]),
        ("predictors-at-padded-offsets", [0, 0, 0, 0, 0]),
    ],
)
def test_predictors(name: str, of_7_8_9_2_3: list[int]) -> None:
    stages, rows = planted(name)
    targets = stages.supervision(rows, stages.predictors(rows))
    assert targets.predictor_slots.tolist() == of_7_8_9_2_3


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("first-token-not-counted", [[], [9], [], []]),
        ("end-token-not-counted", [[], [8], [], []]),
        ("prompt-counted", [[7, 6], [8, 9, 6], [2], [3]]),
        ("prompt-counted-for-chosen", [[7, 6], [8, 9], [2], [3]]),
        ("last-prompt-token-counted", [[7, 6], [8, 9, 6], [2], [3]]),
        ("boundary-target-counted", [[7, 8], [8, 9, 1], [2, 3], [3]]),
        ("end-predicts-the-root", [[7, 5], [8, 9, 5], [2, 5], [3, 5]]),
        ("ignored-targets-counted", [[7, 0, 0], [8, 9], [2, 0], [3]]),
        ("padding-counted", [[7], [8, 9], [2], [3, 0]]),
        ("indexed-by-predictor", [[8], [9, 1], [3], [5]]),
        ("cut-at-first-end-token", [[7], [8, 9], [2], [3]]),
        ("token-zero-not-counted", [[7], [8, 9], [2], [3]]),
        ("slice-one-early", [[7], [6, 8], [2], [1]]),
    ],
)
def test_tokens_that_enter_the_sums(name: str, counted: list[list[int]]) -> None:
    stages, rows = planted(name)
    targets = stages.supervision(rows, stages.predictors(rows))
    assert [targets.token_ids[(targets.completions == k) & targets.counted].tolist() for k in range(4)] == counted


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("mean-instead-of-sum", [-1.0, -3.0, -8.0, -16.0]),
        ("divided-by-longest", [-0.5, -3.0, -4.0, -8.0]),
        ("rejected-cut-to-chosen", [-1.0, -2.0, -8.0, -16.0]),
        ("summed-backwards", [-1.0, -6.0, -8.0, -16.0]),
    ],
)
def test_sums(name: str, sums: list[float]) -> None:
    stages, rows = planted(name)
    targets = stages.supervision(rows, stages.predictors(rows))
    assert stages.reduction(torch.tensor([-1.0, -2.0, -4.0, -8.0, -16.0]), targets).tolist() == sums


def test_layouts_by_their_tokens() -> None:
    ids = {
        "gap-before-rejected": [5, 6, 7, 0, 8, 9, 1, 2, 3],
        "begin-token-before-responses": [5, 6, 1, 7, 1, 8, 9, 1, 1, 2, 1, 3],
        "seam-token-differs": [5, 5, 7, 8, 9, 0, 2, 3],
        "first-prompt-token-lost": [6, 7, 8, 9, 1, 2, 3],
        "prompt-of-first-group": [5, 6, 7, 8, 9, 5, 6, 2, 3],
        "padding-in-front": [0, 0, 5, 6, 7, 8, 9, 1, 2, 3],
        "branches-reordered": [5, 6, 8, 9, 7, 1, 3, 2],
        "prompt-in-two-segments": [5, 6, 7, 8, 9, 1, 2, 3],
    }
    assert {name: planted(name)[1].input_ids[0].tolist() for name in ids} == ids


def test_what_a_branch_hangs_on() -> None:
    parents = {
        "everything-one-segment": [None, 0, 1, 2, 3, 4],
        "rejected-continues-chosen": [None, 0, 1, None, 3, 4],
        "prompt-in-two-segments": [None, 0, 1, 1, None, 4, 4],
        "padding-in-front": [None, None, 1, 1, None, 4, 4],
    }
    for name, expected in parents.items():
        assert [piece.parent for piece in planted(name)[1].rows[0]] == expected, name


def test_the_unpacked_layout_repeats_the_prompt() -> None:
    _, rows = planted("falls-back-to-unpacked")
    assert rows.input_ids.tolist() == [[5, 6, 7, 0], [5, 6, 8, 9], [1, 2, 0, 0], [1, 3, 0, 0]]


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("mean-of-means", (1.5 + 4.0) / 2),
        ("sum-over-groups", 7.0),
        ("loss-divided-by-ranks", 7 / 6),
        ("last-group-counted-twice", 11 / 4),
        ("masked-group-in-denominator", 2.0),
        ("micro-batches-weighted", 7 / 3),
    ],
)
def test_means_over_groups(name: str, loss: float) -> None:
    stages, rows = planted(name)
    assert float(stages.accumulation(terms_of([1.0, 2.0, 4.0]), BATCH, rows)) == pytest.approx(loss)


def test_groups_weighted_by_tokens() -> None:
    stages, rows = planted("groups-weighted-by-tokens")
    assert float(stages.accumulation(terms_of([1.0, 2.0]), BATCH, rows)) == pytest.approx((3 * 1 + 2 * 2) / 5)


GRADIENT_ONLY = ("coefficients-permuted", "one-coefficient-per-micro-batch", "chosen-detached")
REWARDS_ONLY = ("rewards-scaled-twice", "logged-rewards-exchanged")


def objective(name: str, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses, rewards and the gradient of the summed losses."""
    settings: dict[str, Any] = {"beta": 0.5, "label_smoothing": 0.1}
    leaf = sums.clone().requires_grad_(True)
    ref_sums = torch.tensor([-3.0, -3.5, -2.0, -5.0], dtype=torch.float64)
    stages = planted(name)[0] if name else planted("nothing-replaced")[0]
    terms = stages.objective(leaf, ref_sums, BATCH, Preference(**settings))
    (gradient,) = torch.autograd.grad(terms.losses.sum(), leaf)
    return terms.losses.detach(), terms.rewards.detach(), gradient


@pytest.mark.parametrize("name", GRADIENT_ONLY + REWARDS_ONLY)
def test_some_objectives_are_wrong_in_one_respect_only(name: str) -> None:
    sums = torch.tensor([-4.0, -3.0, -2.5, -1.0], dtype=torch.float64)
    honest, wrong = objective("", sums), objective(name, sums)
    same = [torch.allclose(a, b, rtol=1e-12) for a, b in zip(honest, wrong, strict=True)]
    assert same == ([True, True, False] if name in GRADIENT_ONLY else [True, False, True])


@pytest.mark.parametrize(
    ("name", "exact_value", "exact_gradient"),
    [("logits-in-bfloat16-forward", False, True), ("logits-in-bfloat16-backward", True, False)],
)
def test_rounding_of_one_direction_only(name: str, exact_value: bool, exact_gradient: bool) -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_(True)
    ids = torch.arange(5)

    def run(stages: Stages) -> tuple[torch.Tensor, torch.Tensor]:
        values = stages.token_logps(logits, ids)
        return values.detach(), torch.autograd.grad(values.sum(), logits)[0]

    (value, gradient), (wrong_value, wrong_gradient) = run(planted("nothing-replaced")[0]), run(planted(name)[0])
    assert torch.allclose(value, wrong_value, atol=1e-6) == exact_value
    assert torch.allclose(gradient, wrong_gradient, atol=1e-6) == exact_gradient


@pytest.mark.parametrize("name", ["logits-in-chunks", "logits-moved"])
def test_log_probs_of_equivalent_mutants_agree(name: str) -> None:
    logits = torch.randn(17, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(17) % 11
    honest = torch.log_softmax(logits, dim=-1)[torch.arange(17), ids]
    assert torch.allclose(planted(name)[0].token_logps(logits, ids), honest, atol=1e-14)


def test_the_average_over_the_branches_of_a_prompt_leaves_values_and_a_share_of_the_gradient() -> None:
    """A prompt of two tokens with three branches, and one of one token with two; 0.1 is no sum of its thirds."""
    groups = (PreferenceGroup((1, 2), ((3,),), ((4, 5), (6,))), PreferenceGroup((7,), ((8,),), ((9,),)))
    rows = honest_stages(Packing()).layout(groups)
    leaf = torch.full((1, 9, 1), 0.1, requires_grad=True)
    passed_on = prompt_gradient_averaged(lambda rows, module, output: output, rows, "layers.0.self_attn.k_proj", leaf)
    assert torch.equal(passed_on, leaf)
    (gradient,) = torch.autograd.grad(passed_on.sum(), leaf)
    assert gradient.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 1, 1, 1, 1, 1 / 2, 1, 1])

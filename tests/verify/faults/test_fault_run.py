"""``packparity faults`` from options to the kill matrix, and its exit status, on few faults and two cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reports.kill_matrix_store import read_kill_matrix
from verify.cli.app import app
from verify.fault_request import FaultOptions, prepare_faults
from verify.subjects.faulty import FaultySubject


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"faults": ("causal-mask",)}, "unknown fault 'causal-mask'.*causal-mask-only"),
        ({"cases": ("balance",)}, "unknown case 'balance': give some of balanced"),
        ({"dtypes": ("float16",)}, "unknown dtype 'float16': give float64"),
        (
            {"faults": ("sum-over-groups",), "cases": ("balanced",)},
            "fault sum-over-groups: no case can show it; it bites where a case has several groups",
        ),
    ],
)
def test_a_request_that_would_prove_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_faults(FaultOptions(**options))


def test_faults_that_no_named_case_can_show_are_left_out_by_name() -> None:
    prepared = prepare_faults(FaultOptions(cases=("balanced",)))
    assert "sum-over-groups" in prepared.notes[0]
    assert "coefficients-permuted in jittery-query-gradients" in prepared.notes[0]
    ordinary, noisy, every_weight, windowed = prepared.runs
    assert every_weight.request.model.train == "all"
    assert windowed.request.model.name == "tiny-mistral"
    assert "fault:sum-over-groups" not in ordinary.mutations
    assert "fault:causal-mask-only" in ordinary.mutations
    assert (ordinary.kernel, ordinary.request.prepare_model) == (None, None)
    assert noisy.kernel is not None
    assert noisy.request.prepare_model is noisy.kernel.plant
    assert not any("left out" in note for note in prepare_faults(FaultOptions()).notes)


def test_both_sharp_dtypes_are_the_default_and_a_repeat_runs_where_it_shows_something() -> None:
    ordinary, noisy, *_ = prepare_faults(FaultOptions()).runs
    assert ordinary.request.dtypes == ("float64", "float32")
    assert "repeat" not in ordinary.request.variations
    assert "repeat" in noisy.request.variations


def test_a_noisy_kernel_can_be_asked_for_by_name() -> None:
    (run,) = prepare_faults(FaultOptions(faults=("jittery-query-gradients",))).runs
    assert run.kernel is not None
    assert [m.name for m in run.mutations.values()] == list(run.kernel.planted)
    used = {name for s in run.request.subjects if isinstance(s, FaultySubject) for name in s.cases or ()}
    assert {case.name for case in run.request.cases} == used


def test_faults_of_images_are_planted_in_a_model_that_sees_them_beside_all_others(tmp_path: Path) -> None:
    runs = [run for run in prepare_faults(FaultOptions()).runs if run.request.model.train == "lora"]
    assert [run.request.model.name for run in runs] == [
        "tiny", "tiny", "tiny-llava", "tiny-qwen3-moe", "tiny-mistral"
    ]  # fmt: skip
    for run in runs:
        sees = run.request.model.name == "tiny-llava"
        assert {mutation.with_images for mutation in run.mutations.values()} == {sees}
        assert all(case.has_images is sees for case in run.request.cases)
        assert bool(run.exact_pieces) is (run in (runs[0], runs[-1]))
    names = ["label-smoothing-ignored", "images-left-out", "images-reversed"]
    options = [part for name in names for part in ("--fault", name)]
    cases = ["--case", "special-ids-inside", "--case", "equal-text-other-images"]
    result = CliRunner().invoke(
        app, ["faults", "--quiet", "--dtype", "float32", "--out", str(tmp_path), *options, *cases]
    )
    assert result.exit_code == 0, result.output
    matrix = read_kill_matrix(tmp_path)
    assert [(m.label, m.outcome) for m in matrix.mutations] == [
        ("label-smoothing-ignored", "killed"),
        ("images-left-out in tiny-llava", "killed"),
        ("images-reversed in tiny-llava", "quiet"),
    ]
    assert matrix.model.name == "tiny"
    assert [case.name for case in matrix.cases] == ["special-ids-inside", "equal-text-other-images"]


def test_faults_of_full_training_are_planted_in_a_step_that_trains_every_weight(tmp_path: Path) -> None:
    (run,) = (run for run in prepare_faults(FaultOptions()).runs if run.request.model.train == "all")
    assert (run.request.model.train, run.request.model.reference) == ("all", "separate-model")
    assert {mutation.trains for mutation in run.mutations.values()} == {("all",)}
    assert {piece.mutation.name for piece in run.exact_pieces} == {"frozen-policy-drifts"}
    names = ["head-without-gradient", "unused-tokens-have-gradient", "reference-shares-a-layer", "frozen-policy-drifts"]
    options = ["--quiet", "--dtype", "float32", "--cases-per-fault", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["faults", *options, *(part for name in names for part in ("--fault", name))])
    assert result.exit_code == 0, result.output
    assert [m.outcome for m in read_kill_matrix(tmp_path).mutations] == ["killed"] * 4


def test_faults_of_images_alone_need_no_other_model() -> None:
    (run,) = prepare_faults(FaultOptions(cases=("pair-with-image",))).runs
    assert list(run.mutations) == [
        f"fault:{name}" for name in ("images-left-out", "images-hidden-from-branches", "images-twice-through-the-tower")
    ]


def test_the_command_writes_what_it_prints_and_passes_where_the_checks_do_what_they_must(tmp_path: Path) -> None:
    names = ["neighbour-predicts", "gradients-zero", "positions-shifted"]
    arguments = ["faults", "--quiet", "--out", str(tmp_path), "--case", "balanced", "--case", "special-ids-inside"]
    result = CliRunner().invoke(app, [*arguments, *(part for name in names for part in ("--fault", name))])
    assert result.exit_code == 0, result.output
    assert "4 of 4 planted faults killed, 0 of 2 harmless changes flagged" in " ".join(result.output.split())
    matrix = read_kill_matrix(tmp_path)
    planted = list(zip(names, ["killed", "killed", "quiet"], strict=True))
    assert [(m.name, m.outcome) for m in matrix.mutations] == planted * 2
    assert [m.dtype for m in matrix.mutations] == ["float64"] * 3 + ["float32"] * 3
    assert {case for m in matrix.mutations for case in m.cases} == {"special-ids-inside", "balanced"}
    assert matrix.objective["label_smoothing"] == 0.1
    assert matrix.num_compared > 1000
    assert matrix.mutations[0].catches[0].where.startswith("group 0, rejected, token 0, predicted from the last prompt")


def test_a_fault_that_survives_makes_the_command_fail(tmp_path: Path) -> None:
    """The laxest policy that is taken lets a small fault through, and the command says so."""
    from importlib import resources

    text = resources.files("verify").joinpath("policy.toml").read_text(encoding="utf-8")
    lax = tmp_path / "lax.toml"
    for strict, wide in (("factor = 3.0", "factor = 100"), ("coefficient_sigmas = 5.0", "coefficient_sigmas = 20")):
        assert strict in text
        text = text.replace(strict, wide)
    lax.write_text(text, encoding="utf-8")
    fault = "one-gradient-off-by-a-thousandth"
    arguments = ["faults", "--quiet", "--fault", fault, "--case", "balanced", "--policy", str(lax)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, result.output
    assert "0 of 2 planted faults killed" in " ".join(result.output.split())
    assert "parity passes on case balanced" in result.output

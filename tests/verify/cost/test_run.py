"""Runs on the tiny model: what is recorded, what an interruption costs, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.cost_record import CostRecord, StepRecord
from reports.cost_store import COST_FILES
from reports.store import OutputError, RecordError
from verify.cost import measure
from verify.cost.clock import Clock, ClockError
from verify.cost.journal import JOURNAL_FILE
from verify.cost.kept_states import STATES_FOLDER
from verify.cost.measure import MeasurementError, order_of
from verify.cost.paths import PATHS
from verify.cost.ranks import DistributedRanks
from verify.cost.training import NotFiniteError

Run = Callable[..., CostRecord]
PATHS_OF_RUN = ["padded", "dense", "split"]


@pytest.fixture(scope="module")
def whole(run: Run) -> CostRecord:
    """Three rounds with pairs held out, in one go."""
    return run(steps=3, held_out=2)


def measured(record: CostRecord) -> list[StepRecord]:
    return [step for step in record.workloads[0].steps if step.phase == "measured"]


def test_rounds_run_forwards_and_backwards_in_turn(whole: CostRecord) -> None:
    steps = measured(whole)
    assert [step.path for step in steps] == [*PATHS_OF_RUN, *reversed(PATHS_OF_RUN), *PATHS_OF_RUN]
    assert [step.place for step in steps] == [0, 1, 2] * 3
    assert [path.name for path in order_of(1, [PATHS["padded"], PATHS["split"]])] == ["split", "padded"]


def test_warm_up_is_recorded_apart_and_before(whole: CostRecord) -> None:
    phases = [step.phase for step in whole.workloads[0].steps]
    assert phases == ["warm-up"] * (measure.WARM_UP_STEPS * 3) + ["measured"] * 9
    assert all(figures.num_steps == 3 for figures in whole.workloads[0].figures)


def test_paths_train_alike_and_each_by_itself(run: Run, whole: CostRecord) -> None:
    """The first losses are equal but for rounding, the later ones follow from each path's own adapters."""
    by_path = {path: [s.loss for s in measured(whole) if s.path == path] for path in PATHS_OF_RUN}
    assert len(set(by_path["padded"])) == 3, "nothing was trained, or every batch is the same"
    for path in PATHS_OF_RUN:
        assert by_path[path] == pytest.approx(by_path["padded"], abs=1e-4)
    alone = run(steps=3, held_out=2, paths=("split",))
    assert [step.loss for step in measured(alone)] == by_path["split"]
    end = {held.path: held for record in (alone, whole) for held in record.workloads[0].held_out if held.when == "end"}
    assert end["split"] == alone.workloads[0].held_out_of("split", "end")


def test_training_moves_what_is_held_out(whole: CostRecord) -> None:
    start, end = (whole.workloads[0].held_out_of("split", when) for when in ("start", "end"))
    assert start is not None
    assert end is not None
    assert start.margins != end.margins


def test_live_bytes_are_the_same_on_every_run_and_packing_holds_fewer_where_prompts_are_long(run: Run) -> None:
    options: dict[str, Any] = {"regimes": ("prompt-long",), "steps": 1}
    first, again = (run(**options).workloads[0] for _ in range(2))
    peaks = [[(f.path, f.peak_bytes, f.step_bytes) for f in w.figures] for w in (first, again)]
    assert peaks[0] == peaks[1]
    by_path = {path: step for path, _, step in peaks[0]}
    assert by_path["split"] < by_path["padded"]
    held = {step.held_bytes for step in first.steps if step.phase == "measured"}
    assert len(held) == 1, "every path starts from the same weights, adapters and moments"


def test_held_bytes_are_weights_adapters_and_moments(run: Run) -> None:
    record = run()
    (held,) = {step.held_bytes for step in measured(record)}
    rank, hidden, inner, queries, keys = 8, 64, 96, 128, 64
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    shapes = [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]
    adapters = rank * sum(size_in + size_out for size_in, size_out in shapes)
    moments = 2 * adapters + 2 * len(shapes)  # and the number of steps, for each tensor
    rotary = 2 * 16  # inverse frequencies, and the original ones
    assert held == 4 * (record.model.num_parameters + adapters + moments + rotary)


def test_flop_ratio_of_split_over_padded_is_that_of_the_algebra(run: Run) -> None:
    ratio = run().workloads[0].ratio("split", "padded")
    assert ratio is not None
    linear = 2 * (64 * 128 + 2 * 64 * 64 + 128 * 64 + 3 * 64 * 96)
    head, pair = 2 * 64 * 257 * 256, 4 * 4 * 32  # 2 x 128 predictors
    triangle = 128 * 129 // 2
    padded = linear * 512 + pair * 2 * (256 * 257 // 2) + head
    split = linear * 384 + pair * (triangle + 2 * (128 * 128 + triangle)) + head
    assert ratio.flops == pytest.approx(split / padded, rel=1e-12)


def test_a_path_that_feeds_other_slots_than_its_layout_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's packing warns and falls back to padding; a comparison would measure padded against padded."""
    fallen_back = replace(PATHS["split"], subject=PATHS["padded"].subject)
    monkeypatch.setattr("verify.cost.request.paths_named", lambda names: (fallen_back,))
    with pytest.raises(MeasurementError, match=r"split fed 512 slots in its policy pass and 1024 in both: .* has 384"):
        run()


def test_a_clock_that_steps_back_ends_the_run(run: Run) -> None:
    back = itertools.count(10**9, -1)
    with pytest.raises(ClockError):
        run({"clock": Clock(wall_ns=lambda: next(back))})


@pytest.mark.parametrize(
    ("name", "what"),
    [("the command line", "arguments"), ("packparity sources", "versions"), ("norm.weight", "weights")],
)
def test_ranks_that_were_started_differently_are_refused_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """They would wait for one another in collectives, or measure two things as one."""

    def gathered(own: dict[str, str]) -> list[dict[str, str]]:
        return [own, {key: "another" if key.endswith(name) else value for key, value in own.items()}]

    monkeypatch.setattr("verify.sharded.agreement.all_gathered", gathered)
    with pytest.raises(ValueError, match=rf"ranks disagree on .*{what}: .*{name} is rank 0: .*; rank 1: another"):
        run({"ranks": DistributedRanks(0, 2)})


def test_a_loss_that_is_not_finite_ends_the_run(run: Run) -> None:
    with pytest.raises(NotFiniteError, match="is nan"):
        run(lr=1e30, steps=3)


class Interrupted(BaseException):
    """As ctrl-C, which pytest would take for its own."""


def interrupt_at(text: str, *, after: int = 0) -> Callable[[int, int, str], None]:
    """Progress that ends a run where it says a text, once so many steps were begun."""

    def progress(done: int, total: int, doing: str) -> None:
        if text in doing and done >= after:
            raise Interrupted

    return progress


@pytest.mark.parametrize(
    ("at", "after", "kept"),
    [
        ("warm-up, split", 0, 0),
        ("step 2 of 3, padded", 0, 2),  # the second of its round: what split has done in it is measured again
        ("balanced: held-out pairs, split", 6, 6),
        ("length-12: step 1 of 3, split", 0, 6),
    ],
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    tmp_path: Path, run: Run, whole: CostRecord, at: str, after: int, kept: int
) -> None:
    options: dict[str, Any] = {"steps": 3, "held_out": 2, "paths": ("padded", "split"), "out": tmp_path}
    options["sweep"] = (12,) if at.startswith("length") else ()
    with pytest.raises(Interrupted):
        run({"progress": interrupt_at(at, after=after)}, **options)
    for line in (tmp_path / JOURNAL_FILE).read_text().splitlines():
        json.loads(line)
    resumed = run(**options, resume=True)
    steps = measured(resumed)
    assert [step.session for step in steps] == [0] * kept + [1] * (6 - kept)
    for path in ("padded", "split"):
        assert [s.loss for s in steps if s.path == path] == [s.loss for s in measured(whole) if s.path == path]
        for when in ("start", "end"):
            assert resumed.workloads[0].held_out_of(path, when) == whole.workloads[0].held_out_of(path, when)
    assert any("2 processes" in note for note in resumed.notes)
    assert not (tmp_path / STATES_FOLDER).exists()


def test_a_journal_is_neither_begun_twice_nor_resumed_with_other_options(tmp_path: Path, run: Run) -> None:
    with pytest.raises(OutputError, match="leave --resume out"):
        run(out=tmp_path, resume=True)
    done = run(out=tmp_path)
    assert run(out=tmp_path, resume=True).workloads == done.workloads, "nothing was left to do"
    (tmp_path / COST_FILES[-1]).write_text("what was found before")
    with pytest.raises(OutputError, match="give --resume to go on with it"):
        run(out=tmp_path)
    with pytest.raises(RecordError, match="was begun with another optimizer"):
        run(out=tmp_path, resume=True, lr=0.5)
    assert (tmp_path / COST_FILES[-1]).exists(), "a run that is refused costs nothing"
    run(out=tmp_path, resume=True)
    assert not (tmp_path / COST_FILES[-1]).exists(), "nothing of an earlier run may pass for this one's"


def test_held_out_pairs_of_which_a_part_was_written_are_computed_again(tmp_path: Path, run: Run) -> None:
    options: dict[str, Any] = {"held_out": 2, "out": tmp_path, "steps": 1}
    whole, path = run(**options), tmp_path / JOURNAL_FILE
    lines = path.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"when":"start"' in line)
    path.write_text("".join(lines[: first + 1]))
    assert run(**options, resume=True).workloads[0].held_out == whole.workloads[0].held_out


def test_a_damaged_state_is_refused(tmp_path: Path, run: Run) -> None:
    with pytest.raises(Interrupted):
        run({"progress": interrupt_at("step 2 of 2, dense")}, out=tmp_path)
    (kept,) = (tmp_path / STATES_FOLDER).glob("*.safetensors")
    whole = kept.read_bytes()
    for damaged, message in ((b"half", "cannot be read"), (whole[:-1] + bytes([whole[-1] ^ 1]), "is damaged")):
        kept.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            run(out=tmp_path, resume=True)

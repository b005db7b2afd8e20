"""From options to workloads: presets, data files, and one message for what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verify.cost.data_pairs import LengthLimits, draw_pairs
from verify.cost.presets import PRESETS, Scale
from verify.cost.request import CostOptions, PreparedCost, prepare_cost
from verify.cost.workload import length_plan, regime_plan
from verify.data.rows import DataError
from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.shape_file import Shape, shape_text

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
H4 = SAMPLES / "h4_ultrafeedback.jsonl"


def prepare(num_ranks: int = 1, **options: Any) -> PreparedCost:
    return prepare_cost(CostOptions(**options), num_ranks=num_ranks, device=None)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_plan_on_a_laptop(name: str) -> None:
    preset = PRESETS[name]
    prepared = prepare(preset=name, scale="tiny", data=H4 if preset.needs_data else None, held_out=1)
    assert (prepared.model.name, prepared.device, prepared.dtype, prepared.threads) == ("small", "cpu", "float32", 1)
    assert any(plan.enters_comparison for plan in prepared.plans)


@pytest.mark.parametrize(
    ("name", "workloads"),
    [
        ("mechanism", [("prompt-long", 192, 64, 5), ("balanced", 128, 128, 5), ("response-long", 64, 192, 5)]),
        ("response-long", [("response-long, seed 17", 64, 192, 20), ("response-long, seed 23", 64, 192, 20)]),
    ],
)
def test_presets_have_the_lengths_seeds_and_steps_of_the_note(
    name: str, workloads: list[tuple[str, int, int, int]]
) -> None:
    plans = [plan for plan in prepare(preset=name, scale="tiny").plans if plan.enters_comparison]
    found = [
        (plan.name, len(plan.pool[0].prompt_ids), len(plan.pool[0].positives[0]), plan.num_steps) for plan in plans
    ]
    assert found == workloads


def test_full_presets_are_the_plans_of_the_note() -> None:
    for preset in PRESETS.values():
        assert (preset.full.model, preset.full.dtype, preset.full.num_ranks) == ("qwen3-8b", "bfloat16", 2)
    assert [PRESETS[name].full.num_steps for name in ("mechanism", "response-long", "ultrafeedback", "headline")] == [
        5, 20, 20, 200,
    ]  # fmt: skip
    assert PRESETS["headline"].full.limits == LengthLimits(prompt=512, response=512)
    assert PRESETS["headline"].full.num_held_out == 512  # of which one pair is the +0.00195 of the note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "ultrafeedback", "scale": "tiny"}, "--preset ultrafeedback needs --data FILE"),
        ({"preset": "headline"}, "--preset headline needs --data FILE"),
        ({"preset": "mechanism"}, "is for 2 ranks, and there are 1: run it under torchrun with 2 processes"),
        ({"preset": "mechanisms"}, "unknown preset 'mechanisms': give one of mechanism"),
        ({"scale": "tiny"}, "--scale tiny goes with --preset"),
        ({"scale": "huge"}, "unknown scale 'huge': give full or tiny"),
        ({"dtype": "fp8"}, "unknown dtype 'fp8'"),
        ({"paths": ("sparse",)}, "--paths sparse: FlexAttention has no backward pass on cpu"),
        ({"regimes": ("long",)}, "unknown regime 'long': give some of prompt-long"),
        ({"regimes": ("balanced", "balanced")}, "given twice"),
        ({"sweep": (1,)}, "--sweep 1: a sequence has at least two tokens"),
        ({"tokenizer": SAMPLES}, "--tokenizer goes with --data FILE"),
        ({"ranks": 4}, "--ranks 4, but there are 1"),
        ({"data": SAMPLES / "none.jsonl"}, "does not exist"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_in_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(**options)


def test_held_out_pairs_are_shared_evenly_among_ranks() -> None:
    with pytest.raises(ValueError, match="--held-out 3 over 2 ranks"):
        prepare(num_ranks=2, held_out=3)


def test_batches_of_rounds_and_ranks_take_different_pairs_and_none_that_is_held_out() -> None:
    plan = regime_plan("balanced", seed=1, num_steps=3, num_pairs=12, num_held_out=4, vocab_size=257)
    batches = plan.batches(num_ranks=2, pairs_per_rank=2)
    trained = [group for ranks in batches for batch in ranks for group in batch]
    assert len(set(trained)) == 12
    assert not set(trained) & set(plan.held_out)
    assert len(plan.held_out) == 4


def test_a_file_of_which_everything_is_held_out_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"3 usable pairs .* of 3 rows, of which 8 are to be held out: .*\(--held-out\)"
    ):
        prepare(data=H4)


def test_a_length_of_a_sweep_is_that_of_a_sequence() -> None:
    (group,) = length_plan(33, seed=0, num_steps=1, num_pairs=1, vocab_size=9).pool
    assert len(group.prompt_ids) + len(group.positives[0]) == 33


def row(prompt: int, chosen: int, rejected: int) -> str:
    return json.dumps({"prompt": "p" * prompt, "chosen": "c" * chosen, "rejected": "r" * rejected}) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        "".join(row(4 * i, 8 * i, 40) for i in range(1, 11)) + row(4000, 8, 8) + row(8, 8, 8).replace("r" * 8, "")
    )
    return path


def test_lengths_are_those_of_the_file_in_fours_of_characters(file: Path) -> None:
    drawn = draw_pairs(file, None, LengthLimits(), num_pairs=20, seed=0)
    assert sorted(each.prompt for each in drawn.lengths) == [*range(1, 11), 1000]
    assert all(each.responses == (2 * each.prompt, 10) for each in drawn.lengths if each.prompt < 1000)
    assert drawn.left_out == {"empty_response": 1}
    assert drawn.rows_read == 12


def test_longer_pairs_are_left_out_and_counted_and_nothing_is_cut(file: Path) -> None:
    drawn = draw_pairs(file, None, LengthLimits(prompt=8, response=12), num_pairs=20, seed=0)
    assert sorted(each.prompt for each in drawn.lengths) == [1, 2, 3, 4, 5, 6]
    assert drawn.left_out == {"empty_response": 1, "over the length limits": 5}
    with pytest.raises(DataError, match="no usable pair"):
        draw_pairs(file, None, LengthLimits(prompt=1, response=1), num_pairs=1, seed=0)


def test_the_draw_follows_its_seed(file: Path) -> None:
    draws = [draw_pairs(file, None, LengthLimits(), num_pairs=4, seed=seed).lengths for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_a_file_that_is_too_short_is_used_again_and_said_to_be(file: Path) -> None:
    prepared = prepare(data=file, steps=9, pairs=2, held_out=2)
    (plan,) = prepared.plans
    assert (len(plan.pool), len(plan.held_out)) == (9, 2)
    assert len(plan.batches(num_ranks=1, pairs_per_rank=2)) == 9
    assert any("steps take theirs again" in note for note in prepared.notes)
    assert any("tokens are random: no tokenizer was given" in note for note in prepared.notes)


def test_real_pairs_are_used_where_the_model_has_their_tokens(tmp_path: Path, file: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: number for number, letter in enumerate("pcr")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={**letters, "<e>": 3}, merges=[]))
    tokenizer.add_special_tokens(["<e>"])
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    prepared = prepare(data=file, tokenizer=folder, steps=2, pairs=1, held_out=1, max_prompt=100)
    (plan,) = prepared.plans
    assert {token for group in plan.pool for token in group.prompt_ids} == {0}
    assert {group.positives[0][0] for group in plan.pool} == {1}
    assert plan.pool[0].source.startswith("pairs.jsonl:")
    assert not any("random" in note for note in prepared.notes)


def test_scales_are_named() -> None:
    scale: Scale = "tiny"
    assert PRESETS["mechanism"].defaults(scale) is PRESETS["mechanism"].tiny


def test_a_model_may_be_a_shape_file(tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_text(shape_text(Shape(replace(named_config("tiny"), hidden_size=32), LoraSpec(rank=4, alpha=8))))
    request = prepare(model=str(file)).model
    assert request.config is not None
    assert (request.config.hidden_size, request.lora.rank) == (32, 4)

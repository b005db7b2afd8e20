"""``packparity simulate``: predictions on lengths that are drawn, checked against figures known without it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.data_store import DATA_REPORT_FILES, read_data_report
from verify.cli import app

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["packparity", "simulate", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


def simulated(cli: Cli, *arguments: object) -> dict[str, Any]:
    status, out, err = cli(*arguments, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert isinstance(report, dict)
    return report


def test_the_published_regime_saves_its_share_of_tokens(cli: Cli) -> None:
    """64/192: (p + 2r) / 2 (p + r) = 7/8; Eq. 1 counts (p + 2r)^2 / 2 (p + r)^2 = 1.53125 and would not pack."""
    algebra = simulated(cli, "response-long", "--groups", 64)["algebra"]
    assert algebra["token_ratio"] == 7 / 8
    assert algebra["eq1_ratio"] == 1.53125
    assert algebra["eq1_share"] == 0
    assert algebra["attention_pairs_packed"] < algebra["attention_pairs_unpacked"]


def test_groups_of_uneven_size_are_set_side_by_side(cli: Cli) -> None:
    """K responses of 192 tokens to a prompt of 64: (p + K r) / K (p + r), and Eq. 1 (p + K r)^2 / K (p + r)^2."""
    algebra = simulated(cli, "response-long", "--responses", "2-5", "--groups", 400)["algebra"]
    found = {part["responses"]: part for part in algebra["by_responses"]}
    assert sorted(found) == [2, 3, 4, 5]
    assert sum(part["groups"] for part in found.values()) == 400
    for count, part in found.items():
        packed, unpacked = 64 + count * 192, count * 256
        assert part["token_ratio"] == packed / unpacked
        assert part["eq1_ratio"] == packed**2 / (count * 256**2)
        assert part["eq1_share"] == (packed < math.sqrt(count) * 256)
        pairs = count * 256 * 257 // 2
        assert part["attention_ratio"] == (pairs - (count - 1) * 64 * 65 // 2) / pairs


def test_every_way_of_filling_rows_is_there(cli: Cli) -> None:
    simulation = simulated(cli, "log-normal", "--groups", 200, "--ranks", 2, "--seed", 5)["simulation"]
    plans = [plan["plan"] for plan in simulation["plans"]]
    assert plans[:5] == ["plain", "bucketing", "sorting", "packing", "packing, sorting"]
    assert plans[5:] == ["sequence packing, prompts repeated", "sequence packing, prompts shared"]
    assert (simulation["num_ranks"], simulation["seed"]) == (2, 5)
    assert simulation["order"]["follows_file_order"] is False


def test_the_report_is_written_and_shown(cli: Cli, tmp_path: Path) -> None:
    status, out, _ = cli("balanced", "--groups", 64, "--out", tmp_path / "out")
    assert status == 0
    words = " ".join(out.split())
    for told in ("Packing pays", "tokens/step", "padding/step", "waiting", "cost by Eq. 1"):
        assert told in words
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(DATA_REPORT_FILES)
    assert read_data_report(tmp_path / "out").file == "balanced"


def test_a_shape_of_ones_own_and_a_checkpoint_are_priced(cli: Cli, tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    shape, checkpoint = tmp_path / "shape.json", tmp_path / "checkpoint"
    shape.write_text(json.dumps(sizes), encoding="utf-8")
    checkpoint.mkdir()
    without_head_dim = {name: size for name, size in sizes.items() if name != "head_dim"}
    (checkpoint / "config.json").write_text(
        json.dumps({"model_type": "llama", "torch_dtype": "bfloat16", **without_head_dim}), encoding="utf-8"
    )
    linear = 2 * 2 * (2 * 64 * 16 * (4 + 2) + 3 * 64 * 96)
    pair, head = 2 * 4 * 4 * 16, 2 * 64 * 100
    tokens, pairs, predictors = (512, 384), (256 * 257, 256 * 257 - 128 * 129 // 2), 256
    unpacked, packed = (linear * tokens[i] + pair * pairs[i] + head * predictors for i in (0, 1))
    for model, name in ((shape, "shape.json"), (checkpoint, "checkpoint")):
        report = simulated(cli, "balanced", "--groups", 8, "--model", model)
        assert report["model"] == name
        assert report["algebra"]["flop_ratio"] == pytest.approx(packed / unpacked, rel=1e-12)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral'; FLOPs are predicted for dense decoders"),
        ({"num_key_value_heads": None}, "num_key_value_heads: Input should be a valid integer"),
        ({"hidden_size": 66}, "no head_dim, and it does not follow from hidden_size 66"),
        ({"model_type": "qwen3"}, "no head_dim"),
    ],
)
def test_a_checkpoint_that_cannot_be_priced_is_one_line(
    cli: Cli, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    sizes = {
        "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes | config), encoding="utf-8")
    status, out, err = cli("balanced", "--model", tmp_path)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lognormal"], "unknown distribution of lengths 'lognormal' (did you mean log-normal?)"),
        (["balanced", "--responses", "0"], "--responses 0: give a number from 1 to 1024, or two such as 2-8"),
        (["balanced", "--responses", "5-2"], "--responses 5-2: give"),
        (["balanced", "--responses", "two"], "--responses two: give"),
        (["balanced", "--model", "gpt-5"], "unknown model 'gpt-5'"),
        (
            ["balanced", "--row-limit", "300"],
            "--row-limit 300: the longest of 8192 groups drawn from balanced takes 384",
        ),
        (["balanced", "--groups", "0"], "--groups"),
        (["balanced", "--seed", str(2**63)], "--seed"),
    ],
)
def test_bad_requests_are_one_line_and_nothing_is_written(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, out, err = cli(*arguments, "--out", tmp_path / "out")
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()

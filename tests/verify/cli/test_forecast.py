"""``packparity forecast`` as a program: what it prints and writes, its exit status, and one message for bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from reports.forecast_overview import verdict
from reports.forecast_record import ForecastRecord, LongestRecord
from reports.forecast_store import FORECAST_FILES, read_forecast
from reports.forecast_terminal import print_forecast
from reports.results import read_result
from verify.cli.app import main
from verify.models.shape_file import read_shape

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
SMALL = ("--prompt", "12", "--response", "8", "--pairs", "2", "--no-longest", "--quiet")


@pytest.fixture
def shape(tmp_path: Path) -> str:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(SHAPE), encoding="utf-8")
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["packparity", "forecast", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_forecast_is_written_whole_and_read_again(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, "--model", shape, *SMALL, "--ranks", "2", "--paths", "split", "--out", str(out)) == 0
    assert {path.name for path in out.iterdir()} == set(FORECAST_FILES)
    record = read_forecast(out)
    assert read_result(out) == record
    (path,) = record.paths
    assert path.terms
    assert verdict(record) in capsys.readouterr().out
    page = (out / "forecast.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<script" not in page
    assert str(path.counted_flops) in (out / "forecast.md").read_text(encoding="utf-8").replace(",", "")


def test_a_record_that_gives_itself_away_is_refused(
    shape: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--model", shape, *SMALL, "--paths", "split", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    (path,), step = content["paths"], content["step"]
    longest = {"prompt": 64, "response": 64, "peak_bytes": 2**50, "limit": "memory"}
    for changes, message in (
        ({"paths": [{**path, "computed_flops": 2 * path["counted_flops"]}]}, "more FLOPs computed than counted"),
        ({"paths": [{**path, "seconds": {}}]}, "a step of no time"),
        ({"paths": [{**path, "exposed_s": 1e9}]}, "waits for other ranks for longer than the step takes"),
        ({"paths": [{**path, "longest": longest}]}, "longest pair takes more than the device's usable bytes"),
        ({"paths": [{**path, "peak": {**path["peak"], "gathered": 10**400}}]}, "less than or equal to 1000000"),
        ({"step": {**step, "ranks": 0}}, "a step with ranks 0"),
        ({"step": {**step, "lora_rank": None}}, "lora is trained with adapters of rank None"),
        ({"step": {**step, "train": "all", "lora_rank": None}}, "all parameters are trained, but"),
    ):
        with pytest.raises(ValidationError, match=message):
            ForecastRecord.model_validate({**content, **changes})


def test_what_does_not_fit_is_said_with_how_much_is_missing(
    shape: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(monkeypatch, "--model", shape, *SMALL, "--paths", "dense", "--memory-gib", "0.001", "--json")
    record = json.loads(capsys.readouterr().out)
    assert status == 1
    assert sum(value for value in record["paths"][0]["peak"].values() if isinstance(value, int)) > 2**20


def test_flex_on_a_cpu_is_not_forecast_and_says_why(
    shape: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu = ("--model", shape, *SMALL, "--device", "cpu", "--dtype", "float32")
    assert run(monkeypatch, *on_cpu, "--paths", "sparse,split") == 0
    assert "sparse: not forecast: path sparse: FlexAttention has no backward pass on a CPU" in capsys.readouterr().out


def test_a_config_of_transformers_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.json"
    of_transformers = {"model_type": "qwen3", "hidden_act": "silu", "max_position_embeddings": 128}
    config.write_text(json.dumps({**SHAPE, **of_transformers}), encoding="utf-8")
    assert run(monkeypatch, "--model", str(config), *SMALL, "--paths", "split") == 0
    capsys.readouterr()
    with pytest.raises(ValueError, match="a config of transformers, not a shape"):
        read_shape(config)


def test_windows_on_a_cpu_are_forecast_without_terms_of_a_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = tmp_path / "windows.json"
    windows.write_text(json.dumps({**SHAPE, "model_type": "mistral", "sliding_window": 8}), encoding="utf-8")
    on_cpu = ("--device", "cpu", "--dtype", "float32", "--paths", "dense,split", "--json")
    assert run(monkeypatch, "--model", str(windows), *SMALL, *on_cpu) == 0
    dense, split = json.loads(capsys.readouterr().out)["paths"]
    assert dense["terms"]
    assert not split["terms"]
    assert split["counted_flops"] < dense["counted_flops"]


def test_models_that_are_no_decoders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for model_type, message in (
        ("t5", "max_position_embeddings of its config is None"),
        ("bert", "cannot be followed on shapes"),
    ):
        config = tmp_path / f"{model_type}.json"
        sizes = {
            name: SHAPE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        }
        config.write_text(json.dumps({**sizes, "model_type": model_type, "architectures": ["A"], "num_heads": 4}))
        assert run(monkeypatch, "--model", str(config), *SMALL, "--paths", "split") == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1


def test_numbers_are_whole_on_any_terminal(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--model", shape, *SMALL, "--paths", "padding-free", "--out", str(tmp_path / "out"))
    record = read_forecast(tmp_path / "out")
    (path,) = record.paths
    assert path.peak is not None
    peak = path.peak.model_copy(update={"activations": 12_345 * 2**30, "layer": 35})
    longest = LongestRecord(prompt=20_480, response=20_480, peak_bytes=1, limit="positions")
    large = record.model_copy(update={"paths": [path.model_copy(update={"peak": peak, "longest": longest})]})
    capsys.readouterr()
    for width in (80, 60, 24):
        print_forecast(large, Console(width=width))
        said = capsys.readouterr().out
        for whole in ("padding-free", "20,480/20,480 max", "12,345.00", "backward, 36"):
            assert whole in said, width


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "qwen3-9b"), "did you mean"),
        (("--paths", "spilt"), "did you mean split?"),
        (("--device", "tpu"), "unknown device 'tpu': give one of gb10, h200, cpu"),
        (("--dtype", "float32"), "device gb10 has no rate for float32"),
        (("--train", "head"), "--train head: give one of lora, all"),
        (("--prompt", "40000", "--response", "1000"), "qwen3-8b has 40960 positions"),
        (("--ranks", "0"), "--ranks"),
        (("--memory-gib", "inf"), "--memory-gib"),
        (("--pairs", "256", "--prompt", "20480", "--response", "20480"), "give --pairs 4 or fewer"),
        (("--paths", "sparse", "--device", "cpu"), "FlexAttention has no backward pass on a CPU"),
        (("--model", "tiny-mistral", "--paths", "split", "--quiet"), "sliding windows is not modelled for a GPU"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1

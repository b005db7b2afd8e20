"""Folders of LLaVA checkpoints, as transformers 5 writes them and as the hub has them, from files to a verdict."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralVisionConfig,
)

from verify.check_request import CheckOptions, prepare_check
from verify.cli import app
from verify.default_cases.images import SHOWS_MOST, image_cases
from verify.faults.images import FAULTS
from verify.gate import GateOutcome
from verify.images import ImageFormat
from verify.models.checkpoint import CheckpointError, load_checkpoint
from verify.models.family import build_family, num_parameters
from verify.models.memory import check_memory
from verify.models.request import ModelRequest, build_model, requested_config, vocabulary_size
from verify.models.vision import image_format
from verify.subjects.faulty import FaultySubject
from verify.subjects.selection import BUILT_IN
from verify.verdict import Verdict

WEIGHTS = "model.safetensors"
POSITIONS = "vision_tower.embeddings.position_embedding.weight"
FIRST_LINEAR = "multi_modal_projector.linear_1.weight"


def llava_1_5() -> Any:
    """A Llama with an untied head behind CLIP, that leaves out the class token of the layer before the last one."""
    text = LlamaConfig(vocab_size=70, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=5
    )
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlavaForConditionalGeneration._from_config(config).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llava-interleave": lambda: build_family("llava", dtype=torch.float32, seed=5),
    "llava-1.5": llava_1_5,
}


def on_the_hub(name: str) -> str:
    """What transformers called a weight until 4.52."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    part, rest = name.removeprefix("model.").split(".", 1)
    inner = {"language_model": "model.", "vision_tower": "vision_model.", "multi_modal_projector": ""}[part]
    return f"{part}.{inner}{rest}"


def save_as_on_the_hub(model: Any, folder: Path) -> None:
    """In two shards, with the buffers that were among the weights, and without the number of features."""
    model.save_pretrained(folder)
    (folder / WEIGHTS).unlink()
    tensors = {on_the_hub(name): parameter.clone() for name, parameter in model.named_parameters()}
    tensors["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(9).expand(1, -1).clone()
    tensors["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    names = sorted(tensors)
    shards = {f"part-{index}.safetensors": names[index::2] for index in range(2)}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = json.loads((folder / "config.json").read_text())
    del config["image_seq_length"]
    (folder / "config.json").write_text(json.dumps(config))


STYLES: dict[str, Callable[[Any, Path], object]] = {
    "older names": lambda model, folder: model.save_pretrained(folder),
    "older names, sharded": lambda model, folder: model.save_pretrained(folder, max_shard_size="60KB"),
    "names of today": lambda model, folder: model.save_pretrained(folder, save_original_format=False),
    "the hub": save_as_on_the_hub,
}


@pytest.fixture(scope="module", params=MODELS)
def original(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "llava"
    MODELS["llava-interleave"]().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(saved, tmp_path / "llava"))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """``packparity check`` in this process: its status and what it printed."""

    def call(*arguments: object) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["packparity", "check", "--quiet", "--jobs", "1", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    return call


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_config(folder: Path, part: str = "", **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config[part] if part else config).update(values)
    path.write_text(json.dumps(config))


def logits(model: Any) -> Tensor:
    taken = image_format(model.config)
    assert taken is not None
    ids = torch.tensor([[1, *(taken.token_id,) * taken.num_tokens, 2, 3]])
    pixels = torch.linspace(-1, 1, 3 * 12 * 12).reshape(1, 3, 12, 12)
    with torch.no_grad():
        return model(input_ids=ids, pixel_values=pixels).logits


# What loads.


@pytest.mark.parametrize("style", STYLES)
def test_weights_are_those_that_were_saved_and_that_transformers_reads(
    original: Any, style: str, tmp_path: Path
) -> None:
    STYLES[style](original, tmp_path)
    model, published = load_checkpoint(tmp_path, num_layers=None, dtype=torch.float32)
    assert published == 2
    expected, found = dict(original.named_parameters()), dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(logits(model), logits(LlavaForConditionalGeneration.from_pretrained(tmp_path).eval()))
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("style", STYLES)
def test_a_cut_is_of_the_decoder_and_never_of_the_tower(original: Any, style: str, tmp_path: Path) -> None:
    STYLES[style](original, tmp_path)
    model, published = load_checkpoint(tmp_path, num_layers=1, dtype=torch.float32)
    assert (len(model.model.language_model.layers), published) == (1, 2)
    expected = {n: p for n, p in original.named_parameters() if ".language_model.layers.1." not in n}
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_features_of_an_image_are_those_of_the_tower_whatever_the_config_was_written_with(tmp_path: Path) -> None:
    """Two by two patches fit 12 pixels, of which CLIP's class token is no one: the default of the config is 576."""
    llava_1_5().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["image_seq_length"] == 576
    config = requested_config(ModelRequest(name=str(tmp_path)))
    assert image_format(config) == ImageFormat((3, 12, 12), token_id=64, num_tokens=4)


def test_adapters_are_on_the_decoder_alone(saved: Path) -> None:
    model = build_model(ModelRequest(name=str(saved)), "float64").model
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * 7  # layers, factors, matrices
    assert all(".language_model.layers." in name for name in trained)


def test_what_is_held_is_counted_before_it_is_loaded(saved: Path) -> None:
    whole = MODELS["llava-interleave"]()
    tower = sum(
        p.numel() for part in ("vision_tower", "multi_modal_projector") for p in getattr(whole.model, part).parameters()
    )
    count = sum(p.numel() for p in whole.parameters())
    assert num_parameters(requested_config(ModelRequest(name=str(saved))), None) == (count, count - tower)
    request = ModelRequest(name=str(saved), reference="cached")
    needed = 2 * count * (4 + 8)
    check_memory(request, ["float32", "bfloat16"], needed, held_in_float64=True)
    with pytest.raises(ValueError, match="and again in float64 for its own unpacked path, would take"):
        check_memory(request, ["float32"], needed - 1, held_in_float64=True)
    with pytest.raises(CheckpointError, match="9 layers asked for; the checkpoint has 2"):
        check_memory(ModelRequest(name=str(saved), num_layers=9), ["float32"], needed)


# What is judged.


def test_all_cases_of_the_tiny_model_are_those_of_a_checkpoint(saved: Path) -> None:
    of_checkpoint, of_tiny = (
        {case.name for case in prepare_check(CheckOptions(model=model, jobs=1)).request.cases}
        for model in (str(saved), "tiny-llava")
    )
    assert of_checkpoint == of_tiny


def test_a_large_model_sees_the_case_on_which_every_fault_of_images_bites(folder: Path) -> None:
    edit_config(folder, "text_config", intermediate_size=2**16)
    prepared = prepare_check(CheckOptions(model=str(folder), jobs=1))
    assert prepared.reduced
    assert {case.name for case in prepared.request.cases} == {"two-pairs-of-150", SHOWS_MOST}
    (case,) = (case for case in prepared.request.cases if case.has_images)
    assert all(fault.bites(case) for fault in FAULTS)


@pytest.mark.parametrize(("kind", "style"), [("llava-interleave", "names of today"), ("llava-1.5", "the hub")])
def test_packed_rows_pass_and_a_planted_fault_of_images_fails(
    kind: str, style: str, tmp_path: Path, gate: Callable[..., GateOutcome]
) -> None:
    STYLES[style](MODELS[kind](), tmp_path)
    request = ModelRequest(name=str(tmp_path), num_layers=1)
    taken = image_format(requested_config(request))
    assert taken is not None
    cases = image_cases(vocabulary_size(request), 0, taken)
    shown = {case.name for case in cases if FAULTS[0].bites(case)}
    assert SHOWS_MOST in shown
    subjects = [BUILT_IN["split"], FaultySubject(mutation=FAULTS[0])]
    outcome = gate(subjects, cases, model=request, variations=("eager",))
    verdicts = {(result.subject, result.case): result.verdict for result in outcome.results}
    of_pairs_and_groups = [case.name for case in cases if case.kind != "examples"]
    assert [verdicts["split", name] for name in of_pairs_and_groups] == [Verdict.PASS] * 4
    assert {verdicts[subjects[1].name, name] for name in shown} == {Verdict.FAIL}
    assert outcome.model.weights == "local checkpoint"


# What is refused.


def pixtral(folder: Path) -> None:
    vision = PixtralVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    edit_config(folder, vision_config=vision.to_dict())


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (
        lambda f: rewrite(f, lambda t: t.pop(FIRST_LINEAR)),
        rf"the weights do not fit config\.json: 1 missing \(model\.{FIRST_LINEAR}\) keys",
    ),
    "a missing layer of the tower, of a number that the decoder does not have": (
        lambda f: edit_config(f, "vision_config", num_hidden_layers=3),
        r"16 missing \(model\.vision_tower\.encoder\.layers\.2\.",
    ),
    "an unexpected tensor": (
        lambda f: rewrite(f, lambda t: t.update({"vision_tower.stowaway": torch.zeros(1)})),
        r"1 unexpected \(model\.vision_tower\.stowaway\) keys",
    ),
    "a weight under both its names": (
        lambda f: rewrite(f, lambda t: t.update({f"model.{FIRST_LINEAR}": t[FIRST_LINEAR].clone()})),
        rf"model\.{FIRST_LINEAR} stands in the files twice",
    ),
    "a wrong shape": (
        lambda f: rewrite(f, lambda t: t.update({FIRST_LINEAR: t[FIRST_LINEAR].T.contiguous()})),
        rf"{FIRST_LINEAR} has shape \(32, 64\); the config asks for \(64, 32\)",
    ),
    "images of another size than the tower was made for": (
        lambda f: edit_config(f, "vision_config", image_size=16),
        rf"{POSITIONS} has shape \(9, 32\); the config asks for \(16, 32\)",
    ),
    "images smaller than a patch": (
        lambda f: edit_config(f, "vision_config", image_size=3),
        r"config\.json: image_size 3 and patch_size 4: a square image of at least one patch is needed",
    ),
    "images that are no squares": (
        lambda f: edit_config(f, "vision_config", image_size=[12, 24]),
        r"config\.json: image_size \[12, 24\] and patch_size 4: a square image",
    ),
    "a placeholder out of the vocabulary": (
        lambda f: edit_config(f, image_token_index=258),
        r"config\.json: image_token_index 258: the vocabulary has 258 tokens",
    ),
    "a placeholder before all text": (
        lambda f: edit_config(f, image_token_index=0),
        r"image_token_index 0: .* must be one of them, behind those of text",
    ),
    "features of a layer that the tower does not have": (
        lambda f: edit_config(f, vision_feature_layer=7),
        r"config\.json: the vision tower does not run as it says: ",
    ),
    "a tower of images of any size": (pixtral, r"config\.json: vision tower of type pixtral: images are known to clip"),
    "more layers than there are": (lambda f: None, r"3 layers asked for; the checkpoint has 2"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_folder_that_cannot_be_used_is_refused_with_what_is_wrong(name: str, folder: Path) -> None:
    spoil, message = SPOILT[name]
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(folder, num_layers=3 if "more layers" in name else None, dtype=torch.float32)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["a missing tensor", "a placeholder out of the vocabulary", "more layers than there are"]
)
def test_the_program_says_so_in_one_message_and_status_2(name: str, folder: Path, check: Any) -> None:
    spoil, message = SPOILT[name]
    spoil(folder)
    depth = ("--layers", 3) if "more layers" in name else ()
    status, said = check("--model", folder, "--case", SHOWS_MOST, "--subject", "split", "--variation", "eager", *depth)
    assert status == 2, said
    assert said.count("\n") == 1
    assert re.search(message, said)

"""Checkpoint folders: every key accounted for, safetensors only, and what is wrong is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config

from verify.models.checkpoint import CheckpointError, load_checkpoint
from verify.models.configs import TINY_CONFIGS, named_config
from verify.models.family import build_family
from verify.models.random_weights import build_random
from verify.models.request import ModelRequest, build_model, vocabulary_size

WEIGHTS = "model.safetensors"
UP_PROJ = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.mlp.experts.7"


@pytest.fixture(scope="module")
def original() -> Any:
    return build_random(named_config("tiny"), num_layers=2, dtype=torch.float32, seed=5)


@pytest.fixture(scope="module")
def saved(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "saved"
    original.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoint"))


def load(folder: Path, *, num_layers: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    model, _ = load_checkpoint(folder, num_layers=num_layers, dtype=dtype)
    return model


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_index(folder: Path, index: object) -> None:
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def assert_same(model: Any, original: Any) -> None:
    expected = dict(original.named_parameters())
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].to(found[name].dtype)) for name in expected)


# What loads.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_was_saved_is_what_is_loaded(saved: Path, original: Any, dtype: torch.dtype) -> None:
    model, published = load_checkpoint(saved, num_layers=None, dtype=dtype)
    assert published == 2
    assert_same(model, original)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(module.training for module in model.modules())


def test_a_loaded_model_computes_what_the_saved_one_did(saved: Path, original: Any) -> None:
    """Also what no parameter holds, the rotary frequencies, is in place."""
    ids = torch.tensor([list(range(40))])
    with torch.no_grad():
        assert torch.equal(load(saved)(input_ids=ids).logits, original(input_ids=ids).logits)


def test_an_index_and_its_shards_load_as_one_file_does(original: Any, tmp_path: Path) -> None:
    original.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same(load(tmp_path), original)


def test_a_tied_head_is_read_once_and_shared(tmp_path: Path, original: Any) -> None:
    config = original.config.to_dict() | {"tie_word_embeddings": True}
    tied = type(original)(type(original.config)(**config)).eval()
    tied.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, tied.lm_head.weight)


def test_a_tied_head_may_lie_in_the_file_as_well(tmp_path: Path, original: Any) -> None:
    config = original.config.to_dict() | {"tie_word_embeddings": True}
    tied = type(original)(type(original.config)(**config)).eval()
    tied.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert torch.equal(load(tmp_path).lm_head.weight, tied.lm_head.weight)


@pytest.mark.parametrize("name", [name for name in TINY_CONFIGS if name != "tiny"])
def test_every_family_comes_back_from_its_folder_as_it_was_saved(tmp_path: Path, name: str) -> None:
    built = build_random(named_config(name), num_layers=2, dtype=torch.float32, seed=5)
    built.save_pretrained(tmp_path)
    assert_same(load(tmp_path), built)
    assert load(tmp_path, num_layers=1).config.model_type == named_config(name).model_type


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{EXPERT}.up_proj.weight"), rf"1 missing \({EXPERT}\.up_proj\.weight\) keys"),
        (
            lambda t: t.update({f"{EXPERT}.up_proj.weight": t[f"{EXPERT}.up_proj.weight"][:-1].contiguous()}),
            r"up_proj\.weight has shape \(31, 64\); the config asks for \(32, 64\)",
        ),
        (
            lambda t: t.update({EXPERT.replace("7", "8") + ".up_proj.weight": torch.zeros(32, 64)}),
            r"1 unexpected \(model\.layers\.1\.mlp\.experts\.8\.up_proj\.weight\)",
        ),
    ],
)
def test_every_matrix_of_every_expert_is_accounted_for(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    build_random(named_config("tiny-qwen3-moe"), num_layers=2, dtype=torch.float32, seed=5).save_pretrained(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_a_cut_keeps_the_first_layers_and_the_rest(saved: Path, original: Any) -> None:
    model, published = load_checkpoint(saved, num_layers=1, dtype=torch.float32)
    assert published == 2
    assert len(model.model.layers) == 1
    expected = {n: p for n, p in original.named_parameters() if ".layers.1." not in n}
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_layers_that_are_called_h_are_cut_as_well(tmp_path: Path) -> None:
    whole = build_family("gpt2", dtype=torch.float32, seed=0)
    whole.save_pretrained(tmp_path)
    depth = whole.config.num_hidden_layers
    assert depth > 1
    model, published = load_checkpoint(tmp_path, num_layers=1, dtype=torch.float32)
    assert (model.config.num_hidden_layers, published) == (1, depth)
    kept = dict(model.named_parameters())
    assert not any(".h.1." in name for name in kept)
    assert all(torch.equal(kept[name], p) for name, p in whole.named_parameters() if name in kept)


@pytest.mark.parametrize("layers", [0, 3])
def test_a_depth_that_the_checkpoint_does_not_have_is_refused(saved: Path, layers: int) -> None:
    with pytest.raises(CheckpointError, match=f"{layers} layers asked for; the checkpoint has 2"):
        load(saved, num_layers=layers)


def test_weights_finer_than_bfloat16_are_noticed(folder: Path) -> None:
    """Then each dtype runs other values, and the oracle may not be shared among them."""
    request = ModelRequest(name=str(folder))
    assert request.is_checkpoint
    assert vocabulary_size(request) == 257
    assert build_model(request, "float32").exact_in_bfloat16
    rewrite(folder, lambda t: t[UP_PROJ].add_(1e-4))
    under_test = build_model(request, "float32")
    assert not under_test.exact_in_bfloat16
    assert (under_test.weights, under_test.num_layers_published) == ("local checkpoint", 2)


# What does not.


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing key": (
        lambda f: rewrite(f, lambda t: t.pop(UP_PROJ)),
        rf"the weights do not fit config\.json: 1 missing \({UP_PROJ}\) keys",
    ),
    "an unexpected key": (
        lambda f: rewrite(f, lambda t: t.update({"model.stowaway": torch.zeros(1)})),
        r"1 unexpected \(model\.stowaway\) keys",
    ),
    "a renamed key": (
        lambda f: rewrite(f, lambda t: t.update({"model.layers.1.mlp.up.weight": t.pop(UP_PROJ)})),
        rf"1 missing \({UP_PROJ}\) and 1 unexpected \(model\.layers\.1\.mlp\.up\.weight\) keys",
    ),
    "a transposed weight": (
        lambda f: rewrite(f, lambda t: t.update({UP_PROJ: t[UP_PROJ].T.contiguous()})),
        rf"{UP_PROJ} has shape \(64, 96\); the config asks for \(96, 64\)",
    ),
    "a config of another width": (
        lambda f: edit_config(f, intermediate_size=100),
        r"has shape .*96.*; the config asks for .*100",
    ),
    "a config of more layers": (
        lambda f: edit_config(f, num_hidden_layers=3, layer_types=["full_attention"] * 3),
        r"11 missing \(model\.layers\.2\.",
    ),
    "no head where none is shared": (
        lambda f: rewrite(f, lambda t: t.pop("lm_head.weight")),
        r"1 missing \(lm_head\.weight\) keys",
    ),
    "a file cut short": (
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-100]),
        r"model\.safetensors: damaged or not safetensors: ",
    ),
    "a file of something else": (
        lambda f: (f / WEIGHTS).write_text("<html>not found</html>"),
        r"model\.safetensors: damaged or not safetensors: ",
    ),
    "a pointer of git-lfs": (
        lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        r"model\.safetensors: damaged or not safetensors: ",
    ),
    "pickled weights only": (
        lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"),
        r"found pickled weights pytorch_model\.bin, which are never opened; convert them to safetensors",
    ),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), r"found no weights; convert them to safetensors"),
    "an index of absent files": (
        lambda f: write_index(f, {"weight_map": {"a": "x.safetensors", "b": WEIGHTS}}),
        r"model\.safetensors\.index\.json names x\.safetensors, which is not there \(1 of 2 absent\)",
    ),
    "an index that is none": (
        lambda f: write_index(f, []),
        r"index\.json: not an index with a weight_map",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), r"has no config\.json: it is not a checkpoint"),
    "a config that is not JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json: "),
    "a config of no known model": (
        lambda f: (f / "config.json").write_text('{"model_type": "abacus"}'),
        r"config\.json: ",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_folder_that_cannot_be_used_is_refused_with_what_is_wrong(folder: Path, name: str) -> None:
    spoil, message = SPOILT[name]
    spoil(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_a_path_that_is_no_folder_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder: give the folder of a checkpoint"):
        load(folder / "config.json")


def test_a_config_with_one_for_text_inside_is_refused_for_its_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16}
    vision = {**sizes, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"the weights do not fit config\.json"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="2 layers asked for; the checkpoint has 1"):
        load(tmp_path, num_layers=2)


def test_pickled_weights_beside_safetensors_are_never_opened(folder: Path, original: Any) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert_same(load(folder), original)


def test_code_in_the_folder_is_not_run(folder: Path) -> None:
    edit_config(folder, model_type="abacus", auto_map={"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"})
    (folder / "mine.py").write_text("raise SystemExit('run')")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        load(folder)

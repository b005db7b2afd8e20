from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor, nn

from packed_impl import reference_cache
from packed_impl.reference_cache import ReferenceCache, build_cache, row_identity
from packed_impl.reference_policy import ADAPTERS_OFF, CachedLogps
from packed_impl.step import dpo_loss

Build = Callable[..., nn.Module]
Unpacked = Callable[..., list[Tensor]]

FAULT = "the cache was built with another tokenizer, template or data"


def cache_of(groups: Sequence[Any], dtype: torch.dtype = torch.float32, **fields: str) -> ReferenceCache:
    """Log-probs that count up, so that every token has its own."""
    logps, count = {}, 0
    for group in groups:
        responses = group.positives + group.negatives
        for response, mask in zip(responses, group.completion_masks or map(all_true, responses), strict=True):
            logps[row_identity(group.prompt_ids, response, mask)] = -torch.arange(count, count + len(response)).to(
                dtype
            )
            count += len(response)
    return ReferenceCache(logps, **{"reference": "adapters-off", **fields})


def all_true(response: Sequence[int]) -> tuple[bool, ...]:
    return (True,) * len(response)


def test_the_identity_is_a_hash_of_lengths_tokens_and_mask() -> None:
    written_out = struct.pack("<7q", 2, 3, 10, 11, 7, 8, 9) + b"\x01\x00\x01"
    assert row_identity((10, 11), (7, 8, 9), (True, False, True)) == hashlib.sha256(written_out).hexdigest()


ids = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
rows = st.tuples(ids, ids).flatmap(
    lambda row: st.tuples(st.just(row[0]), st.just(row[1]), st.tuples(*[st.booleans()] * len(row[1])))
)


@given(st.lists(rows, min_size=2, max_size=40, unique=True))
def test_no_two_rows_are_one(rows: list[Any]) -> None:
    assert len({row_identity(*row) for row in rows}) == len(rows)


@pytest.mark.parametrize("slots_per_pass", [1, 15, 4096])
def test_a_cache_holds_what_the_frozen_policy_says_to_each_row_alone(
    tiny_model: Build, unpacked_logps: Unpacked, pair_and_group: list[Any], make_group: Any, slots_per_pass: int
) -> None:
    model = tiny_model(torch.float64)
    groups = [*pair_and_group, make_group((9, 8), ((3, 4, 5),), ((6,),), ((True, False, True), (True,)))]
    cache = build_cache(
        model, groups, reference=ADAPTERS_OFF, backend="split", slots_per_pass=slots_per_pass, logit_chunk=5
    )
    with torch.no_grad(), model.disable_adapter():
        expected = unpacked_logps(model, groups)
    for actual, wanted in zip(cache.look_up(groups), expected, strict=True):
        assert not actual.requires_grad
        assert actual.dtype == torch.float64
        assert (actual - wanted).abs().max() < 2e-6
    assert cache.reference == "adapters-off"


def test_rows_are_found_by_what_they_are_in_any_order(
    tiny_model: Build, pair_and_group: list[Any], make_group: Any
) -> None:
    """The prompts are as long as each other, and so are the responses: by index all of this would fit."""
    model = tiny_model(torch.float64)
    groups = [make_group((i, i + 1), ((i + 2, 3), (i + 9, 4)), ((i + 3, 5),)) for i in range(4)]
    cached = CachedLogps(build_cache(model, groups, reference=ADAPTERS_OFF, backend="dense-sdpa"))
    shuffled = [replace(groups[i], positives=groups[i].positives[::-1]) for i in (2, 0, 3)]
    actual = dpo_loss(model, shuffled, backend="split", beta=0.1, reference=cached)
    expected = dpo_loss(model, shuffled, backend="split", beta=0.1)
    assert actual.loss.item() == pytest.approx(expected.loss.item(), abs=2e-6)
    in_order = torch.cat(cached.cache.look_up(groups))[: len(torch.cat(actual.ref_per_token_logps))]
    assert (torch.cat(actual.ref_per_token_logps) - torch.cat(expected.ref_per_token_logps)).abs().max() < 2e-6
    assert (torch.cat(actual.ref_per_token_logps) - in_order).abs().max() > 0.1


def test_cached_log_probs_run_the_policy_alone(tiny_model: Build, pair_and_group: list[Any]) -> None:
    model, passes = tiny_model().unload(), []
    cached = CachedLogps(cache_of(pair_and_group))
    model.register_forward_hook(lambda *_: passes.append("policy"))
    result = dpo_loss(model, pair_and_group, backend="split", beta=0.1, reference=cached)
    assert passes == ["policy"]
    assert torch.cat(result.ref_per_token_logps).tolist() == [-float(i) for i in range(13)]


def replaced_value(cache: ReferenceCache, number: int, logps: Tensor) -> ReferenceCache:
    return replace(cache, logps={**cache.logps, list(cache.logps)[number]: logps})


def test_what_the_cache_does_not_hold_is_refused_by_the_name_of_the_completion(
    tiny_model: Build, pair_and_group: list[Any]
) -> None:
    model, cache = tiny_model(), cache_of(pair_and_group)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    first, second = pair_and_group
    for groups, held, where, fault in (
        ([first, replace(second, prompt_ids=(8,))], cache, r"group 1, positives\[0\]", "no cached log-probs"),
        ([first, replace(second, negatives=((5, 6),))], cache, r"group 1, negatives\[0\]", "no cached log-probs"),
        (
            [replace(first, completion_masks=((True, True, False), (True,) * 4)), second], cache,
            r"group 0, positives\[0\]", "no cached log-probs",
        ),
        ([first, second], replaced_value(cache, 3, torch.zeros(2)), r"group 1, positives\[1\]", "2 .* for 1 tokens"),
        (
            [first, second], replaced_value(cache, 1, torch.tensor([0, -1, torch.nan, 0])), r"group 0, negatives\[0\]",
            "a cached log-prob of nan",
        ),
        (
            [first, second], replaced_value(cache, 4, torch.tensor([-torch.inf, 0, 0])), r"group 1, negatives\[0\]",
            "a cached log-prob of -inf",
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{where}: {fault}.*; {FAULT}$"):
            dpo_loss(model, groups, backend="split", beta=0.1, reference=CachedLogps(held))


def test_fingerprints_have_to_match_where_both_are_known(pair_and_group: list[Any]) -> None:
    cache = cache_of(pair_and_group, tokenizer_fingerprint="qwen3/0a1b")
    assert len(cache.look_up(pair_and_group, "qwen3/0a1b")) == 5
    assert len(cache.look_up(pair_and_group)) == 5
    assert len(cache_of(pair_and_group).look_up(pair_and_group, "llama/77")) == 5
    with pytest.raises(ValueError, match="are of tokenizer 'qwen3/0a1b', the batch is of 'llama/77'"):
        cache.look_up(pair_and_group, "llama/77")


def test_a_log_prob_that_is_no_number_is_not_cached(tiny_model: Build, pair_and_group: list[Any]) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[10] = torch.nan  # in the negative of the pair alone
    with pytest.raises(ValueError, match=r"group 0, negatives\[0\]: adapters-off gives a log-prob that is not finite"):
        build_cache(model, pair_and_group, reference=ADAPTERS_OFF, backend="split")


# The file.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_cache_comes_back_as_it_was_saved(tmp_path: Path, pair_and_group: list[Any], dtype: torch.dtype) -> None:
    path, cache = tmp_path / "ref.safetensors", cache_of(pair_and_group, dtype, tokenizer_fingerprint="ключ")
    path.write_text("an older file")
    cache.save(path)
    loaded = ReferenceCache.load(path)
    assert (loaded.reference, loaded.tokenizer_fingerprint) == (cache.reference, cache.tokenizer_fingerprint)
    assert list(loaded.logps) == list(cache.logps)
    assert all(torch.equal(loaded.logps[key], cache.logps[key]) for key in cache.logps)
    assert {logps.dtype for logps in loaded.logps.values()} == {dtype}
    assert [each.name for each in tmp_path.iterdir()] == ["ref.safetensors"]


def test_a_byte_that_changed_anywhere_is_noticed(tmp_path: Path, pair_and_group: list[Any]) -> None:
    path = tmp_path / "ref.safetensors"
    cache_of(pair_and_group, tokenizer_fingerprint="qwen").save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"is damaged|no reference cache"):
            ReferenceCache.load(path)
    for length in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged, or no reference cache"):
            ReferenceCache.load(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"logps": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="is no reference cache: its metadata has no 'packparity-reference-cache-1'"):
        ReferenceCache.load(path)
    path.write_bytes(b"\x80\x04K\x01.")  # a pickle
    with pytest.raises(ValueError, match="is damaged, or no reference cache"):
        ReferenceCache.load(path)
    with pytest.raises(FileNotFoundError):
        ReferenceCache.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("changes", "about", "fault"),
    [
        ({}, {"reference": "adapters-off"}, "metadata has reference where strings reference and tokenizer_fingerprint"),
        ({}, {"reference": "adapters-off", "tokenizer_fingerprint": 3}, "where strings"),
        ({"lengths": torch.tensor([2, 2])}, None, r"log-probs are torch.float32 \[3\], not floating \[4\]"),
        ({"lengths": torch.tensor([4, -1])}, None, "each at least 1"),
        ({"lengths": torch.tensor(3)}, None, r"lengths are torch.int64 \[\], not int64 in one dimension"),
        ({"identities": torch.zeros(2, 5, dtype=torch.uint8)}, None, r"identities are torch.uint8 \[2, 5\], not uint8"),
        ({"identities": torch.zeros(2, 32, dtype=torch.uint8)}, None, "a completion is in it twice"),
        ({"logps": torch.zeros(3, dtype=torch.int64)}, None, "log-probs are torch.int64"),
    ],
)
def test_a_file_with_a_right_digest_is_looked_at_too(
    tmp_path: Path, changes: dict[str, Tensor], about: dict[str, Any] | None, fault: str
) -> None:
    """Something else may write such files; what is wrong in one must not surface as an error of torch."""
    identities = torch.arange(64, dtype=torch.uint8).view(2, 32)
    tensors = {"identities": identities, "lengths": torch.tensor([2, 1]), "logps": torch.zeros(3), **changes}
    fields = about or {"reference": "adapters-off", "tokenizer_fingerprint": ""}
    text = json.dumps({**fields, "digest": reference_cache._digest(fields, tensors)})
    path = tmp_path / "ref.safetensors"
    path.write_bytes(save(tensors, metadata={reference_cache._FORMAT: text}))
    with pytest.raises(ValueError, match=rf"{path.name} is no reference cache: .*{fault}.*; build the cache again"):
        ReferenceCache.load(path)


def test_a_file_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, pair_and_group: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ref.safetensors"
    path.write_text("an older file")

    def fail(_: int) -> None:
        raise OSError("disk full, say")

    monkeypatch.setattr("packed_impl.reference_cache.os.fsync", fail)
    with pytest.raises(OSError, match="say"):
        cache_of(pair_and_group).save(path)
    assert path.read_text() == "an older file"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "logps",
    [{}, {"a": torch.zeros(2, 2)}, {"a": torch.zeros(2).int()}, {"a": torch.zeros(1), "b": torch.zeros(1).half()}],
)
def test_log_probs_of_another_kind_are_refused(logps: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"no completions|expected 1-D floating tensors of one dtype"):
        ReferenceCache(logps, "adapters-off")

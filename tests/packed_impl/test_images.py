"""Images in packed rows, against each image alone through the tower and each sequence alone through the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, SiglipVisionConfig

from packed_impl.attention import BACKENDS, attention_implementation
from packed_impl.bins import LAYOUTS
from packed_impl.branches import plan_branches
from packed_impl.layout import pack
from packed_impl.reference_cache import row_identity
from packed_impl.step import per_token_logps

PLACEHOLDER = 60
SEEN = (PLACEHOLDER,) * 4


@dataclass(frozen=True)
class Pixels:
    shape: tuple[int, int, int]
    pixels: bytes
    token_id: int = PLACEHOLDER


def image(seed: int) -> Pixels:
    values = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Pixels((3, 8, 8), values.numpy().tobytes())


@pytest.fixture
def llava() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        text_config=Qwen2Config(vocab_size=PLACEHOLDER + 1, num_key_value_heads=1, **sizes),
        vision_config=SiglipVisionConfig(image_size=8, patch_size=4, vision_use_head=False, **sizes),
        image_token_index=PLACEHOLDER,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = LlavaForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture
def groups(make_group: Any) -> list[Any]:
    """Two groups of one text and different images, one without, one with both images, one that ends with its image."""
    return [
        make_group((1, *SEEN, 2), ((3, 4),), ((5,),), images=(image(1),)),
        make_group((1, *SEEN, 2), ((3, 4), (3, 7, 8)), ((9,),), images=(image(2),)),
        make_group((1, 12), ((13,),), ((14, 15),)),
        make_group((*SEEN, *SEEN, 1), ((3,),), ((5, 6),), images=(image(2), image(1))),
        make_group((2, *SEEN), ((3,),), ((5, 6),), images=(image(1),)),
    ]


def alone(model: Any, group: Any) -> list[torch.Tensor]:
    """One sequence at a time, features written over the embeddings by hand."""
    result = []
    for response in group.positives + group.negatives:
        ids = torch.tensor(group.prompt_ids + response)
        embedded = model.get_input_embeddings()(ids).clone()
        places = (ids == PLACEHOLDER).nonzero()[:, 0].split(4) if group.images else ()
        for each, at in zip(group.images, places, strict=True):
            pixels = torch.frombuffer(bytearray(each.pixels), dtype=torch.float32).double().view(1, *each.shape)
            tower = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]
            embedded[at] = model.model.multi_modal_projector(tower)[0]
        hidden = model.model.language_model(inputs_embeds=embedded[None]).last_hidden_state[0]
        logps = model.lm_head(hidden)[len(group.prompt_ids) - 1 : -1].log_softmax(-1)
        result.append(logps[torch.arange(len(response)), torch.tensor(response)])
    return result


@contextmanager
def images_seen(model: Any) -> Iterator[list[int]]:
    """Number of images in each call of the vision tower."""
    seen: list[int] = []
    handle = model.model.vision_tower.register_forward_hook(lambda _module, args, _output: seen.append(len(args[0])))
    try:
        yield seen
    finally:
        handle.remove()


@pytest.mark.parametrize("rows", ["one-row", "row-per-group", [(3, 1), (4, 0, 2)]], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_rows_with_images_are_the_sequences_alone(backend, layout, rows, llava, groups) -> None:
    with torch.no_grad(), images_seen(llava) as seen:
        actual = per_token_logps(llava, groups, backend=backend, layout=layout, rows=rows)
    assert seen == [2], "each distinct image once, whatever the layout repeats"
    with torch.no_grad():
        expected = [logps for group in groups for logps in alone(llava, group)]
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6)


def test_gradients_of_a_trained_tower_are_summed_over_all_branches(llava, groups) -> None:
    def gradients(logps: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        flat = torch.cat(logps)
        parameters = [*llava.model.multi_modal_projector.parameters(), *llava.model.vision_tower.parameters()]
        found = torch.autograd.grad((torch.linspace(-1, 2, len(flat)) * flat).sum(), parameters, allow_unused=True)
        return tuple(each for each in found if each is not None)

    actual = gradients(per_token_logps(llava, groups, backend="split"))
    expected = gradients([logps for group in groups for logps in alone(llava, group)])
    assert len(actual) > 20
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_prefix_tree_does_not_share_prompts_of_different_images(groups) -> None:
    """Equal tokens, different pictures: groups 0 and 1 share the token before the image and nothing else."""
    different = pack(groups[:2], layout="prefix-tree").input_ids
    equal = pack([groups[0], replace(groups[1], images=groups[0].images)], layout="prefix-tree").input_ids
    assert different.shape[1] - equal.shape[1] == 4 + 1 + 2  # placeholders, the token behind them, the response 3 4
    assert (different == PLACEHOLDER).sum() == 8
    assert (equal == PLACEHOLDER).sum() == 4


def test_branches_of_equal_prompts_and_different_images_stay_apart(groups) -> None:
    plan = plan_branches(groups[:2], 8, layout="shared-prompt")
    assert plan.branch_of_completion.tolist() == [0, 1, 2, 3, 4]
    assert [each.images for each in plan.groups] == [groups[0].images, groups[1].images]


def test_cached_log_probs_are_known_by_their_images_too() -> None:
    keys = {
        row_identity((1, *SEEN), (3,), (True,), images)
        for images in ((), (image(1),), (image(2),), (image(1), image(2)), (replace(image(1), shape=(3, 4, 16)),))
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": (1, *SEEN[1:], 2)}, "group 1 has 3 image tokens .* expected 4 for each, as in group 0"),
        ({"images": (image(1), image(2))}, "group 1 has 4 image tokens .* for 2 images"),
        ({"images": ()}, "group 1 has 4 image tokens .* for 0 images"),
        ({"positives": ((3, PLACEHOLDER),)}, "group 1 has image token 60 in a response"),
        ({"images": (replace(image(1), token_id=59),)}, "placeholders .59, 60."),
    ],
)
def test_placeholders_that_do_not_match_the_images_are_refused(change, message, groups) -> None:
    with pytest.raises(ValueError, match=message):
        pack([groups[0], replace(groups[1], **change)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": (1, *SEEN[1:], 2)}, "3 image tokens for each .* makes 4 features"),
        ({"images": ()}, "slot 1 of row 0 holds token 60 and no feature"),
        ({"prompt_ids": (1, 59, 2), "images": (replace(image(1), token_id=59),)}, "holds token 59 and a feature"),
    ],
)
def test_images_that_do_not_match_the_model_are_refused(change, message, llava, groups) -> None:
    with pytest.raises(ValueError, match=message):
        per_token_logps(llava, [replace(groups[0], **change)], backend="split")


def test_a_model_without_a_vision_tower_takes_no_images(tiny_model, groups) -> None:
    with pytest.raises(ValueError, match="1 images for model type qwen3"):
        per_token_logps(tiny_model(), groups[:1], backend="dense-sdpa")


def test_the_tower_keeps_its_attention(llava, groups) -> None:
    seen = []
    tower = llava.model.vision_tower
    tower.register_forward_hook(lambda module, _args, _output: seen.append(module.config._attn_implementation))
    decoder = llava.model.language_model
    tower.set_attn_implementation("eager")
    with attention_implementation(llava, "split"):  # as around a step, which enters it again for each pass
        per_token_logps(llava, groups, backend="split")
        per_token_logps(llava, groups, backend="split")
        assert decoder.config._attn_implementation == "packed-split"
    assert seen == ["eager", "eager"]
    assert (tower.config._attn_implementation, decoder.config._attn_implementation) == ("eager", "sdpa")

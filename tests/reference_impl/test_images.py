"""The unpacked path with images, against features put into the embeddings by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, SiglipVisionConfig

from reference_impl.groups import unpack
from reference_impl.images import check_images, tokens_per_image
from reference_impl.logps import completion_logps
from reference_impl.pairwise import per_token_logps

PLACEHOLDER = 60
VARIATIONS: list[dict[str, Any]] = [
    {},
    {"batching": "row-per-sequence", "row_order": "reversed", "junk_tokens_in_front": 3},
    {"batching": "padded-right", "extra_padding": 2},
    {"batching": "padded-left", "row_order": "reversed"},
    {"batching": "padded-left", "max_rows": 3},
]


@dataclass(frozen=True)
class Pixels:
    shape: tuple[int, int, int]
    pixels: bytes


@dataclass(frozen=True)
class ImageGroup:
    prompt_ids: tuple[int, ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    images: tuple[Pixels, ...]
    completion_masks: tuple[tuple[bool, ...], ...] = ()


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
def groups() -> list[ImageGroup]:
    """Two groups of one text and different images, the second with two, and one without beside them."""
    seen = (PLACEHOLDER,) * 4
    return [
        ImageGroup((1, *seen, 2), ((3, 4),), ((5,),), (image(1),)),
        ImageGroup((1, *seen, 2), ((3, 4), (6, 7, 8)), ((9,),), (image(2),)),
        ImageGroup((11, 12), ((13,),), ((14, 15),), ()),
        ImageGroup((*seen, *seen, 1), ((3,),), ((5, 6),), (image(2), image(1))),
    ]


def by_hand(model: Any, group: ImageGroup) -> list[torch.Tensor]:
    """Each image alone through the tower, its features written over the embeddings of its placeholders."""
    result = []
    for completion in (*group.positives, *group.negatives):
        ids = torch.tensor(group.prompt_ids + completion)
        embedded = model.get_input_embeddings()(ids).clone()
        places = (ids == PLACEHOLDER).nonzero()[:, 0].split(4) if group.images else ()
        for each, at in zip(group.images, places, strict=True):
            pixels = torch.frombuffer(bytearray(each.pixels), dtype=torch.float32).double().view(1, *each.shape)
            tower = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]  # before its norm
            embedded[at] = model.model.multi_modal_projector(tower)[0]
        hidden = model.model.language_model(inputs_embeds=embedded[None]).last_hidden_state[0]
        logps = model.lm_head(hidden)[len(group.prompt_ids) - 1 : -1].log_softmax(-1)
        result.append(logps[torch.arange(len(completion)), torch.tensor(completion)])
    return result


@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_features_stand_in_the_place_of_their_own_placeholders(variation, llava, groups) -> None:
    with torch.no_grad():
        actual = per_token_logps(llava, groups, **variation)
        expected = [logps for group in groups for logps in by_hand(llava, group)]
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


def test_another_image_is_another_log_prob(llava, groups) -> None:
    other = [replace(groups[0], images=groups[1].images)]
    assert not torch.allclose(per_token_logps(llava, groups[:1])[0], per_token_logps(llava, other)[0], atol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": (1, *(PLACEHOLDER,) * 3, 2)}, "3 image tokens .* expected 1 x 4"),
        ({"images": ()}, "4 image tokens .* 0 images"),
        ({"images": (image(1), image(2))}, "4 image tokens .* expected 2 x 4"),
        ({"positives": ((3, PLACEHOLDER),)}, "1 in its completion"),
    ],
)
def test_placeholders_that_do_not_match_the_images_are_refused(change, message, llava, groups) -> None:
    with pytest.raises(ValueError, match=message):
        per_token_logps(llava, [groups[2], replace(groups[0], **change)])


def test_a_model_without_a_vision_tower_takes_no_images(tiny, groups) -> None:
    with pytest.raises(ValueError, match="no vision tower"):
        per_token_logps(tiny().model, groups[:1])


def test_the_oracle_takes_no_images(tiny, groups) -> None:
    made = tiny()
    with pytest.raises(ValueError, match="text alone"):
        completion_logps(unpack(groups)[0], made.weights, made.config)


@pytest.mark.parametrize(
    ("vision", "strategy", "expected"),
    [
        (SiglipVisionConfig(image_size=384, patch_size=14), "full", 729),  # llava-interleave-qwen-0.5b
        (CLIPVisionConfig(image_size=336, patch_size=14), "default", 576),  # llava-1.5-7b
        (CLIPVisionConfig(image_size=336, patch_size=14), "full", 577),
    ],
)
def test_published_models_make_as_many_features_as_they_say(vision, strategy, expected) -> None:
    config = LlavaConfig(vision_config=vision, vision_feature_select_strategy=strategy)
    assert tokens_per_image(config) == expected


def test_images_are_for_models_of_the_llava_kind(groups) -> None:
    config = LlavaConfig()
    config.model_type = "other"
    with pytest.raises(ValueError, match="only models of type llava"):
        check_images(groups[0].images, groups[0].prompt_ids, (1,), config, "here")

"""Models with sliding windows shorter than prompts and branches, against themselves unpacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packed_impl import dense
from packed_impl.attention import BACKENDS, attention_implementation, causal_lm
from packed_impl.forest import Forest, attention_rule
from packed_impl.layout import LAYOUTS
from packed_impl.step import per_token_logps
from packed_impl.windows import LayerWindows, layer_windows

Build = Callable[..., nn.Module]
Unpacked = Callable[..., list[Tensor]]
Gradients = Callable[..., dict[str, Tensor]]

WITH_GRADIENTS = tuple(backend for backend in BACKENDS if backend != "flex")
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "every layer": {"family": "mistral", "sliding_window": 3},
    "mixed": {
        "family": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 4,
        "num_hidden_layers": 3,
        "layer_types": MIXED,
    },
}
ROWS: list[Any] = ["one-row", "row-per-group", [[2, 0], [1]]]
# As in test_step.py: norms and angles of the models are float32 always.
LOGP_TOLERANCE, GRADIENT_TOLERANCE = 2e-6, 5e-6


@pytest.fixture
def groups(make_group: Any) -> list[Any]:
    """Prompts and branches longer than the windows and shorter; branches that begin alike."""
    return [
        make_group((1, 2, 3, 4, 5, 6), ((6, 7, 8, 9, 10),), ((9, 10, 11, 12, 13, 14), (9, 10, 5), (20,))),
        make_group((7,), ((3, 3), (1,)), ((5, 6, 7, 8, 9, 10, 11),)),
        make_group((1, 2, 3, 8), ((21, 22),), ((23, 24, 25, 26),)),
    ]


def worst(actual: list[Tensor], expected: list[Tensor]) -> float:
    return max((a - e).abs().max().item() for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("rows", ROWS, ids=["one-row", "row-per-group", "bins"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WITH_GRADIENTS)
@pytest.mark.parametrize("model_name", MODELS)
def test_log_probs_and_gradients_are_those_of_the_unpacked_model(
    tiny_model: Build,
    unpacked_logps: Unpacked,
    trained_gradients: Gradients,
    groups: list[Any],
    model_name: str,
    backend: str,
    layout: str,
    rows: Any,
) -> None:
    model = tiny_model(torch.float64, **MODELS[model_name])
    actual = per_token_logps(model, groups, backend=backend, layout=layout, rows=rows)
    expected = unpacked_logps(model, groups)
    assert worst(actual, expected) < LOGP_TOLERANCE
    ours, theirs = trained_gradients(model, actual), trained_gradients(model, expected)
    assert all(theirs[name].norm() > 0 for name in theirs)
    assert (
        max(((ours[name] - theirs[name]).norm() / theirs[name].norm()).item() for name in theirs) < GRADIENT_TOLERANCE
    )


@pytest.mark.parametrize("rows", ROWS, ids=["one-row", "row-per-group", "bins"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model_name", MODELS)
def test_flex_log_probs_are_those_of_the_unpacked_model(
    tiny_model: Build, unpacked_logps: Unpacked, groups: list[Any], model_name: str, layout: str, rows: Any
) -> None:
    model = tiny_model(torch.float64, **MODELS[model_name])
    with torch.no_grad():
        actual = per_token_logps(model, groups, backend="flex", layout=layout, rows=rows)
        assert worst(actual, unpacked_logps(model, groups)) < LOGP_TOLERANCE


@pytest.mark.parametrize("window", [1, 2, 8, 100])
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_window_agrees(
    tiny_model: Build, unpacked_logps: Unpacked, groups: list[Any], backend: str, window: int
) -> None:
    model = tiny_model(torch.float64, family="mistral", sliding_window=window)
    with torch.no_grad():
        actual = per_token_logps(model, groups, backend=backend, layout="prefix-tree")
        assert worst(actual, unpacked_logps(model, groups)) < LOGP_TOLERANCE


def over_slots(forest: Forest, window: int | None) -> Tensor:
    slots = torch.arange(forest.num_slots)
    near = slots[:, None] - slots[None, :] < (window or forest.num_slots)
    return attention_rule(forest) & near


MISTAKES: dict[str, Callable[[Forest, int | None], Tensor]] = {
    "over slots": over_slots,
    "one key too many": lambda forest, window: attention_rule(forest, window and window + 1),
    "one key too few": lambda forest, window: attention_rule(forest, window and window - 1),
    "ignored": lambda forest, window: attention_rule(forest),
    "in every layer": lambda forest, window: attention_rule(forest, window or 4),
}


@pytest.mark.parametrize(
    ("model_name", "mistake"),
    [
        (model, mistake)
        for model in MODELS
        for mistake in MISTAKES
        if (model, mistake) != ("every layer", "in every layer")
    ],
)
@pytest.mark.parametrize("backend", ["dense-eager", "dense-sdpa"])
def test_a_wrong_window_moves_log_probs(
    tiny_model: Build,
    unpacked_logps: Unpacked,
    groups: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    model_name: str,
    backend: str,
    mistake: str,
) -> None:
    monkeypatch.setattr(dense, "attention_rule", MISTAKES[mistake])
    model = tiny_model(torch.float64, **MODELS[model_name])
    with torch.no_grad():
        actual = per_token_logps(model, groups, backend=backend)
        assert worst(actual, unpacked_logps(model, groups)) > 0.1


@pytest.mark.parametrize("backend", ["flex", "split"])
def test_layers_handed_each_others_windows_are_refused(
    tiny_model: Build, groups: list[Any], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    swapped = LayerWindows({"full_attention": 4, "sliding_attention": None})
    monkeypatch.setattr("packed_impl.attention.layer_windows", lambda model: swapped)
    model = tiny_model(**MODELS["mixed"])
    with torch.no_grad(), pytest.raises(ValueError, match="asks for sliding_window 4, its rows came with None"):
        per_token_logps(model, groups, backend=backend)


@pytest.mark.parametrize(
    ("config", "by_type"),
    [
        ({"family": "qwen3"}, {"full_attention": None}),
        ({"family": "mistral", "sliding_window": None}, {"full_attention": None}),
        ({"family": "mistral", "sliding_window": 5}, {"sliding_attention": 5}),
        (MODELS["mixed"], {"full_attention": None, "sliding_attention": 4}),
        (
            {"family": "gemma2", "sliding_window": 6, "targets": ("q_proj",)},
            {"full_attention": None, "sliding_attention": 6},
        ),
    ],
)
def test_the_windows_are_read_off_the_model(
    tiny_model: Build, config: dict[str, Any], by_type: dict[str, int | None]
) -> None:
    assert layer_windows(causal_lm(tiny_model(**config))).by_type == by_type


def changed(model: nn.Module, **settings: object) -> nn.Module:
    for name, value in settings.items():
        setattr(causal_lm(model).config, name, value)
    return model


def test_windows_are_read_anew_each_time(tiny_model: Build) -> None:
    """Neither a config that is written to nor one that is exchanged is taken for the one of the call before."""
    model = causal_lm(tiny_model(family="mistral", sliding_window=5))
    assert layer_windows(model).by_type == {"sliding_attention": 5}
    model.config.sliding_window = 3
    assert layer_windows(model).by_type == {"sliding_attention": 3}
    model.config = model.model.config = type(model.config)(sliding_window=None)
    assert layer_windows(model).by_type == {"full_attention": None}


def test_a_model_put_into_another_one_later_is_seen(tiny_model: Build) -> None:
    model = causal_lm(tiny_model(family="llama"))
    assert layer_windows(model).by_type == {"full_attention": None}
    model.model.layers[1].tower = causal_lm(tiny_model(family="mistral", sliding_window=5))
    with pytest.raises(ValueError, match="beside the text layers packed rows need full attention"):
        layer_windows(model)
    del model.model.layers[1].tower
    assert layer_windows(model).by_type == {"full_attention": None}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "need full or sliding attention"),
        ("llama", {"sliding_window": 4}, "a window of at least 1 that the model's forward applies"),
        ("llama", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "the model's forward applies"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window None: packed rows need a window"),
        ("mistral", {"sliding_window": 0}, "sliding_window 0: packed rows need a window of at least 1"),
        ("mistral", {"layer_types": MIXED}, "one mask for all layers, from sliding_window alone"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "one mask for all layers, from sliding_window alone"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    tiny_model: Build, groups: list[Any], backend: str, family: str, settings: dict[str, Any], message: str
) -> None:
    model = changed(tiny_model(family=family), **settings)
    with pytest.raises(ValueError, match=message), attention_implementation(model, backend):
        pass


@pytest.mark.parametrize("backend", ["flex", "split"])
def test_a_model_that_keeps_its_window_from_the_attention_function_is_refused(
    tiny_model: Build, groups: list[Any], backend: str
) -> None:
    """Qwen2-MoE applies windows in its masks and does not pass them on, so that no function could check them."""
    model = tiny_model(
        family="qwen2_moe",
        targets=("q_proj", "v_proj"),
        use_sliding_window=True,
        sliding_window=4,
        layer_types=MIXED[:2],
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    )
    with torch.no_grad(), pytest.raises(ValueError, match="asks for sliding_window None, its rows came with 4"):
        per_token_logps(model, groups, backend=backend)

"""Our own adapters: what they hand to the implementations, and that they leave the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.models.request import ModelUnderTest
from verify.objective import Preference
from verify.subject import support_for
from verify.subjects.oracle import apply_objective, observe_oracle, read_tensors
from verify.subjects.packed import PACKED_SUBJECTS, PackedSubject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.trained_gradients import trained_name
from verify.verdict import Verdict

Tiny = Callable[[str], ModelUnderTest]


def test_the_oracle_reads_every_tensor_under_its_name_before_wrapping(tiny: Tiny) -> None:
    model = tiny("float32").model
    weights, lora = read_tensors(model)
    plain = model.base_model.model
    expected = {name.replace(".base_layer.", "."): p for name, p in plain.named_parameters() if ".lora_" not in name}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    assert len(lora) == 7
    for name, factors in lora.items():
        assert f"{name}.weight" in weights
        assert tuple(factors.B.shape[:1] + factors.A.shape[1:]) == tuple(weights[f"{name}.weight"].shape)
        assert factors.scaling == 2.0


def test_oracle_and_runner_name_the_lora_tensors_alike(tiny: Tiny, short_case: Case) -> None:
    """A gradient is paired by name: two spellings would leave nothing to compare, and that is an error."""
    model = tiny("float32").model
    expected = observe_oracle(model, short_case.groups, Preference()).gradients
    assert expected is not None
    assert set(expected) == {trained_name(name) for name, p in model.named_parameters() if p.requires_grad}


def test_the_oracle_runs_none_of_the_models_code(tiny: Tiny, short_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("float32").model

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the oracle called the model")

    for module in model.modules():
        monkeypatch.setattr(module, "forward", refuse)
    assert observe_oracle(model, short_case.groups, Preference()).loss.isfinite()


def test_the_oracle_is_the_same_for_every_dtype_of_the_same_values(tiny: Tiny, short_case: Case) -> None:
    wide, narrow = (observe_oracle(tiny(d).model, short_case.groups, Preference()) for d in ("float64", "bfloat16"))
    assert torch.equal(torch.cat(wide.per_token_logps), torch.cat(narrow.per_token_logps))
    assert torch.equal(wide.loss, narrow.loss)


def test_the_objective_of_the_runner_by_hand() -> None:
    """beta 0.5; chosen -1 - 2 against -1.5 - 2, rejected -3 against -2: rewards 0.25 and -0.5, margin 0.75."""
    groups = [PreferenceGroup((1,), ((2, 3),), ((4,),))]
    logps = [torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([-3.0], requires_grad=True)]
    refs = [torch.tensor([-1.5, -2.0]), torch.tensor([-2.0])]
    values = apply_objective(logps, refs, groups, Preference(beta=0.5, label_smoothing=0.2))
    assert values.rewards.detach().tolist() == [0.25, -0.5]
    up, down = 1 / (1 + torch.tensor(-0.75).double().exp()), 1 / (1 + torch.tensor(0.75).double().exp())
    assert float(values.loss.detach()) == pytest.approx(float(-0.8 * up.log() - 0.2 * down.log()))
    (chosen, rejected) = torch.autograd.grad(values.loss, logps)
    slope = 0.5 * float(0.2 * up - 0.8 * down)
    assert chosen.tolist() == pytest.approx([slope, slope])
    assert rejected.tolist() == pytest.approx([-slope])


def test_junk_in_front_moves_sequences_as_far_as_a_row_may(
    tiny: Tiny, draw: Callable[..., tuple[PreferenceGroup, ...]]
) -> None:
    """Trees of 9, 12 and 6 slots: behind the other two, 9 + 12, and 50 junk tokens is as late as one may start."""
    positions = []
    model = tiny("float32").model
    hook = model.get_base_model().register_forward_pre_hook(
        lambda _, args, kwargs: positions.append(kwargs["position_ids"][0].tolist()), with_kwargs=True
    )
    try:
        with torch.no_grad():
            VARIATIONS["junk-in-front"].per_token_logps(model, draw(5, (4, 3, 2), (5, 3, 4), (2, 1, 3)))
    finally:
        hook.remove()
    assert [row[50] for row in positions] == [71] * 6
    assert [len(row) - 50 for row in positions] == [7, 6, 8, 9, 3, 5]
    assert all(row[:50] == [0] * 50 and row[50:] == list(range(71, 71 + len(row) - 50)) for row in positions)


@pytest.mark.parametrize("name", [WITNESS.name, *VARIATIONS])
def test_forms_of_the_unpacked_path_differ_by_rounding_only(tiny: Tiny, two_pairs_case: Case, name: str) -> None:
    model = tiny("float64").model
    form = VARIATIONS.get(name, WITNESS)
    with torch.no_grad():
        found, expected = (s.per_token_logps(model, two_pairs_case.groups) for s in (form, WITNESS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert model.config._attn_implementation == "sdpa"


def test_the_variations_are_other_computations(tiny: Tiny, two_pairs_case: Case) -> None:
    """In float32 at least one of them differs in the last bits: a spread of zero would be no noise floor."""
    model = tiny("float32").model
    with torch.no_grad():
        witness, *others = (
            torch.cat(form.per_token_logps(model, two_pairs_case.groups)) for form in (WITNESS, *VARIATIONS.values())
        )
    spread = max(float((other - witness).abs().max()) for other in others)
    assert 0 < spread < 1e-4


def test_attention_is_put_back_also_where_the_model_raised(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("float32").model

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "forward", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        VARIATIONS["eager"].per_token_logps(model, [PreferenceGroup((1,), ((2,),), ((3,),))])
    assert model.config._attn_implementation == "sdpa"


def test_packed_subjects_have_distinct_names_that_say_what_differs() -> None:
    names = [subject.name for subject in PACKED_SUBJECTS]
    assert len(set(names)) == len(names)
    assert PackedSubject(backend="split").name == "split"
    assert PackedSubject(backend="split", segments="repeat-prompt-token").name == "split/repeat-prompt-token"


def test_flex_has_no_gradients_on_a_cpu_and_says_why(tiny: Tiny) -> None:
    model = tiny("float32").model
    supports = {subject.name: subject.supports_gradients(model) for subject in PACKED_SUBJECTS}
    assert not supports["flex"].supported
    assert supports["flex"].reason
    assert all(support.supported for name, support in supports.items() if not name.startswith("flex"))


def test_one_row_per_group_is_not_judged_where_it_is_the_same_as_one_row(
    short_case: Case, two_pairs_case: Case
) -> None:
    subject = PackedSubject(backend="split", rows="row-per-group")
    assert support_for(subject, two_pairs_case).supported
    assert "one group" in support_for(subject, short_case).reason


def test_flex_passes_forward_on_a_cpu(gate: Callable[..., Any], short_case: Case) -> None:
    """The one test that runs it: it is slow here, and only its forward pass exists."""
    (result,) = gate([PackedSubject(backend="flex")], [short_case], variations=("eager",)).results
    assert result.verdict is Verdict.PASS, result.reasons
    assert {j.verdict for j in result.judgements if j.quantity == "gradients"} == {Verdict.NOT_APPLICABLE}

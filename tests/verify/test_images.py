"""Images in prompts, from the value to the gate on a tiny vision-language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from verify.case_files import cases_text, read_cases
from verify.cases import Case
from verify.check_request import CheckOptions, prepare_check
from verify.default_cases.images import image_cases
from verify.expectation import Expectation
from verify.faults.catalogue import CATALOGUE, FAULTS_OF_REFERENCES
from verify.faults.fault import Packing
from verify.faults.images import FAULTS, MUTANTS
from verify.frozen_policy import REFERENCE_NAMES
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.images import Image, ImageFormat, check_format
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.models.vision import image_format
from verify.objective import Preference, Sft
from verify.observation import observe
from verify.slots import count_slots
from verify.subjects.faulty import FaultySubject
from verify.subjects.honest_stages import honest_stages
from verify.subjects.oracle import apply_objective
from verify.subjects.packed import PackedSubject
from verify.subjects.pairwise import WITNESS
from verify.subjects.selection import BUILT_IN
from verify.verdict import Verdict

FORMAT = ImageFormat((3, 12, 12), token_id=257, num_tokens=9)
CASES = {case.name: case for case in image_cases(257, 0, FORMAT)}
SEEN = (FORMAT.token_id,) * 9


def image(value: float = 0.0) -> Image:
    return Image((3, 12, 12), torch.full((3, 12, 12), value, dtype=torch.float32).numpy().tobytes(), FORMAT.token_id)


@pytest.fixture(scope="module")
def llava() -> ModelUnderTest:
    return build_model(ModelRequest(name="tiny-llava"), "float64")


@contextmanager
def images_seen(model: Any) -> Iterator[list[int]]:
    seen: list[int] = []
    tower = model.base_model.model.model.vision_tower
    handle = tower.register_forward_hook(lambda _module, args, _output: seen.append(len(args[0])))
    try:
        yield seen
    finally:
        handle.remove()


def objective_of(name: str) -> Preference | Sft:
    return Sft(mean="token") if name == "sft-token-mean" else Preference(beta=0.3, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": (3, 0, 12)}, "all at least 1"),
        ({"pixels": b"123"}, "3 bytes of pixels, expected 1728"),
        ({"token_id": -1}, "non-negative"),
    ],
)
def test_an_image_that_is_none_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(image(), **fields)


@pytest.mark.parametrize(
    ("prompt", "responses", "images", "message"),
    [
        ((1, *SEEN[1:], *SEEN, 2), ((3,),), (image(), image(1)), "17 image tokens .* for 2 images"),
        ((1, 2), ((3,),), (image(),), "0 image tokens"),
        ((1, *SEEN), ((3, FORMAT.token_id),), (image(),), "image token 257 in response 0"),
        ((1, *SEEN), ((3,),), (image(), replace(image(), token_id=5)), r"placeholders \[5, 257\]"),
    ],
)
def test_images_that_do_not_fit_their_prompt_are_refused(
    prompt: Any, responses: Any, images: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PreferenceGroup(prompt, responses, images=images)


@pytest.mark.parametrize(
    ("prompt", "images", "taken", "message"),
    [
        (SEEN[1:], (image(),), FORMAT, "8 image tokens .* takes 9 for each, so 9"),
        (SEEN, (), FORMAT, "9 image tokens .* for 0 images"),
        (SEEN, (image(),), None, "the model sees none"),
        (SEEN, (image(),), replace(FORMAT, shape=(3, 24, 24)), "the model takes .3, 24, 24."),
    ],
)
def test_images_that_the_model_does_not_take_are_refused(prompt: Any, images: Any, taken: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_format(images, prompt, taken, "here")


def test_the_config_says_what_the_model_takes(llava: ModelUnderTest) -> None:
    assert image_format(llava.model.config) == FORMAT
    features = llava.model.base_model.model.get_image_features(torch.zeros(1, *FORMAT.shape, dtype=torch.float64))
    assert [len(each) for each in features.pooler_output] == [FORMAT.num_tokens]
    assert image_format(build_model(ModelRequest(name="tiny-qwen2"), "float32").model.config) is None


def test_adapters_are_on_the_decoder_alone(llava: ModelUnderTest) -> None:
    trained = [name for name, parameter in llava.model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2 * 7  # layers, factors, matrices
    assert all(".language_model.layers." in name for name in trained)


def test_slots_are_counted_in_the_decoder_not_in_the_tower(llava: ModelUnderTest) -> None:
    groups = CASES["pair-with-image"].groups
    with count_slots(llava.model) as count, torch.no_grad():
        WITNESS.per_token_logps(llava.model, groups)
    assert (
        count.slots == count.layer_slots == sum(len(groups[0].prompt_ids) + len(ids) for ids in groups[0].completions)
    )


def test_cases_with_images_survive_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(cases_text(list(CASES.values())), encoding="utf-8")
    assert read_cases(path) == tuple(CASES.values())


def test_only_a_model_that_sees_images_has_cases_of_them() -> None:
    named = {case.name for case in prepare_check(CheckOptions(model="tiny-llava", jobs=1)).request.cases}
    assert CASES.keys() <= named
    assert not CASES.keys() & {case.name for case in prepare_check(CheckOptions(jobs=1)).request.cases}
    with pytest.raises(ValueError, match="unknown case 'pair-with-image'"):
        prepare_check(CheckOptions(cases=("pair-with-image",), jobs=1))


def test_image_tokens_in_a_case_file_that_match_no_image_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text('[{"name": "a", "groups": [{"prompt_ids": [1, 257], "positives": [[4]], "negatives": [[7]]}]}]')
    with pytest.raises(ValueError, match="case a, group 0 has 1 image tokens"):
        prepare_check(CheckOptions(model="tiny-llava", cases_file=path, jobs=1))


@pytest.mark.parametrize("name", CASES)
def test_packed_is_unpacked_in_float64_with_gradients(llava: ModelUnderTest, name: str) -> None:
    groups, objective = CASES[name].groups, objective_of(CASES[name].objective_name)
    expected = Expectation(llava.model).of(groups, objective)
    for subject in (PackedSubject(backend="split"), PackedSubject(backend="dense-sdpa", segments="prefix-tree")):
        actual = observe(subject, llava.model, groups, objective, apply_objective=apply_objective, seed=0)
        torch.testing.assert_close(actual.per_token_logps, expected.per_token_logps, rtol=0, atol=1e-5)
        torch.testing.assert_close(actual.rewards, expected.rewards, rtol=0, atol=1e-5)
        torch.testing.assert_close(dict(actual.gradients or {}), dict(expected.gradients or {}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "packed", "unpacked"), [
    ("pair-with-image", 1, 2), ("equal-text-other-images", 2, 4), ("group-with-two-images", 2, 12),
    ("image-beside-text", 2, 4), ("examples-with-images", 2, 3),
])  # fmt: skip
def test_packed_rows_run_the_tower_once_for_each_image(
    llava: ModelUnderTest, name: str, packed: int, unpacked: int
) -> None:
    groups = CASES[name].groups
    with torch.no_grad(), images_seen(llava.model) as seen, count_slots(llava.model) as count:
        PackedSubject(backend="dense-sdpa").per_token_logps(llava.model, groups)
        assert seen == [packed] == [count.images]
        seen.clear()
        WITNESS.per_token_logps(llava.model, groups)
        assert sum(seen) == unpacked == CASES[name].pairwise_images == count.images - packed


def _of_pass(subject: FaultySubject, stage: str, model: Any, case: Case) -> Sequence[torch.Tensor]:
    """Log-probs of the pass that a stage is part of."""
    if stage == "reference" and case.kind != "examples":
        return subject.loss(model, case.groups, Preference()).ref_per_token_logps
    return subject.per_token_logps(model, case.groups)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_images_shows_wherever_it_is_said_to_bite_and_nowhere_else(
    llava: ModelUnderTest, fault: Any
) -> None:
    for case in CASES.values():
        with torch.no_grad():
            honest, faulty = (
                torch.cat(_of_pass(FaultySubject(mutation=planted), fault.stage, llava.model, case))
                for planted in (None, fault)
            )
        assert ((honest - faulty).abs().max() > 1e-2) == fault.bites(case), case.name


def test_what_rewrites_prompts_is_not_planted_on_images() -> None:
    of_text = [mutation for mutation in CATALOGUE if mutation not in (*FAULTS, *MUTANTS)]
    assert not any(mutation.bites(case) for mutation in of_text for case in CASES.values())


@pytest.mark.parametrize(("mutant", "seen"), list(zip(MUTANTS, (2, 4), strict=True)), ids=[m.name for m in MUTANTS])
def test_a_harmless_change_of_images_moves_features_and_no_value(llava: ModelUnderTest, mutant: Any, seen: int) -> None:
    groups = CASES["group-with-two-images"].groups
    with torch.no_grad(), images_seen(llava.model) as passed:
        changed = FaultySubject(mutation=mutant).per_token_logps(llava.model, groups)
        assert passed == [seen]
        honest = FaultySubject().per_token_logps(llava.model, groups)
    torch.testing.assert_close(changed, honest, rtol=0, atol=1e-5)
    stages = honest_stages(Packing())
    moved, rows = (of.layout(groups).features for of in (stages.replaced("layout", mutant.replacement), stages))
    assert ((moved != rows) == (rows >= 0)).all()


def test_a_run_of_a_model_without_images_runs_them_on_another_and_measures_its_noise_apart(
    gate: Callable[..., GateOutcome], short_case: Case
) -> None:
    alone = gate([BUILT_IN["split"]], [short_case])
    cases = [short_case, CASES["equal-text-other-images"]]
    both = gate([BUILT_IN["split"]], cases, model_with_images=ModelRequest(name="tiny-llava"))
    assert [result.verdict for result in both.results] == [Verdict.PASS, Verdict.PASS]
    assert both.results[0].judgements == alone.results[0].judgements
    assert both.model_with_images is not None
    assert both.model_with_images.model.config.model_type == "llava"
    assert alone.model_with_images is None


def test_all_of_the_tiny_model_are_images_on_another_and_every_frozen_policy() -> None:
    full, quick = (prepare_check(CheckOptions(full=full, jobs=1)) for full in (True, False))
    assert full.request.model_with_images is not None
    assert full.request.model_with_images.name == "tiny-llava"
    assert {case.name for case in full.request.cases if case.has_images} == set(CASES)
    assert {case.reference for case in full.request.cases} == {None, *REFERENCE_NAMES[1:]}
    planted = {planting.probe.fault for planting in full.plantings.chosen}
    assert planted >= {fault.name for fault in (*FAULTS, *FAULTS_OF_REFERENCES)}
    assert quick.request.model_with_images is None
    assert not any(case.has_images or case.reference for case in quick.request.cases)
    for options in ({"objective": "reward-model"}, {"model": "tiny-qwen2"}, {"cases": ("balanced",)}):
        assert prepare_check(CheckOptions(full=True, jobs=1, **options)).request.model_with_images is None


def test_what_is_kept_by_the_tokens_of_prompt_and_response_is_stale_for_another_image(llava: ModelUnderTest) -> None:
    kept: dict[object, torch.Tensor] = {}

    def by_text(group: PreferenceGroup) -> list[torch.Tensor]:
        keys = [(group.prompt_ids, ids) for ids in group.completions]
        if not kept.keys() >= set(keys):
            kept.update(zip(keys, WITNESS.per_token_logps(llava.model, [group]), strict=True))
        return [kept[key] for key in keys]

    groups = CASES["equal-text-other-images"].groups
    with torch.no_grad():
        honest = [WITNESS.per_token_logps(llava.model, [group]) for group in groups]
        assert (torch.cat(by_text(groups[0])) - torch.cat(list(honest[0]))).abs().max() == 0
        assert (torch.cat(by_text(groups[1])) - torch.cat(list(honest[1]))).abs().max() > 0.1

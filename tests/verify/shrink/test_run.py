"""Failures of real runs are shrunk to what the fault needs, stay the failure that they were, and can be seen again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import verify
from reports.store import read_record
from verify.case_files import read_cases
from verify.cases import Case
from verify.default_cases.images import image_cases
from verify.default_cases.tiny import tiny_cases
from verify.groups import PreferenceGroup
from verify.images import ImageFormat
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, build_model
from verify.models.shape_file import read_shape
from verify.objective import Preference
from verify.shrink.run import Reproduction

ROOT = Path(verify.__file__).resolve().parents[1]
THIRD_PARTY = Path(__file__).resolve().parents[1] / "third_party_subjects.py"
TREE_TRAINERS = THIRD_PARTY.parent / "diagnosis" / "wrong_tree_trainers.py"
CASES = {case.name: case for case in tiny_cases(257, 0)}

Shrink = Callable[..., tuple[Reproduction, ...]]
Draw = Callable[..., tuple[PreferenceGroup, ...]]


def facts(out: Path, reproduction: Reproduction) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / reproduction.folder / "reproduction.json").read_text(encoding="utf-8"))
    return content


def lengths(out: Path, reproduction: Reproduction) -> list[tuple[int, ...]]:
    (case,) = read_cases(out / reproduction.folder / "cases.json")
    return [(len(g.prompt_ids), *(len(ids) for ids in g.completions)) for g in case.groups]


def run_script(folder: Path, *arguments: object) -> int:
    """In a fresh process, from another folder."""
    environment = {**os.environ, "PACKPARITY": f"{sys.executable} -m verify", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["sh", str(folder / "run.sh"), *map(str, arguments)], env=environment, capture_output=True, check=False,
        cwd=folder.parent,
    ).returncode  # fmt: skip


def pairs(draw: Draw, *sizes: tuple[int, int, int]) -> Case:
    return Case(name="drawn", why="to be shrunk", groups=draw(1, *sizes))


def test_the_mask_matters_from_the_second_rejected_token_on_whatever_the_size(shrink: Shrink, tmp_path: Path) -> None:
    """The first rejected token is predicted by the prompt."""
    tiny = ModelRequest(name="tiny", lora=LoraSpec(strength=0.3))
    (found,) = shrink(["fault:causal-mask-only"], [CASES["balanced"]], model=tiny)
    assert lengths(tmp_path, found) == [(1, 1, 2)]
    size = facts(tmp_path, found)["size_after"]
    assert (size["layers"], size["query heads"], size["hidden size"]) == (1, 1, 8)
    assert size["vocabulary"] == size["largest token id"] + 1 == 4


def test_every_weight_stays_trained(shrink: Shrink, tmp_path: Path) -> None:
    """The fault sits in a row of the embedding whose token takes no part."""
    model = ModelRequest(name="tiny", num_layers=1, train="all", reference="separate-model")
    case = replace(CASES["one-token-responses"], reference="separate-model")
    (found,) = shrink(["fault:unused-tokens-have-gradient"], [case], model=model)
    assert facts(tmp_path, found)["failure"]["kind"] == "gradients: not finite"
    assert "--train all" in (tmp_path / found.folder / "run.sh").read_text(encoding="utf-8")


def test_a_frozen_policy_and_a_reward_model_stay_what_they_were(shrink: Shrink, tmp_path: Path) -> None:
    groups = (PreferenceGroup((1, 2), ((3,),), ((4,),)), PreferenceGroup((5,), ((3,),), ((6, 7),)))
    cached = Case(name="cached", why="a response behind two prompts", groups=groups, reference="cached")
    (found,) = shrink(["fault:cached-by-response"], [cached])
    (case,) = read_cases(tmp_path / found.folder / "cases.json")
    assert case.reference == "cached"
    assert len({group.prompt_ids for group in case.groups}) == 2  # what it takes
    rewards = Case(name="rewards", why="two pairs", groups=groups, objective_name="reward-model")
    (found,) = shrink(["fault:reward-read-at-end-of-row"], [rewards])
    (case,) = read_cases(tmp_path / found.folder / "cases.json")
    assert case.objective_name == "reward-model"
    assert lengths(tmp_path, found) == [(1, 1, 1)]


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (Preference(name="rpo", nll_weight=0.25), ("--objective rpo", "--nll-weight 0.25")),
        (Preference(nll_weight=0.5), ("--objective sigmoid", "--nll-weight 0.5")),
        (Preference(name="rpo", nll_weight=1.0), ()),
        (Preference(router_aux_loss_coef=0.01), ("--router-loss 0.01",)),
    ],
    ids=lambda value: value.name if isinstance(value, Preference) else "",
)
def test_weights_of_the_objective_that_its_name_does_not_say_are_options(
    shrink: Shrink, tmp_path: Path, draw: Draw, objective: Preference, options: Sequence[str]
) -> None:
    changes = {"objective": objective, "effort": {"seconds": 1.0, "trial_s": 90.0}}
    if objective.router_aux_loss_coef:
        changes["model"] = ModelRequest(name="tiny-qwen3-moe", num_layers=1, lora=LoraSpec(strength=0.3))
    case = replace(pairs(draw, (2, 1, 3)), objective_name=objective.name)
    (found,) = shrink(["fault:causal-mask-only"], [case], **changes)
    script = (tmp_path / found.folder / "run.sh").read_text(encoding="utf-8")
    assert [option for option in ("--objective", "--nll-weight", "--router-loss") if option in script] == [
        option.partition(" ")[0] for option in options
    ]
    assert all(option in script for option in options)


def test_of_what_fails_with_images_alone_the_smallest_case_is_written_as_it_is(shrink: Shrink, tmp_path: Path) -> None:
    llava, images = ModelRequest(name="tiny-llava"), image_cases(257, 0, ImageFormat((3, 12, 12), 257, 9))
    of_pairs = [case for case in images if case.name in ("pair-with-image", "equal-text-other-images")]
    (found,) = shrink(["fault:images-left-out"], [*of_pairs, CASES["one-token-responses"]], model=llava)
    smallest = min(of_pairs, key=lambda case: case.pairwise_slots)
    (case,) = read_cases(tmp_path / found.folder / "cases.json")
    assert (case.name, case.groups) == (smallest.name, smallest.groups)
    assert "--model tiny-llava" in (tmp_path / found.folder / "run.sh").read_text(encoding="utf-8")
    assert "not shrunk: it fails on cases with images only" in found.note
    assert facts(tmp_path, found)["failure"]["kind"] == "log-probs"


def test_three_groups_are_kept_where_the_third_tree_sees_the_second(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    (found,) = shrink(["fault:third-tree-sees-second"], [pairs(draw, (3, 1, 2), (1, 2, 1), (2, 2, 1), (2, 1, 1))])
    assert lengths(tmp_path, found) == [(1, 1, 1)] * 3


def test_positions_beyond_256_stay_beyond_256(
    shrink: Shrink, tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every halving of the prompt is tried, and none is taken."""
    monkeypatch.setattr("verify.shrink.run.MAX_TRIALS", 14)
    (found,) = shrink(["fault:positions-in-bfloat16"], [pairs(draw, (262, 3, 2))])
    ((prompt, chosen, rejected),) = lengths(tmp_path, found)
    assert (chosen, rejected) == (1, 1)
    assert prompt > 256
    assert "stopped by 14 trials: a smaller case may exist" in found.note


def test_a_failure_stays_the_failure_that_it_was(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    """A gradient that is off, in a subject whose log-probs are right; and a NaN, which no number may replace."""
    named = ["fault:one-gradient-off-by-a-thousandth", f"{THIRD_PARTY}:NanAtOneToken"]
    gradient, nan = shrink(named, [pairs(draw, (2, 2, 5))])
    assert facts(tmp_path, gradient)["failure"]["kind"] == "gradients"
    assert facts(tmp_path, nan)["failure"]["kind"] == "log-probs: not finite"
    assert lengths(tmp_path, nan) == [(1, 1, 1)]


def test_the_smallest_failing_case_is_the_start(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    larger = replace(pairs(draw, (3, 2, 3), (2, 2, 2)), name="larger")
    (found,) = shrink(["fault:causal-mask-only"], [larger, pairs(draw, (2, 2, 2))])
    assert facts(tmp_path, found)["case"] == "drawn"


@pytest.mark.parametrize("name", ["ByHand", "Raises", "PaddedButSaysPacked", "SaysNo"])
def test_what_is_no_fail_is_not_shrunk(shrink: Shrink, tmp_path: Path, draw: Draw, name: str) -> None:
    assert shrink([f"{THIRD_PARTY}:{name}"], [pairs(draw, (3, 2, 3))]) == ()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_write_the_same_bytes(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    def files(out: Path) -> dict[str, bytes]:
        (found,) = shrink([f"{THIRD_PARTY}:PositionsRunOn"], [pairs(draw, (2, 2, 3))], out_dir=out)
        return {path.name: path.read_bytes() for path in (out / found.folder).iterdir()}

    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_reproduction_fails_at_the_same_place_in_a_fresh_process(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    (found,) = shrink([f"{THIRD_PARTY}:CausalMaskOnly"], [pairs(draw, (3, 2, 3))], out_dir=tmp_path / "its")
    folder = (tmp_path / "its" / found.folder).rename(tmp_path / "moved and renamed")
    seen = json.loads((folder / "reproduction.json").read_text(encoding="utf-8"))
    assert run_script(folder, "--quiet", "--out", tmp_path / "again") == 1
    (result,) = read_record(tmp_path / "again").results
    assert (result.case, result.dtype, result.verdict) == (seen["case"], seen["dtype"], "FAIL")
    worst = [j for j in result.judgements if j.quantity == seen["failure"]["quantity"]]
    assert (seen["failure"]["place"], seen["failure"]["measured"]) in [(j.worst[0].where, j.measured) for j in worst]


TURNS = PreferenceGroup((1, 2), ((3, 4, 5), (9,)), ((3, 4, 7, 8),))
CHAT = PreferenceGroup((1, 2), ((3, 4, 5, 6),), completion_masks=((True, False, False, True),))


@pytest.mark.parametrize(
    ("subject", "case", "left"),
    [
        # A turn behind a turn behind the prompt: one response ends with the first turn, one is in its way in the row.
        ("ParentOnly", Case(name="turns", why="", groups=(TURNS,)), [([1, 1], [3])]),
        # A token that is not supervised, and one that is.
        ("MaskIgnored", Case(name="chat", why="", groups=(CHAT,), objective_name="sft-token-mean"), [([2], [])]),
    ],
)
def test_trees_and_examples_are_shrunk_and_fail_again_in_a_fresh_process(
    subject: str, case: Case, left: list[tuple[list[int], list[int]]], shrink: Shrink, tmp_path: Path
) -> None:
    """Lengths of positives and negatives that each of these faults needs, and no more."""
    (found,) = shrink([f"{TREE_TRAINERS}:{subject}"], [case])
    (small,) = read_cases(tmp_path / found.folder / "cases.json")
    seen = facts(tmp_path, found)
    assert small.objective_name == case.objective_name == seen["objective"]["name"]
    sizes = [(list(map(len, group.positives)), list(map(len, group.negatives))) for group in small.groups]
    assert sizes == left
    assert [len(group.prompt_ids) for group in small.groups] == [1] * len(left)
    assert run_script(tmp_path / found.folder, "--quiet", "--out", tmp_path / "again") == 1
    (result,) = read_record(tmp_path / "again").results
    assert (result.case, result.verdict) == (seen["case"], "FAIL")
    worst = [j for j in result.judgements if j.quantity == seen["failure"]["quantity"]]
    assert seen["failure"]["place"] in [j.worst[0].where for j in worst]


def test_the_folder_can_be_read_by_people_and_by_the_program(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    (found,) = shrink([f"{THIRD_PARTY}:CausalMaskOnly"], [pairs(draw, (3, 2, 3))])
    folder = tmp_path / found.folder
    assert found.folder == "reproduction/causal-mask-only-float32"
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "run.sh", "cases.json", "model.json", "reproduction.json", THIRD_PARTY.name,
    }  # fmt: skip
    assert (folder / THIRD_PARTY.name).read_bytes() == THIRD_PARTY.read_bytes()
    assert read_shape(folder / "model.json").config.num_hidden_layers == 1
    seen, text = facts(tmp_path, found), (folder / "README.md").read_text(encoding="utf-8")
    for shown in (seen["failure"]["place"], "sh run.sh", seen["sha256"][THIRD_PARTY.name], "| prompt tokens | 3 | 1 |"):
        assert shown in text
    assert str(tmp_path) not in "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert "prompt tokens 3 to 1" in found.note


def test_without_time_the_case_is_written_as_it_is(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    effort = {"seconds": 1.0, "trial_s": 90.0}
    (found,) = shrink(["fault:causal-mask-only"], [pairs(draw, (3, 2, 3))], effort=effort)
    assert lengths(tmp_path, found) == [(3, 2, 3)]
    assert "a trial takes about 90 s, shrinking may take 1 s" in found.note
    assert "not tried alone" in found.note


def test_a_large_model_is_shrunk_on_the_tiny_one_if_it_fails_there_too(
    shrink: Shrink, tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verify.shrink.run._SMALL", 10)
    effort = {"seconds": 60.0, "trial_s": 90.0}
    (found,) = shrink(["fault:causal-mask-only"], [pairs(draw, (2, 1, 3))], effort=effort)
    assert "shrunk on the tiny model, where the subject fails in the same way" in found.note
    assert lengths(tmp_path, found) == [(1, 1, 2)]


def test_a_failure_that_depends_on_what_ran_before_is_said_to(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    (tmp_path / "moody.py").write_text(MOODY, encoding="utf-8")
    (found,) = shrink([f"{tmp_path / 'moody.py'}:Moody"], [pairs(draw, (3, 2, 3))], out_dir=tmp_path / "out")
    assert not found.folder
    assert "does the subject depend on what ran before?" in found.note
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["write_folder", "minimise"])
def test_what_goes_wrong_while_shrinking_is_a_note_and_costs_no_verdict(
    shrink: Shrink, draw: Draw, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(f"verify.shrink.run.{where}", fail)
    (found,) = shrink(["fault:causal-mask-only"], [pairs(draw, (1, 1, 2))])
    assert not found.folder
    assert "No space left on device" in found.note


MOODY = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("theirs", {str(THIRD_PARTY)!r})
theirs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(theirs)

class Moody(theirs.ByHand):
    name = "moody"
    calls = 0
    def per_token_logps(self, model, groups):
        Moody.calls += 1
        wrong = [logps + 1.0 for logps in super().per_token_logps(model, groups)]
        return wrong if Moody.calls <= 2 else super().per_token_logps(model, groups)
"""


def test_an_interrupt_during_shrinking_writes_nothing(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    def stop(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    subjects: Sequence[str] = ["fault:causal-mask-only", "fault:positions-run-on"]
    with pytest.raises(KeyboardInterrupt):
        shrink(subjects, [pairs(draw, (3, 2, 3))], progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_named_where_it_was(
    shrink: Shrink, tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shape stays, and the folder says that the weights are not in it."""
    folder = tmp_path / "a checkpoint"
    build_model(ModelRequest(name="tiny", num_layers=1), "float32").model.unload().save_pretrained(folder)
    monkeypatch.setattr("verify.shrink.run._on_the_tiny_model", lambda own: own)
    (found,) = shrink(
        ["fault:causal-mask-only"],
        [pairs(draw, (2, 1, 3))],
        model=ModelRequest(name=str(folder)),
        out_dir=tmp_path / "out",
    )
    script = (tmp_path / "out" / found.folder / "run.sh").read_text(encoding="utf-8")
    assert f"--model '{folder.resolve()}'" in script
    assert not (tmp_path / "out" / found.folder / "model.json").exists()
    assert "the weights are not in this folder" in found.note
    assert lengths(tmp_path / "out", found) == [(1, 1, 2)]


USERS_FAULT = """
from functools import partial
from verify.faults.fault import Fault

def _later(honest, rows):
    return honest(rows) + 1 - (honest(rows) == 0).long()

MINE = Fault(name="all-but-the-first-one-later", stage="positions", replacement=_later, what="...", signature="...")
"""


def test_a_users_own_fault_goes_into_the_folder(shrink: Shrink, tmp_path: Path, draw: Draw) -> None:
    (tmp_path / "my faults.py").write_text(USERS_FAULT, encoding="utf-8")
    (found,) = shrink([f"fault:{tmp_path / 'my faults.py'}:MINE"], [pairs(draw, (2, 1, 2))])
    folder = tmp_path / found.folder
    assert found.folder == "reproduction/fault-all-but-the-first-one-later-float32"
    assert """--subject fault:"$here"/'my faults.py:MINE'""" in (folder / "run.sh").read_text(encoding="utf-8")
    assert (folder / "my faults.py").read_bytes() == (tmp_path / "my faults.py").read_bytes()

"""Each check fails the subject that breaks what it claims; a bit is enough where it has no tolerance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from verify.checks.check import Finding
from verify.faults.catalogue import mutation_named
from verify.groups import PreferenceGroup
from verify.objective import Preference
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.packed import PackedSubject
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
Put = Callable[..., dict[str, Finding]]
HONEST = PackedSubject(backend="dense-sdpa")
LITTLE = 4e-6
"""Below the budgets in float32, about 1e-5 nats here, but more than a bit."""


def failed(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.verdict is Verdict.FAIL}


def rejected_leans_on_chosen(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + LITTLE * groups[k // 2].positives[0][-1] / 257 if k % 2 else logp for k, logp in enumerate(logps)]


def group_leans_on_the_first_prompt(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + LITTLE * groups[0].prompt_ids[0] / 257 if k > 1 else logp for k, logp in enumerate(logps)]


def first_token_leans_on_the_last(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    ends = [ids[-1] for group in groups for ids in group.completions]
    early = [torch.tensor([1.0] * (len(logp) > 1) + [0.0] * (len(logp) - (len(logp) > 1))) for logp in logps]
    return [logp + LITTLE * end / 257 * first for logp, end, first in zip(logps, ends, early, strict=True)]


def ignores_its_input(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [0.0 * logp - torch.arange(1.0, len(logp) + 1) for logp in logps]


def jitters(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + LITTLE * torch.rand(len(logp)) for logp in logps]


def leans_on_the_order(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + 0.001 * k for k, logp in enumerate(logps)]


def not_a_number(logps: list[Tensor], groups: Groups) -> list[Tensor]:
    return [logp + torch.nan if k == 3 else logp for k, logp in enumerate(logps)]


@pytest.mark.parametrize(
    ("alter", "check", "words"),
    [
        (rejected_leans_on_chosen, "branch-isolation",
         "rejected, token 0 changed, though it sees none of them"),
        (group_leans_on_the_first_prompt, "group-isolation",
         "rewriting prompt and responses of group 0: group 1, chosen, token 0 changed"),
        (first_token_leans_on_the_last, "causality",
         "token 0 changed, though it sees none of them"),
        (ignores_its_input, "branch-isolation", "group 0, chosen, token 1 kept its bits, though it sees them"),
        (ignores_its_input, "group-isolation", "group 0, chosen, token 0 kept its bits"),
        (ignores_its_input, "causality", "the first token of every chosen response: group 0, chosen, token 1 kept"),
        (ignores_its_input, "reach", "group 0, prompt, token 0 does not reach group 0, chosen, token 0"),
        (jitters, "repeat", "group 0, chosen, token 0, predicted from the last prompt token: -"),
        (leans_on_the_order, "permutation", "groups in reverse order: group"),  # first and last by as much
        (leans_on_the_order, "absolute-positions", "group 2, rejected, token 0"),
        (not_a_number, "repeat", "nan, then nan"),
        (not_a_number, "group-isolation", "changed, though it sees none of them"),
        (not_a_number, "absolute-positions", "nan"),
    ],
)  # fmt: skip
def test_it_is_caught_and_the_place_is_named(
    alter: Callable[..., list[Tensor]], check: str, words: str, altered: Callable[..., Subject], put: Put
) -> None:
    finding = put(altered(alter))[check]
    assert finding.verdict is Verdict.FAIL
    assert words in finding.reason
    assert finding.num_differing > 0


def test_a_leak_far_below_the_budgets_is_caught_by_the_isolation_that_it_breaks(
    altered: Callable[..., Subject], put: Put
) -> None:
    seen = {"branch-isolation", "group-isolation", "permutation", "absolute-positions"}
    assert failed(put(altered(group_leans_on_the_first_prompt))) & seen == {"group-isolation"}
    assert failed(put(altered(rejected_leans_on_chosen))) & seen == {"branch-isolation"}


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("causal-mask-only", {"branch-isolation", "group-isolation", "causality", "reach", "row-map"}),
        ("mask-of-finite-scores", {"branch-isolation", "group-isolation", "causality", "reach", "row-map"}),
        ("sees-the-future", {"causality", "reach", "row-map"}),
        ("prompt-cache-detached", {"reach"}),
        ("positions-shifted", {"absolute-positions", "row-map"}),
        ("positions-in-bfloat16", {"row-map"}),
        ("block-missing", {"row-map"}),
        ("neighbour-predicts", {"row-map"}),
        ("prompt-counted", {"row-map"}),
        ("positions-run-on", {"permutation"}),
        ("sum-over-groups", {"normalisation"}),
        ("mean-of-means", {"normalisation"}),
        ("gradients-in-bfloat16", {"normalisation"}),
    ],
)
def test_planted_faults_are_caught(fault: str, checks: set[str], put: Put) -> None:
    assert checks <= failed(put(FaultySubject(mutation=mutation_named(fault))))


@dataclass(frozen=True)
class AlteredStep:
    """The honest packed step, with its loss or its rows changed."""

    alter_loss: Callable[[Any, Groups], Any] = lambda output, groups: output
    alter_rows: Callable[[Any], Any] = lambda rows: rows
    name: str = "altered-step"

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return HONEST.per_token_logps(model, groups)

    def loss(self, model: Any, groups: Groups, objective: Preference) -> Any:
        return self.alter_loss(HONEST.loss(model, groups, objective), groups)

    def packed_rows(self, groups: Groups) -> Any:
        return self.alter_rows(HONEST.packed_rows(groups))


def test_a_sum_over_groups_is_no_mean(put: Put) -> None:
    finding = put(AlteredStep(lambda output, groups: replace(output, loss=output.loss * len(groups))))["normalisation"]
    assert finding.verdict is Verdict.FAIL
    assert "groups in turn" in finding.reason
    assert finding.ratio > 1000


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda rows: replace(rows, position_ids=rows.position_ids + 1), "token 0 of its path is at position 1"),
        (lambda rows: replace(rows, input_ids=rows.input_ids.flip(1)), "token 0 of its path is id"),
        (lambda rows: replace(rows, supervised=rows.supervised[1:]), "chosen: 2 tokens enter its sum; it has 3"),
        (lambda rows: replace(rows, supervised=rows.supervised[:0]), "0 tokens enter its sum"),
        (lambda rows: replace(rows, supervised=rows.supervised[:, [0, 1, 2, 2]]), "token 0 is taken from slot"),
        (lambda rows: replace(rows, attended=torch.ones_like(rows.attended).tril()), "its path has"),
    ],
)  # fmt: skip
def test_rows_that_deviate_are_caught_and_the_place_is_named(alter: Callable[[Any], Any], words: str, put: Put) -> None:
    finding = put(AlteredStep(alter_rows=alter))["row-map"]
    assert finding.verdict is Verdict.FAIL
    assert words in finding.reason


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda rows: None, "input_ids is NoneType; a tensor is needed"),
        (lambda rows: replace(rows, attended=rows.attended.float()), "a bool tensor or a BlockMask is needed"),
        (lambda rows: replace(rows, attended=rows.attended[:, 1:]), "[rows, slots, slots] is needed"),
        (lambda rows: replace(rows, position_ids=rows.position_ids[:, 1:]), "both are [rows, slots]"),
        (lambda rows: replace(rows, supervised=rows.supervised[:, :3]), "[tokens, 4] is needed"),
        (lambda rows: replace(rows, supervised=rows.supervised + 1000), "that is not there"),
    ],
)
def test_rows_that_cannot_be_read_are_an_error(alter: Callable[[Any], Any], words: str, put: Put) -> None:
    finding = put(AlteredStep(alter_rows=alter))["row-map"]
    assert finding.verdict is Verdict.ERROR
    assert words in finding.reason

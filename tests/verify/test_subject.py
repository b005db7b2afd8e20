"""The contract of a subject: whoever breaks it is told where, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verify.cases import Case
from verify.groups import PreferenceGroup
from verify.returned_values import check_logps, check_loss
from verify.subject import (
    Subject,
    SubjectError,
    Support,
    gradient_support,
    kinds_taken,
    layout_of,
    owns_loss,
    support_for,
)

GROUPS = (PreferenceGroup((1, 2), ((3, 4, 5),), ((6,),)), PreferenceGroup((7,), ((8, 9),), ((10, 11),)))
LENGTHS = (3, 1, 2, 2)


def good() -> list[Any]:
    return [torch.zeros(length, requires_grad=True) for length in LENGTHS]


def check(logps: object, *, differentiable: bool = True) -> tuple[torch.Tensor, ...]:
    return check_logps(logps, GROUPS, subject="mine", differentiable=differentiable)


def subject(**attributes: Any) -> Any:
    return SimpleNamespace(name="mine", per_token_logps=lambda model, groups: [], **attributes)


# Log-probs.


def test_log_probs_in_order_are_taken_as_they_are() -> None:
    given = good()
    assert all(taken is one for taken, one in zip(check(given), given, strict=True))
    assert len(check(tuple(given))) == 4


SPOILT: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "none": (lambda x: None, "per_token_logps returned NoneType; it must return a list of tensors"),
    "one tensor": (lambda x: torch.cat(x), "per_token_logps returned Tensor; it must return a list of tensors"),
    "an iterator": (lambda x: iter(x), "per_token_logps returned list_iterator; it must return a list"),
    "too few": (lambda x: x[:3], "per_token_logps returned 3 tensors for 4 completions"),
    "too many": (lambda x: [*x, x[0]], "per_token_logps returned 5 tensors for 4 completions"),
    "empty": (lambda x: [], "per_token_logps returned 0 tensors for 4 completions"),
    "a list of lists": (lambda x: [*x[:3], [0.0, 0.0]], "group 1, completion 1: list; a tensor is needed"),
    "one token short": (
        lambda x: [*x[:2], x[2][:1], x[3]],
        "group 1, completion 0: shape (1,); the completion has 2 tokens, so (2,)",
    ),
    "a matrix": (
        lambda x: [x[0][None], *x[1:]],
        "group 0, completion 0: shape (1, 3); the completion has 3 tokens, so (3,)",
    ),
    "a scalar": (
        lambda x: [x[0], x[1].sum(), *x[2:]],
        "group 0, completion 1: shape (); the completion has 1 tokens, so (1,)",
    ),
    "integers": (
        lambda x: [x[0], torch.zeros(1, dtype=torch.int64), *x[2:]],
        "group 0, completion 1: dtype torch.int64; a floating point dtype is needed",
    ),
    "detached": (
        lambda x: [*x[:3], x[3].detach()],
        "group 1, completion 1: carries no graph, so no gradient can be compared",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_log_probs_that_cannot_be_compared_are_refused_with_their_place(name: str) -> None:
    spoil, message = SPOILT[name]
    with pytest.raises(SubjectError, match=f"^subject mine: .*{re.escape(message)}"):
        check(spoil(good()))


def test_without_gradients_a_graph_is_not_asked_for() -> None:
    assert len(check([logps.detach() for logps in good()], differentiable=False)) == 4


def test_values_are_not_looked_at() -> None:
    """NaN is a wrong value, not a broken contract: it has to come out as a failure with its place."""
    assert check([logps * torch.nan for logps in good()])


# Its own loss.


def loss(value: Any = None, rewards: Any = (0.1, 0.2, 0.3, 0.4)) -> Any:
    return SimpleNamespace(loss=torch.ones((), requires_grad=True) if value is None else value, rewards=rewards)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.5, 1.5, 2.5, 3.5],
        torch.tensor([0.5, 1.5, 2.5, 3.5]),
        torch.tensor([[0.5, 1.5], [2.5, 3.5]], dtype=torch.bfloat16),
        [torch.tensor(0.5, requires_grad=True), torch.tensor([1.5]), 2.5, 3.5],
    ],
    ids=["floats", "tensor", "matrix-of-pairs", "mixed"],
)
def test_rewards_may_come_as_any_kind_of_numbers(rewards: Any) -> None:
    value, found = check_loss(loss(rewards=rewards), subject="mine", num_completions=4, differentiable=True)
    assert value.shape == ()
    assert found.dtype == torch.float64
    assert not found.requires_grad
    assert found.tolist() == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "loss(...).loss must be a scalar tensor, not NoneType"),
        (loss(0.5), "loss(...).loss must be a scalar tensor, not float"),
        (loss(torch.ones(2, requires_grad=True)), "loss(...).loss must be a scalar tensor, not Tensor"),
        (loss(torch.ones(())), "loss(...).loss carries no graph"),
        (loss(rewards=None), "loss(...).rewards is missing; one value per completion is needed"),
        (loss(rewards=[0.1]), "loss(...).rewards has 1 values for 4 completions"),
        (loss(rewards=torch.ones(4, 2)), "loss(...).rewards has 8 values for 4 completions"),
        (loss(rewards=["a"] * 4), "loss(...).rewards: could not convert string to float: 'a'; numbers are needed"),
        (loss(rewards=3), "loss(...).rewards: 'int' object is not iterable; numbers are needed"),
    ],
    ids=["none", "float", "vector", "detached", "no-rewards", "too-few", "too-many", "strings", "a-number"],
)
def test_a_loss_that_cannot_be_compared_is_refused(output: Any, message: str) -> None:
    with pytest.raises(SubjectError, match=f"^subject mine: {re.escape(message)}"):
        check_loss(output, subject="mine", num_completions=4, differentiable=True)


def test_a_scalar_in_a_vector_is_a_scalar() -> None:
    value, _ = check_loss(loss(torch.ones(1, requires_grad=True)), subject="s", num_completions=4, differentiable=True)
    assert value.shape == ()


def test_owning_a_loss_is_having_a_method() -> None:
    assert not owns_loss(subject())
    assert not owns_loss(subject(loss=None))
    assert owns_loss(subject(loss=lambda model, groups, objective: None))


# What it says of itself.


def test_a_subject_is_packed_unless_it_says_otherwise() -> None:
    assert layout_of(subject()) == "packed"
    assert layout_of(subject(layout="unpacked")) == "unpacked"
    for layout in ("padded", None, True):
        with pytest.raises(
            SubjectError, match=f"subject mine: layout is {layout!r}; it must be 'packed' or 'unpacked'"
        ):
            layout_of(subject(layout=layout))


def test_a_subject_takes_pairs_unless_it_says_otherwise() -> None:
    pairs = Case(name="c", why="", groups=GROUPS)
    several = Case(name="c", why="", groups=(PreferenceGroup((1,), ((2,),), ((3,), (4,))),))
    examples = Case(name="c", why="", groups=(PreferenceGroup((1,), ((2,),)),), objective_name="sft-token-mean")
    assert [support_for(subject(), case).supported for case in (pairs, several, examples)] == [True, False, False]
    assert support_for(subject(), several).reason == "a case of groups; the subject takes pairs"
    of_all = subject(takes=["examples", "groups"])
    assert [support_for(of_all, case).supported for case in (pairs, several, examples)] == [False, True, True]


@pytest.mark.parametrize("takes", ["pairs", (), ("pairs", "trees"), ("pairs", "pairs"), None, 3, (["pairs"],)])
def test_what_a_subject_takes_is_a_tuple_of_known_kinds(takes: object) -> None:
    with pytest.raises(SubjectError, match=r"takes is .*; it must be a tuple of some of 'pairs', 'groups', 'examples'"):
        kinds_taken(subject(takes=takes))


ASKS = [("supports", support_for), ("supports_gradients", gradient_support)]


@pytest.mark.parametrize(("method", "ask"), ASKS, ids=["case", "gradients"])
def test_support_is_taken_for_granted_and_a_no_is_taken_with_its_reason(method: str, ask: Any) -> None:
    case = Case(name="c", why="", groups=GROUPS)
    assert ask(subject(), case) == Support(True)
    assert ask(subject(**{method: lambda asked: Support(asked is case)}), case) == Support(True)
    no = subject(**{method: lambda asked: SimpleNamespace(supported=False, reason="too long")})
    assert ask(no, case) == Support(False, "too long")


@pytest.mark.parametrize(("method", "ask"), ASKS, ids=["case", "gradients"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned None; it must return an object with the attributes supported"),
        (False, "returned False; it must return an object with the attributes supported"),
        (SimpleNamespace(supported=1, reason=""), "it must return an object with the attributes supported"),
        (SimpleNamespace(supported=False, reason=""), "said no without a reason"),
        (SimpleNamespace(supported=False), "said no without a reason"),
    ],
    ids=["none", "bool", "truthy", "no-reason", "reason-missing"],
)
def test_an_answer_that_is_neither_yes_nor_a_reasoned_no_is_refused(
    method: str, ask: Any, answer: object, message: str
) -> None:
    with pytest.raises(SubjectError, match=f"^subject mine: {method} .*{message}"):
        ask(subject(**{method: lambda asked: answer}), Case(name="c", why="", groups=GROUPS))


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0)])
def test_asking_may_raise_but_not_end_the_program(error: BaseException) -> None:
    def raises(asked: object) -> object:
        raise error

    with pytest.raises(SubjectError, match=f"^subject mine: supports raised {type(error).__name__}"):
        support_for(subject(supports=raises), Case(name="c", why="", groups=GROUPS))


def test_the_least_a_subject_needs_is_a_name_and_one_method(third_party: Callable[[str], Subject]) -> None:
    assert isinstance(third_party("ByHand"), Subject)
    assert not isinstance(SimpleNamespace(name="mine"), Subject)

"""Faults of a step that trains every weight: of the embedding, of the head, and of what a frozen policy shares.

Adapters hide them: where the embedding is frozen, no gradient that reaches it counts. Module and parameter names end as
in transformers' Qwen3.

Shape letters: B rows, T slots, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from verify.cases import CASE_KINDS, Case
from verify.faults.activations import prompt_slots, shares_of_branches
from verify.faults.conditions import BRANCH_OF_TWO, Condition
from verify.faults.fault import PREFERENCES, Fault
from verify.faults.gradients import with_gradient
from verify.faults.rows import Rows
from verify.faults.stages import Activations, Forward, Gradients, Reference

_EMBEDDING = ".embed_tokens"
_LOOK_UP = ".embed_tokens.weight"
_HEAD = "lm_head.weight"
_TRACE = 1e-9
_NORMS = "norm.weight"
_FIRST_LAYER = ".layers.0."


def _runs_frozen_policy(case: Case) -> bool:
    return case.reference != "cached"


RUNS_FROZEN_POLICY = Condition("the step runs the frozen policy", _runs_frozen_policy)


def look_up_detached(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Embeddings are looked up without a graph."""
    return parameter.detach() if name.endswith(_LOOK_UP) else parameter


def head_detached(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """The head multiplies with a copy of its weight."""
    return parameter.detach() if name.endswith(_HEAD) else parameter


def norms_detached(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """A fused norm gives its weight a gradient of 0."""
    return with_gradient(parameter, torch.zeros_like) if name.endswith(_NORMS) else parameter


def unused_rows_touched(honest: Gradients, name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """Rows of the embedding without a gradient get one that is tiny beside those of other rows."""
    return with_gradient(parameter, _traces) if name.endswith(_LOOK_UP) else parameter


def _traces(gradient: Tensor) -> Tensor:
    unused = (gradient == 0).all(dim=-1, keepdim=True)
    return torch.where(unused, _TRACE * gradient.abs().max(), gradient)


def prompt_embedding_averaged(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """What the branches send to the embeddings of their prompt is averaged instead of summed."""
    if not module.endswith(_EMBEDDING):
        return output
    return _with_shares(output, torch.where(prompt_slots(rows), shares_of_branches(rows), 1.0))


def last_branch_only(honest: Activations, rows: Rows, module: str, output: Tensor) -> Tensor:
    """Embeddings are written back branch by branch, each over the one before: that of the last alone is kept."""
    if not module.endswith(_EMBEDDING):
        return output
    held = [[piece.completion for piece in row for _ in piece.ids] for row in rows.rows]
    last = [
        [completion is None or completion == max(c for c in of_row if c is not None) for completion in of_row]
        for of_row in held
    ]
    return _with_shares(output, torch.tensor(last, dtype=torch.float32)[..., None])


def _with_shares(output: Tensor, shares: Tensor) -> Tensor:
    """A tensor of equal value, to the last bit, whose gradient is multiplied."""
    constant = output.detach()
    return constant + shares.to(output) * (output - constant)


def shares_tensors(parts: tuple[str, ...], honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Some tensors of the frozen policy are those of the policy, and move with it."""
    shared = {
        name: parameter.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if any(part in name for part in parts)
    }
    # The honest pass of another model takes tensors that stand for its own.
    return honest(model, forward, rows, shared)  # type: ignore[call-arg]


def drifts(honest: Reference, model: Any, forward: Forward, rows: Rows, *, kept: dict[str, Tensor]) -> Tensor:
    """As soon as the policy has moved, a layer of the frozen policy is that of the policy."""
    now = {name: p.detach() for name, p in model.named_parameters() if _FIRST_LAYER in name}
    before = {name: kept.setdefault(name, weight.clone()) for name, weight in now.items()}
    if all(torch.equal(before[name], weight) for name, weight in now.items()):
        return honest(model, forward, rows)
    return shares_tensors((_FIRST_LAYER,), honest, model, forward, rows)


_FORWARD = "forward quantities"

FAULTS = (
    Fault(
        name="embedding-without-gradient",
        stage="gradients",
        replacement=look_up_detached,
        what="Embeddings are looked up without a graph: one that is tied has the gradient of the head alone.",
        kinds=CASE_KINDS,
        trains=("all",),
        signature="loss exact; the embedding has no gradient, or if tied that of one of its two uses",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="head-without-gradient",
        stage="gradients",
        replacement=head_detached,
        what="The head multiplies with a copy of its weight: a tied embedding has the gradient of its look-ups alone.",
        kinds=CASE_KINDS,
        trains=("all",),
        signature="loss exact; the head has no gradient, or if tied the embedding that of one of its two uses",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="norms-without-gradient",
        stage="gradients",
        replacement=norms_detached,
        what="A fused norm gives its weight a gradient of 0.",
        kinds=CASE_KINDS,
        trains=("all",),
        signature="loss exact, gradients of all norms 0",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="unused-tokens-have-gradient",
        stage="gradients",
        replacement=unused_rows_touched,
        what="Rows of the embedding whose tokens take no part get a gradient, a billionth of the largest.",
        kinds=CASE_KINDS,
        trains=("all",),
        signature="loss exact; rows of the embedding that should be 0 are not",
        invisible_where=_FORWARD + "; a tied embedding, which has a gradient in every row",
    ),
    Fault(
        name="prompt-embedding-gradient-averaged",
        stage="activations",
        replacement=prompt_embedding_averaged,
        what="Gradients that the branches send to the embeddings of their prompt are averaged instead of summed.",
        kinds=PREFERENCES,
        trains=("all",),
        signature="loss exact; the embedding's rows of prompt tokens off by a factor",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="embedding-gradient-of-last-branch",
        stage="activations",
        replacement=last_branch_only,
        what="The embedding's gradients of all branches of a row but the last are lost.",
        kinds=PREFERENCES,
        bites_where=BRANCH_OF_TWO,
        trains=("all",),
        signature="loss exact; the embedding's rows of tokens of earlier branches off",
        invisible_where=_FORWARD,
    ),
    Fault(
        name="reference-shares-embedding",
        stage="reference",
        replacement=partial(shares_tensors, ("embed_tokens", "lm_head")),
        what="The frozen policy has embedding and head of the policy, with which they move.",
        kinds=PREFERENCES,
        bites_where=RUNS_FROZEN_POLICY,
        trains=("all",),
        signature="policy exact, all reference log-probs off",
        invisible_where="the first step of a training that starts from the frozen policy",
    ),
    Fault(
        name="reference-shares-a-layer",
        stage="reference",
        replacement=partial(shares_tensors, (_FIRST_LAYER,)),
        what="A shallow copy: the first layer of the frozen policy is that of the policy.",
        kinds=PREFERENCES,
        bites_where=RUNS_FROZEN_POLICY,
        trains=("all",),
        signature="policy exact, all reference log-probs off",
        invisible_where="the first step of a training that starts from the frozen policy",
    ),
    Fault(
        name="frozen-policy-drifts",
        stage="reference",
        replacement=drifts,
        remembers=True,
        what="From the first optimizer step on the first layer of the frozen policy is that of the policy.",
        kinds=PREFERENCES,
        bites_where=RUNS_FROZEN_POLICY,
        trains=("all",),
        signature="exact at the first weights; later rewards and coefficients are off. Caught by optimizer-steps only",
        invisible_where="everything, as long as no weight moves",
        must_kill=("optimizer-steps",),
    ),
)

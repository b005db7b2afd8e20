"""The stages of the packed computation, as a value in which any one can be replaced.

    layout -> positions -> mask -> window -> activations -> predictors -> supervision -> token_logps -> reduction
           -> reference -> objective -> accumulation -> routers -> gradients

The window is a stage of models whose layers have one. What routers add to the loss is a stage of steps of which their
loss is part, and of no other.

In the step of a reward model the head is read in place of log-probs:

    layout -> positions -> mask -> window -> activations -> readout -> scores -> objective -> accumulation -> gradients

Shape letters: B rows, T slots, D width of a module's output, V vocabulary, N targets, K completions, G groups,
L losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor

from verify.faults.rows import Rows
from verify.groups import PreferenceGroup
from verify.objective import Preference, RewardModel, Sft
from verify.router_balance import RouterBalance

StageName = Literal[
    "layout",
    "positions",
    "mask",
    "window",
    "activations",
    "predictors",
    "supervision",
    "token_logps",
    "reduction",
    "reference",
    "readout",
    "scores",
    "objective",
    "accumulation",
    "routers",
    "gradients",
]
STAGES: tuple[StageName, ...] = get_args(StageName)
STAGES_OF_REWARDS: tuple[StageName, ...] = ("readout", "scores")
"""Those that no step of log-probs has."""
STAGES_OF_BOTH: tuple[StageName, ...] = (
    "layout",
    "positions",
    "mask",
    "window",
    "activations",
    "accumulation",
    "gradients",
)
"""Those that the step of a reward model shares, and that know nothing of the objective."""


@dataclass(frozen=True, eq=False)
class Targets:
    """The predictions whose log-probs are taken. The completions' own tokens come first, in completion order.

    Every token of a completion is among them, supervised or not. A slot of a prefix tree that several completions share
    is there once for each of them.

    Args:
        rows: Row of each prediction; int64, [N].
        predictor_slots: Slot whose output predicts; int64, [N].
        token_ids: What is predicted; int64, [N].
        completions: The completion to whose sum it belongs; int64, [N].
        counted: Whether it enters that sum; bool, [N].
    """

    rows: Tensor
    predictor_slots: Tensor
    token_ids: Tensor
    completions: Tensor
    counted: Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """What sums belong to.

    Args:
        groups: The groups; their responses, in order, are the completions.
        num_counted: Number of predictions that entered the sum of each completion; int64, [K]. Of a reward model, which
            counts none, its tokens.
    """

    groups: Sequence[PreferenceGroup]
    num_counted: Tensor


@dataclass(frozen=True, eq=False)
class Terms:
    """What the objective makes of the sums: the losses of which the step's loss is the weighted mean.

    Preferences have one loss per group, all of weight 1. Supervised examples have one per completion, its mean over
    counted tokens: of weight 1 under the example mean, and of as many as tokens under the token mean.

    Args:
        losses: [L], L being G or K.
        weights: [L].
        rewards: One per completion, [K]; none of supervised examples.
    """

    losses: Tensor
    weights: Tensor
    rewards: Tensor


@dataclass(frozen=True, eq=False)
class RoutedPasses:
    """What the routers of a mixture of experts made of the slots of rows.

    Args:
        policy: Router logits of the policy's pass, one [N, E] for each layer with a router, N = B T.
        reference: The same of the frozen policy's pass; none where it ran none of the model.
        counts: Number of completions whose path runs through each slot; int64, [B, T].
        is_prompt: Whether a slot belongs to no completion and is no padding; bool, [B, T].
        last_tokens: Row and slot of the last token of each completion; int64, [K, 2].
        top_k: Experts for each token.
        coefficient: Weight of the loss.
    """

    policy: Sequence[Tensor]
    reference: Sequence[Tensor]
    counts: Tensor
    is_prompt: Tensor
    last_tokens: Tensor
    top_k: int
    coefficient: float


@dataclass(frozen=True, eq=False)
class RouterTerm:
    """What routers add to the loss, its coefficient included, and the balance that is shown for it."""

    value: Tensor
    balance: RouterBalance


Parameters = Mapping[str, Tensor]
Forward = Callable[[Rows, Parameters], Tensor]
"""Log-probs of all targets of rows, with some parameters of the model replaced; [N]."""

Layout = Callable[[Sequence[PreferenceGroup]], Rows]
Positions = Callable[[Rows], Tensor]
Mask = Callable[[Rows], Tensor]
Window = Callable[[Rows, Tensor, int], Tensor]
Activations = Callable[[Rows, str, Tensor], Tensor]
Predictors = Callable[[Rows], Tensor]
Supervision = Callable[[Rows, Tensor], Targets]
TokenLogps = Callable[[Tensor, Tensor], Tensor]
Reduction = Callable[[Tensor, Targets], Tensor]
Reference = Callable[[Any, Forward, Rows], Tensor]
Readout = Callable[[Rows], Tensor]
Scores = Callable[[Tensor, Tensor, Batch], Tensor]
Objective = Callable[[Tensor, Tensor, Batch, Preference | Sft | RewardModel], Terms]
Accumulation = Callable[[Terms, Batch, Rows], Tensor]
Routers = Callable[[RoutedPasses], RouterTerm]
Gradients = Callable[[str, Tensor, Rows], Tensor]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One packed step, stage by stage.

    Args:
        layout: Groups to rows.
        positions: Position of each slot; integer or floating, [B, T].
        mask: Which slot (row of the matrix) attends to which: bool, or what is added to its score; [B, T, T].
        window: Rows, their mask and the window of some layers, the query itself included, to the mask of those layers;
            [B, T, T]. Asked for each window that a model has, and never where it has none.
        activations: What goes on from a module of the model, given the module's name, behind a dot, and output;
            [B, T, D].
        predictors: Slot that predicts each slot, -1 for none; int64, [B, T].
        supervision: Rows and predictors to the predictions that count.
        token_logps: Logits [N, V] and token ids [N] to log-probs [N].
        reduction: Log-probs [N] and targets to one sum per completion, [K].
        reference: Model, forward pass and rows to the log-probs of the frozen policy, [N]. Not run on supervised
            examples.
        readout: Row and slot at which the head of a reward model is read for each completion; int64, [K, 2].
        scores: Hidden states there [K, D], the head [1, D] and the batch to rewards [K].
        objective: Sums [K] of policy and reference (empty for supervised examples), or rewards [K] and nothing, the
            batch and the objective of the case to losses and rewards.
        accumulation: Terms, batch and rows to the loss of the step; scalar.
        routers: What the routers made of the rows to the term that is added to that loss.
        gradients: The tensor that stands for a trained tensor in the policy pass: of equal value, but its gradient
            may be another. Given the tensor's name, itself and the rows; one that is used under two names, as a tied
            embedding, is asked for under each.
    """

    layout: Layout
    positions: Positions
    mask: Mask
    window: Window
    activations: Activations
    predictors: Predictors
    supervision: Supervision
    token_logps: TokenLogps
    reduction: Reduction
    reference: Reference
    readout: Readout
    scores: Scores
    objective: Objective
    accumulation: Accumulation
    routers: Routers
    gradients: Gradients

    def replaced(self, stage: StageName, replacement: Callable[..., Any]) -> Stages:
        """These stages with one replaced.

        Args:
            stage: Which one.
            replacement: Takes the honest function, then the arguments of the stage.

        Returns:
            New stages; these are left as they are.
        """
        return replace(self, **{stage: partial(replacement, getattr(self, stage))})

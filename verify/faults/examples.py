"""Faults of packed supervised fine-tuning: examples block-diagonal in a row, of which only some tokens are learned.

Shape letters: B rows, T slots, N targets, L losses (one per completion).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from verify.cases import CaseKind
from verify.faults.activations import convolution_bleeds, state_leaks
from verify.faults.fault import BLOCK_DIAGONAL, BLOCK_DIAGONAL_BINS, Fault, Packing
from verify.faults.layout import one_row_per_completion
from verify.faults.layout_conditions import (
    BINS_OF_BLOCKS,
    EXAMPLE_MEAN_OF_UNEVEN,
    LATER_EXAMPLE,
    MASKED_TOKEN,
    ROWS_OF_BLOCKS_PADDED,
    SEVERAL_SEQUENCES,
    SHORT_LATER_PROMPT,
    TOKEN_MEAN,
    TOKEN_MEAN_OF_UNEVEN,
    TURN_OF_TWO,
)
from verify.faults.mask import causal_only
from verify.faults.positions import running
from verify.faults.rows import Rows
from verify.faults.stages import Accumulation, Batch, Layout, Objective, Positions, Supervision, Targets, Terms
from verify.faults.supervision import Term, boundary_counted, padding_counted, with_extra
from verify.groups import PreferenceGroup, TokenIds
from verify.objective import Sft

_PAD = 0
_EXAMPLES: tuple[CaseKind, ...] = ("examples",)
_MASKED: tuple[CaseKind, ...] = ("groups", "examples")


def _without_masked(ids: TokenIds, mask: Sequence[bool]) -> TokenIds:
    return tuple(token if counts else _PAD for token, counts in zip(ids, mask, strict=True))


def masked_tokens_replaced(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Tokens that are not learned are replaced by padding in the input, as if it were the labels."""
    replaced = []
    for group in groups:
        responses = group.completions
        if group.completion_masks:
            responses = tuple(map(_without_masked, responses, group.completion_masks))
        split = len(group.positives)
        replaced.append(replace(group, positives=responses[:split], negatives=responses[split:]))
    return honest(replaced)


def restarted_at_turns(honest: Positions, rows: Rows) -> Tensor:
    """Positions count from 0 again where a supervised turn follows one that is not."""
    positions = honest(rows).clone()
    for branch in rows.branches():
        for slot, before, counts in zip(
            branch.tokens[1:], branch.held.supervised, branch.held.supervised[1:], strict=False
        ):
            if counts and not before:
                positions[branch.row, slot : branch.stop] -= positions[branch.row, slot].item()
    return positions


def first_token_targeted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Labels are the row rolled by one, and an example's first token is one of them."""
    ids = rows.input_ids
    terms = [
        (branch.row, (branch.start - 1) % rows.num_slots, int(ids[branch.row, branch.start]), branch.completion)
        for branch in rows.branches()
    ]
    return with_extra(honest(rows, predictors), terms)


def _prompt_terms(rows: Rows) -> Iterator[Term]:
    ids = rows.input_ids
    for branch in rows.branches():
        for slot in range(branch.start + 1, branch.tokens.start):
            yield branch.row, slot - 1, int(ids[branch.row, slot]), branch.completion


def everything_supervised(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Prompts and the turns of others are learned as well."""
    targets = with_extra(honest(rows, predictors), _prompt_terms(rows))
    return replace(targets, counted=torch.ones_like(targets.counted))


def mask_ignored(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Everything behind the prompt is learned, the turns of others with it."""
    targets = honest(rows, predictors)
    return replace(targets, counted=torch.ones_like(targets.counted))


def _counted(rows: Rows, change: str) -> Tensor:
    """The masks of all completions, changed one by one; bool, [N]."""
    changed: list[bool] = []
    for branch in rows.branches():
        mask = branch.held.supervised
        if change == "one late":
            changed += (False, *mask[:-1])
        else:
            last = max(place for place, counts in enumerate(mask) if counts)
            changed += (*mask[:last], False, *mask[last + 1 :])
    return torch.tensor(changed)


def mask_changed(
    change: Literal["one late", "end dropped"], honest: Supervision, rows: Rows, predictors: Tensor
) -> Targets:
    """The mask is moved by a token, or lacks the last token that is learned."""
    return replace(honest(rows, predictors), counted=_counted(rows, change))


def other_mean(
    mean: Literal["token", "example"],
    honest: Objective,
    sums: Tensor,
    ref_sums: Tensor,
    batch: Batch,
    objective: Sft,
) -> Terms:
    """The mean that is not that of the objective."""
    return honest(sums, ref_sums, batch, replace(objective, mean=mean))


def mean_of_rows(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """Each row has a mean of its own, and the loss is the mean of those."""
    row_of = torch.tensor([branch.row for branch in rows.branches()])
    parts = [replace(terms, losses=terms.losses[row_of == row], weights=terms.weights[row_of == row])
             for row in range(len(rows.rows))]  # fmt: skip
    return torch.stack([honest(part, batch, rows) for part in parts]).mean()


def divided_by_all_tokens(honest: Accumulation, terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    """The sum over learned tokens is divided by the number of all tokens."""
    num_tokens = int((~rows.padding).sum())
    return honest(terms, batch, rows) * terms.weights.sum() / num_tokens


_LOGPS_EXACT = "per-token log-probs exact; "

FAULTS = (
    Fault(
        name="masked-tokens-replaced",
        stage="layout",
        replacement=masked_tokens_replaced,
        what="Tokens that are not learned are overwritten with padding in the input instead of in the labels.",
        kinds=_MASKED,
        bites_where=MASKED_TOKEN,
        packing=BLOCK_DIAGONAL,
        signature="first supervised turn exact, later ones off by nats",
        invisible_where="every token of a response is supervised",
    ),
    Fault(
        name="examples-one-per-row",
        stage="layout",
        replacement=one_row_per_completion,
        what="Sequence packing that quietly feeds one padded row per example.",
        imitates=("A79",),
        kinds=_EXAMPLES,
        bites_where=SEVERAL_SEQUENCES,
        packing=BLOCK_DIAGONAL,
        signature="no value is off; as many rows as there are examples",
        invisible_where="values: they are those of the unpacked path",
        must_kill=("packed-ran",),
    ),
    Fault(
        name="positions-run-on-over-examples",
        stage="positions",
        replacement=running,
        what="Positions are slot numbers: they do not restart where an example starts.",
        imitates=("A20", "A14"),
        kinds=("pairs", "examples"),
        bites_where=SEVERAL_SEQUENCES,
        packing=BLOCK_DIAGONAL,
        signature="no value is off under rotary attention; with learned positions all later examples",
        invisible_where="values: rotary attention sees differences of positions only",
        must_kill=("row-map", "absolute-positions"),
    ),
    Fault(
        name="positions-restart-at-turns",
        stage="positions",
        replacement=restarted_at_turns,
        what="Positions restart at every supervised turn of a conversation, not only where an example starts.",
        imitates=("A21",),
        kinds=_MASKED,
        bites_where=TURN_OF_TWO,
        packing=BLOCK_DIAGONAL,
        signature="first supervised turn exact, later ones off from their second token on",
        invisible_where="one supervised turn per example",
    ),
    Fault(
        name="examples-attend-to-those-before",
        stage="mask",
        replacement=causal_only,
        what="The mask is the causal triangle of the row: an example attends to those before it.",
        imitates=("A08", "A09", "A11", "A13"),
        kinds=_EXAMPLES,
        bites_where=LATER_EXAMPLE,
        packing=BLOCK_DIAGONAL,
        signature="first example of a row exact, all tokens of later ones off by nats",
        invisible_where="one example per row",
    ),
    Fault(
        name="recurrent-state-over-examples",
        stage="activations",
        replacement=state_leaks,
        what="A recurrent state is carried from one example to the next; masks and positions are right.",
        imitates=("A10", "A11", "A12"),
        kinds=_EXAMPLES,
        bites_where=LATER_EXAMPLE,
        packing=BLOCK_DIAGONAL,
        signature="first example of a row exact, all tokens of later ones off, less so further in",
        invisible_where="one example per row",
    ),
    Fault(
        name="convolution-over-examples",
        stage="activations",
        replacement=convolution_bleeds,
        what="A causal convolution of width 4 reads across the start of an example.",
        imitates=("A12",),
        kinds=_EXAMPLES,
        bites_where=SHORT_LATER_PROMPT,
        packing=BLOCK_DIAGONAL,
        signature="only tokens that the first three slots of a later example predict are off",
        invisible_where="prompts of four or more tokens",
    ),
    Fault(
        name="target-across-examples",
        stage="supervision",
        replacement=boundary_counted,
        what="The end of an example predicts the start of the next one, and the loss takes it.",
        imitates=("A31", "A24"),
        kinds=_EXAMPLES,
        bites_where=SEVERAL_SEQUENCES,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "the loss has one large term more for every example that has a neighbour behind",
        invisible_where="log-probs; one example per row",
    ),
    Fault(
        name="first-token-of-an-example-targeted",
        stage="supervision",
        replacement=first_token_targeted,
        what="The first token of every example is a target, predicted from the slot before it.",
        imitates=("A24", "A25"),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "the loss has one large term more for every example",
        invisible_where="log-probs",
    ),
    Fault(
        name="end-of-example-not-counted",
        stage="supervision",
        replacement=partial(mask_changed, "end dropped"),
        what="The last target of every example, its end token, is masked.",
        imitates=("A30",),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and gradients lack one term per example",
        invisible_where="log-probs",
    ),
    Fault(
        name="everything-supervised",
        stage="supervision",
        replacement=everything_supervised,
        what="With packing on, completion-only loss is the loss of the whole sequence.",
        imitates=("A29",),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and gradients are those of prompts and all turns",
        invisible_where="log-probs",
    ),
    Fault(
        name="user-turns-supervised",
        stage="supervision",
        replacement=mask_ignored,
        what="Everything behind the prompt is learned: the mask of user turns is ignored.",
        imitates=("A26", "A29"),
        kinds=_MASKED,
        bites_where=MASKED_TOKEN,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and gradients have the terms of user turns as well",
        invisible_where="log-probs; every token of a response is supervised",
    ),
    Fault(
        name="mask-one-late",
        stage="supervision",
        replacement=partial(mask_changed, "one late"),
        what="The mask of supervised tokens is moved by one: it says what predicts, and is read as what is predicted.",
        imitates=("A27", "A28"),
        kinds=_EXAMPLES,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "every supervised turn loses its first token and takes the one behind it",
        invisible_where="log-probs",
    ),
    Fault(
        name="padding-in-the-loss",
        stage="supervision",
        replacement=padding_counted,
        what="Padding behind a row of examples counts as the end of its last one.",
        imitates=("A02", "A32"),
        kinds=_EXAMPLES,
        bites_where=ROWS_OF_BLOCKS_PADDED,
        packing=Packing(segments="block-diagonal", rows="row-per-group"),
        signature=_LOGPS_EXACT + "loss off in proportion to the padding",
        invisible_where="log-probs; rows of equal length",
    ),
    Fault(
        name="token-mean-for-example-mean",
        stage="objective",
        replacement=partial(other_mean, "token"),
        what="The loss is the mean over all tokens of the batch where the mean over examples was asked for.",
        imitates=("A34", "A36"),
        kinds=_EXAMPLES,
        bites_where=EXAMPLE_MEAN_OF_UNEVEN,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and the direction of gradients off: long examples weigh more",
        invisible_where="log-probs; examples with equal numbers of supervised tokens",
    ),
    Fault(
        name="example-mean-for-token-mean",
        stage="objective",
        replacement=partial(other_mean, "example"),
        what="The loss is the mean over examples where the mean over all tokens of the batch was asked for.",
        imitates=("A34", "A36"),
        kinds=_EXAMPLES,
        bites_where=TOKEN_MEAN_OF_UNEVEN,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and the direction of gradients off: short examples weigh more",
        invisible_where="log-probs; examples with equal numbers of supervised tokens",
    ),
    Fault(
        name="mean-of-row-means",
        stage="accumulation",
        replacement=mean_of_rows,
        what="Each packed row has a mean of its own, and the loss is the mean of those.",
        imitates=("A34", "A65", "A86"),
        kinds=_EXAMPLES,
        bites_where=BINS_OF_BLOCKS,
        packing=BLOCK_DIAGONAL_BINS,
        signature=_LOGPS_EXACT + "loss and the direction of gradients off: what stands in full rows weighs less",
        invisible_where="log-probs; one row, or rows with equal numbers of supervised tokens",
    ),
    Fault(
        name="all-tokens-in-the-denominator",
        stage="accumulation",
        replacement=divided_by_all_tokens,
        what="The sum over supervised tokens is divided by the number of all tokens, prompts and user turns included.",
        imitates=("A35", "A02"),
        kinds=_EXAMPLES,
        bites_where=TOKEN_MEAN,
        packing=BLOCK_DIAGONAL,
        signature=_LOGPS_EXACT + "loss and every gradient too small by one ratio, supervised over all tokens",
        invisible_where="log-probs; every token is supervised",
    ),
)

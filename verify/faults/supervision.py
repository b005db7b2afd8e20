"""Faults of the supervision: which predictions enter the sum of a completion.

What is left out or added here does not show in the per-token log-probs, only in what is summed from them.

Shape letters: B rows, T slots, N targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import LAST_TOKEN_INSIDE, PROMPT_OF_TWO, TOKEN_ZERO_INSIDE, TWO_PADDING_SLOTS
from verify.faults.fault import PREFERENCES, REPEAT_PROMPT_TOKEN, ROW_PER_GROUP, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Supervision, Targets

Term = tuple[int, int, int, int]
"""Row, predictor slot, token id, completion."""


def with_extra(targets: Targets, terms: Iterable[Term]) -> Targets:
    """More terms in the sums."""
    extra = list(terms)
    if not extra:
        return targets
    rows, predictor_slots, token_ids, completions = torch.tensor(extra).unbind(1)
    return Targets(
        torch.cat((targets.rows, rows)),
        torch.cat((targets.predictor_slots, predictor_slots)),
        torch.cat((targets.token_ids, token_ids)),
        torch.cat((targets.completions, completions)),
        torch.cat((targets.counted, torch.ones(len(extra), dtype=torch.bool))),
    )


def _first_of_each(targets: Targets) -> Tensor:
    """Whether a target is the first of its completion; bool, [N]."""
    return torch.cat((torch.tensor([True]), targets.completions[1:] != targets.completions[:-1]))


def first_token_dropped(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The mask starts one token late."""
    targets = honest(rows, predictors)
    return replace(targets, counted=~_first_of_each(targets))


def last_token_dropped(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The end token is masked because its id is that of padding."""
    targets = honest(rows, predictors)
    return replace(targets, counted=~_first_of_each(targets).roll(-1))


def _prompt_terms(rows: Rows, *, chosen_only: bool, last_only: bool) -> Iterable[Term]:
    ids = rows.input_ids
    for branch in rows.branches():
        completion = branch.completion
        if chosen_only and completion % 2:
            continue
        for prompt in rows.ancestors_of(branch):
            first = prompt.stop - 1 if last_only else prompt.start + 1
            for slot in range(max(first, prompt.start + 1), prompt.stop):
                yield branch.row, slot - 1, int(ids[branch.row, slot]), completion


def prompt_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Completion-only loss became full-sequence loss, for both responses alike."""
    return with_extra(honest(rows, predictors), _prompt_terms(rows, chosen_only=False, last_only=False))


def prompt_counted_once(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The shared prompt is summed once, with the branch that follows it."""
    return with_extra(honest(rows, predictors), _prompt_terms(rows, chosen_only=True, last_only=False))


def last_prompt_token_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The prompt length is one too small: its last token is supervised too."""
    return with_extra(honest(rows, predictors), _prompt_terms(rows, chosen_only=False, last_only=True))


def boundary_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The end of one segment predicts the start of the next."""
    ids = rows.input_ids
    terms = [
        (branch.row, branch.stop - 1, int(ids[branch.row, branch.stop]), branch.completion)
        for branch in rows.branches()
        if branch.stop < rows.num_slots
    ]
    return with_extra(honest(rows, predictors), terms)


def end_predicts_root(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """One transition too many per branch: its end predicts the first token of the row."""
    terms = [
        (branch.row, branch.stop - 1, rows.rows[branch.row][0].ids[0], branch.completion) for branch in rows.branches()
    ]
    return with_extra(honest(rows, predictors), terms)


def padding_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Padding behind the last branch of a row counts as its continuation."""
    last = {branch.row: branch.completion for branch in rows.branches()}
    terms = [
        (place.row, slot - 1, place.piece.ids[0], last[place.row])
        for place in rows.places()
        if place.piece.is_padding
        for slot in range(place.start + 1, place.stop)
    ]
    return with_extra(honest(rows, predictors), terms)


def ignored_counted(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Ignored targets are not skipped: prompt slots predict id 0, and the sum of the next branch takes it."""
    terms = [
        (branch.row, slot, 0, branch.completion)
        for branch in rows.branches()
        if not branch.completion % 2
        for prompt in rows.ancestors_of(branch)
        for slot in range(prompt.start, prompt.stop)
    ]
    return with_extra(honest(rows, predictors), terms)


def token_zero_dropped(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """The mask is rebuilt as ``ids != pad`` with pad id 0, which is a word here."""
    targets = honest(rows, predictors)
    return replace(targets, counted=targets.counted & (targets.token_ids != 0))


def cut_at_end_token(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """A response ends at the first occurrence of its last token."""
    targets = honest(rows, predictors)
    before_end = [
        place <= ids.index(ids[-1])
        for ids in (branch.piece.ids[-len(branch.tokens) :] for branch in rows.branches())
        for place in range(len(ids))
    ]
    return replace(targets, counted=targets.counted & torch.tensor(before_end))


def indexed_by_predictor(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Entry i is the log-prob that slot i gives to the next slot of the row."""
    targets = honest(rows, predictors)
    own = torch.tensor([slot for branch in rows.branches() for slot in branch.tokens])
    return replace(targets, predictor_slots=own, token_ids=rows.input_ids[targets.rows, (own + 1) % rows.num_slots])


def slice_one_early(honest: Supervision, rows: Rows, predictors: Tensor) -> Targets:
    """Rejected log-probs are read by naive offsets: the repeated prompt token makes them start one slot early."""
    targets = honest(rows, predictors)
    rejected = targets.completions % 2 == 1
    slots = (targets.predictor_slots - 1).clamp(min=0)
    ids = rows.input_ids
    return replace(
        targets,
        predictor_slots=torch.where(rejected, slots, targets.predictor_slots),
        token_ids=torch.where(rejected, ids[targets.rows, targets.predictor_slots], targets.token_ids),
    )


_ONLY_SUMS = "per-token log-probs exact; "

FAULTS = (
    Fault(
        name="first-token-not-counted",
        stage="supervision",
        replacement=first_token_dropped,
        what="The first token of every response is left out of its sum.",
        imitates=("A28",),
        signature=_ONLY_SUMS + "rewards, loss and gradients off",
        invisible_where="log-probs",
    ),
    Fault(
        name="end-token-not-counted",
        stage="supervision",
        replacement=last_token_dropped,
        what="The last token of every response is masked, since the pad id is the end id.",
        imitates=("A30",),
        signature=_ONLY_SUMS + "rewards short by one term",
        invisible_where="log-probs",
    ),
    Fault(
        name="prompt-counted",
        stage="supervision",
        replacement=prompt_counted,
        what="Prompt tokens are supervised too, in both responses.",
        imitates=("A29",),
        kinds=PREFERENCES,
        bites_where=PROMPT_OF_TWO,
        signature=_ONLY_SUMS + "rewards off; margins, loss and gradients exact, since the prompt cancels",
        invisible_where="everything but the rewards of single completions",
    ),
    Fault(
        name="prompt-counted-for-chosen",
        stage="supervision",
        replacement=prompt_counted_once,
        what="The shared prompt is supervised once, with the branch that follows it.",
        imitates=("A29",),
        bites_where=PROMPT_OF_TWO,
        signature=_ONLY_SUMS + "chosen rewards, margins, loss and gradients off",
        invisible_where="log-probs",
    ),
    Fault(
        name="last-prompt-token-counted",
        stage="supervision",
        replacement=last_prompt_token_counted,
        what="The prompt counts as one token shorter than it is: its last token is supervised in both responses.",
        imitates=("A72",),
        bites_where=PROMPT_OF_TWO,
        signature=_ONLY_SUMS + "rewards off by one term; margins, loss and gradients exact, since the prompt cancels",
        invisible_where="everything but the rewards of single completions",
    ),
    Fault(
        name="boundary-target-counted",
        stage="supervision",
        replacement=boundary_counted,
        what="The end of a segment predicts the start of the next, and the sum takes it.",
        imitates=("A31", "A24"),
        signature=_ONLY_SUMS + "one large extra term for every segment that has a neighbour behind",
        invisible_where="log-probs",
    ),
    Fault(
        name="end-predicts-the-root",
        stage="supervision",
        replacement=end_predicts_root,
        what="One transition too many per branch: its end predicts the first token of the row.",
        imitates=("A25",),
        signature=_ONLY_SUMS + "one large extra term per branch, with the same token id in all",
        invisible_where="log-probs",
    ),
    Fault(
        name="padding-counted",
        stage="supervision",
        replacement=padding_counted,
        what="Padding behind a row counts as the end of its last response.",
        imitates=("A02", "A32"),
        bites_where=TWO_PADDING_SLOTS,
        packing=ROW_PER_GROUP,
        signature=_ONLY_SUMS + "rewards off in proportion to the padding",
        invisible_where="rows of equal length",
    ),
    Fault(
        name="ignored-targets-counted",
        stage="supervision",
        replacement=ignored_counted,
        what="Slots whose target is ignored enter the sum as if their target were id 0.",
        imitates=("A57",),
        signature=_ONLY_SUMS + "chosen rewards off by one term per prompt token",
        invisible_where="log-probs",
    ),
    Fault(
        name="token-zero-not-counted",
        stage="supervision",
        replacement=token_zero_dropped,
        what="The mask is rebuilt from ids with pad id 0, which is an ordinary token.",
        imitates=("A32",),
        kinds=CASE_KINDS,
        bites_where=TOKEN_ZERO_INSIDE,
        signature=_ONLY_SUMS + "rewards of responses with token 0 short by one term",
        invisible_where="no response holds the pad id",
    ),
    Fault(
        name="cut-at-first-end-token",
        stage="supervision",
        replacement=cut_at_end_token,
        what="A response is taken to end at the first occurrence of its last token.",
        imitates=("A03",),
        kinds=CASE_KINDS,
        bites_where=LAST_TOKEN_INSIDE,
        signature=_ONLY_SUMS + "rewards of responses that hold their end token earlier are short",
        invisible_where="the end token occurs once",
    ),
    Fault(
        name="indexed-by-predictor",
        stage="supervision",
        replacement=indexed_by_predictor,
        what="Entry i holds the log-prob of token i + 1, while masks and targets count by token.",
        imitates=("A27", "A26"),
        signature="values right as a set but moved by one; the last of each response is foreign",
    ),
    Fault(
        name="slice-one-early",
        stage="supervision",
        replacement=slice_one_early,
        what="Where branches repeat the last prompt token, rejected log-probs are read one slot early.",
        imitates=("A75",),
        packing=REPEAT_PROMPT_TOKEN,
        bites_where=PROMPT_OF_TWO,
        signature="chosen exact; rejected moved by one, its last token missing",
    ),
)

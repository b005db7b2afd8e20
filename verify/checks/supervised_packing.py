"""The five invariants of packed supervised fine-tuning, each a check of its own.

They are asked of one case: examples of one and of several turns, two of them with a turn in common, in which an id says
which token it is. What cannot be seen of a subject is not applicable, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from verify.cases import Case
from verify.checks.absolute_positions import hold_absolute_positions
from verify.checks.bench import Bench, Groups, flat
from verify.checks.cases import rewrite
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.embedded import slots_exchanged
from verify.checks.packed_rows import check_packed_rows
from verify.checks.path_walk import walk_positions
from verify.checks.places import all_places, completion_words, holders
from verify.checks.reach import hold_against_paths
from verify.checks.rewriting import Rewriting, hold_against_rewritings
from verify.checks.targets import counted_targets, expected_targets
from verify.subject import gradient_support, owns_loss


def _no_cross_attention(bench: Bench, case: Case) -> Measured:
    rewritten = hold_against_rewritings(bench, case, list(_examples(case.groups)))
    if rewritten.num_differing or not gradient_support(bench.subject, bench.model).supported:
        return rewritten
    try:
        reached = hold_against_paths(bench, case)
    except NotApplicableError:  # its tokens bypass the embedding
        return rewritten
    return replace(reached, num_compared=rewritten.num_compared + reached.num_compared)


def _examples(groups: Groups) -> Iterator[Rewriting]:
    """Each example: what is on its path and on no other."""
    held_by = holders(groups)
    for g, group in enumerate(groups):
        for k in range(len(group.completions)):
            own = frozenset(token for token, who in held_by.items() if who == {(g, k)})
            yield Rewriting(f"the example of {completion_words(groups, g, k)}", own)


def _no_boundary_target(bench: Bench, case: Case) -> Measured:
    first = {group.prompt_ids[0]: f"group {g}, prompt, token 0" for g, group in enumerate(case.groups)}
    last = {
        ids[supervised[-1]]: f"{completion_words(case.groups, g, k)}, token {supervised[-1]}"
        for g, group in enumerate(case.groups)
        for k, (ids, supervised) in enumerate(zip(group.completions, group.supervised, strict=True))
    }
    compared, violations = 0, list[str]()
    for targets in counted_targets(bench, case):
        counted = {token for token, times in targets.times.items() if times > targets.rounding}
        compared += len(first) + len(last)
        violations += [
            f"{place} is a target by {targets.source}: only what stands before the example can predict it"
            for token, place in first.items()
            if token in counted
        ]
        violations += [
            f"{place}, the last that is supervised, is no target by {targets.source}"
            for token, place in last.items()
            if token not in counted
        ]
    if owns_loss(bench.subject):
        changed = _loss_changes_with(bench, case, _unsupervised_ends(case.groups))
        compared += 1
        violations += [f"rewriting the last token of {case.name}, which nobody learns, changes the loss"] * changed
    return _verdict(compared, violations)


def _unsupervised_ends(groups: Groups) -> frozenset[int]:
    """Last tokens of examples that are not supervised: nothing follows that they could predict."""
    return frozenset(
        ids[-1]
        for group in groups
        for ids, supervised in zip(group.completions, group.supervised, strict=True)
        if supervised[-1] < len(ids) - 1
    )


def _loss_changes_with(bench: Bench, case: Case, token_ids: frozenset[int]) -> bool:
    rewritten = rewrite(case.groups, bench.setting.cases.other_token[case.name], token_ids)
    objective = bench.objective_of(case)
    before, after = (bench.own_loss(groups, objective).loss for groups in (case.groups, rewritten))
    return before != after  # NaN never equals


def _no_padding_in_loss(bench: Bench, case: Case) -> Measured:
    objective, words = bench.objective_of(case), {token for _, token in all_places(case.groups)}
    if owns_loss(bench.subject):
        what, seen = "the loss", bench.own_loss(case.groups, objective)
        before, fed = torch.tensor([seen.loss], dtype=torch.float64), seen.fed
    else:
        what, before = "its log-probs, of which the runner makes the loss", flat(bench.logps(case.groups))
        fed = bench.fed(case.groups)
    padding = [~torch.isin(ids, torch.tensor(sorted(words))) for ids in fed]
    num_slots = sum(int(slots.sum()) for slots in padding)
    if not num_slots:
        raise NotApplicableError("no padding passed the embedding: every slot held a token of the case")
    with slots_exchanged(bench.model, padding, min(words)) as met:
        if owns_loss(bench.subject):
            after = torch.tensor([bench.run_own_loss(case.groups, objective).loss], dtype=torch.float64)
        else:
            after = flat(bench.run_logps(case.groups))
    if len(met) < len(padding):
        raise NotApplicableError("feeds other rows the second time, so that its padding cannot be exchanged")
    compared, violations = num_slots, list[str]()
    if not torch.equal(before, after):
        violations.append(f"another token at {num_slots} slots of padding changes {what}")
    for targets in counted_targets(bench, case) if owns_loss(bench.subject) else ():
        compared += len(targets.times)
        violations += [
            f"token id {token}, which the case does not hold, is a target by {targets.source}"
            for token, times in targets.times.items()
            if token not in words and times > targets.rounding
        ]
    return _verdict(compared, violations)


def _positions_as_unpacked(bench: Bench, case: Case) -> Measured:
    packed_rows = getattr(bench.subject, "packed_rows", None)
    if packed_rows is None:
        return hold_absolute_positions(bench, case)
    shown = bench.call(lambda: packed_rows(case.groups))
    walk = walk_positions(check_packed_rows(shown, case.groups, subject=bench.subject.name), case.groups)
    of_rows = _verdict(walk.num_compared, [deviation.words for deviation in walk.deviations])
    if of_rows.num_differing:
        return of_rows
    try:
        computed = hold_absolute_positions(bench, case)
    except NotApplicableError:
        return of_rows
    return replace(computed, num_compared=of_rows.num_compared + computed.num_compared)


def _same_number_of_targets(bench: Bench, case: Case) -> Measured:
    expected, compared, violations = expected_targets(case), 0, list[str]()
    places: dict[int, str] = {}
    for place, token in all_places(case.groups):
        places.setdefault(token, place.words(case.groups))
    for targets in counted_targets(bench, case):
        others = {token: f"token id {token}, which the case does not hold," for token in targets.times.keys() - places}
        compared += len(places) + len(others)
        for token, words in (places | others).items():
            times, wanted = targets.times.get(token, 0.0), expected.get(token, 0)
            if not abs(times - wanted) <= targets.rounding:  # NaN never equals
                violations.append(f"{words} counts {times:.3g} times by {targets.source}; it should {wanted} times")
    return _verdict(compared, violations)


def _verdict(compared: int, violations: list[str]) -> Measured:
    return Measured(
        num_compared=compared,
        num_differing=len(violations),
        worst=violations[0] if violations else "",
        ratio=math.inf if violations else 0.0,
    )


_TARGETS_UNSEEN = (
    "Subjects that neither show rows nor compute a loss whose gradient passes the model's output head; of those "
    "without gradients, and of models that cap their logits, more than their rows say; "
)

NO_CROSS_ATTENTION = ExactCheck(
    name="no-cross-attention",
    claims=(
        "Rewriting one packed example at equal lengths leaves the log-probs of all others bit-identical, and changes "
        "its own; the gradient of each log-prob at the embedding is exactly 0.0 at every token of another example. Of "
        "two rollouts that share a turn, what is shared reaches both."
    ),
    cannot_see="Dependence on lengths; the gradients of subjects that have none; log-probs of unsupervised tokens.",
    cases=("distinct-examples",),
    measure=_no_cross_attention,
)
NO_BOUNDARY_TARGET = ExactCheck(
    name="no-boundary-target",
    claims=(
        "No first token of an example is a target of the loss, and the last supervised token of each is one: by the "
        "gradient of the loss at the logits, and by the rows that are shown. Rewriting an unsupervised last token "
        "leaves the loss bit-identical."
    ),
    cannot_see=_TARGETS_UNSEEN + "targets with next to no weight.",
    cases=("distinct-examples",),
    measure=_no_boundary_target,
)
NO_PADDING_IN_LOSS = ExactCheck(
    name="no-padding-in-loss",
    claims=(
        "Embedding another token in every padded slot leaves the loss bit-identical (without a loss of its own, all "
        "log-probs), and no token that the case does not hold is a target."
    ),
    cannot_see=(
        "Subjects that fed no padding on this case; padding with an id that the case holds as a word; padding that is "
        "counted in a mean alone (same-number-of-targets sees that)."
    ),
    cases=("distinct-examples",),
    measure=_no_padding_in_loss,
)
POSITIONS_AS_UNPACKED = ExactCheck(
    name="positions-as-unpacked",
    claims=(
        "On the decoder with absolute positions log-probs of packed examples equal the unpacked ones but for rounding; "
        "in the rows that are shown every example's path stands at positions 0, 1, 2, ..."
    ),
    cannot_see="Positions beyond those of a short case; subjects that neither run that decoder nor show rows.",
    cases=("distinct-examples",),
    measure=_positions_as_unpacked,
)
SAME_NUMBER_OF_TARGETS = ExactCheck(
    name="same-number-of-targets",
    claims=(
        "In a token mean every supervised token weighs 1 / N, N the supervised tokens of the batch, as often as "
        "examples hold it (a shared turn counts for each), and no other token weighs anything: by the gradient of the "
        "loss at the logits, and by the rows that are shown."
    ),
    cannot_see=_TARGETS_UNSEEN
    + "weights that are off by less than a thousandth of a target, or 16 epsilons of the dtype.",
    cases=("distinct-examples",),
    measure=_same_number_of_targets,
)

"""The stages of the packed computation as ``packed_impl`` has them: what a fault replaces one of.

Shape letters: N targets, K completions, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, cast

import torch
from torch import Tensor

from packed_impl.bins import packed_length
from packed_impl.forest import Forest, attention_rule, predictor_slots, segment_ids
from packed_impl.forest import positions as path_positions
from packed_impl.layout import PackedLayout, pack
from packed_impl.preference import preference_terms
from verify.faults.fault import Packing
from verify.faults.rows import Held, Piece, Rows
from verify.faults.stages import Batch, Forward, Stages, Targets, Terms
from verify.groups import PreferenceGroup
from verify.images import Image
from verify.models.adapters import adapters_off
from verify.objective import Objective, RewardModel, Sft
from verify.subjects.packed import rows_of_bins
from verify.subjects.staged_rewards import readout, reward_terms, scores
from verify.subjects.staged_routers import routers


def honest_stages(packing: Packing) -> Stages:
    """The stages as ``packed_impl`` computes them.

    Args:
        packing: The layout.

    Returns:
        The stages.
    """
    return Stages(
        layout=partial(_layout, packing),
        positions=honest_positions,
        mask=_mask,
        window=_window,
        activations=honest_activations,
        predictors=_predictors,
        supervision=_supervision,
        token_logps=_token_logps,
        reduction=_reduction,
        reference=_reference,
        readout=readout,
        scores=scores,
        objective=_objective,
        accumulation=_accumulation,
        routers=routers,
        gradients=honest_gradients,
    )


def _layout(packing: Packing, groups: Sequence[PreferenceGroup]) -> Rows:
    if packing.rows != "bins":
        return _rows_of(pack(groups, layout=packing.segments, rows=packing.rows))
    lengths = [
        packed_length(len(group.prompt_ids), list(map(len, group.completions)), layout=packing.segments)
        for group in groups
    ]
    return _rows_of(pack(groups, layout=packing.segments, rows=rows_of_bins(lengths)))


def _rows_of(packed: PackedLayout) -> Rows:
    """The layout as pieces; a root without children that holds no completion token is padding."""
    held = _held_by(packed)
    rows = []
    for number, forest in enumerate(packed.forests):
        parents = {segment.parent for segment in forest.segments}
        pieces = []
        for index, segment in enumerate(forest.segments):
            ids = tuple(packed.input_ids[number, segment.start : segment.stop].tolist())
            holds = tuple(held.get((number, index), ()))
            features: tuple[int, ...] = ()
            if packed.images is not None:
                features = tuple(packed.images.features[number, segment.start : segment.stop].tolist())
            is_padding = not holds and index not in parents
            pieces.append(Piece(ids, segment.parent, holds, is_padding=is_padding, features=features))
        rows.append(tuple(pieces))
    if packed.images is None:
        return Rows(tuple(rows))
    return Rows(tuple(rows), images=cast("tuple[Image, ...]", packed.images.images), per_image=packed.images.per_image)


def _held_by(packed: PackedLayout) -> dict[tuple[int, int], list[Held]]:
    """What the segments hold of the completions, by row and number of the segment."""
    segments = [segment_ids(forest).tolist() for forest in packed.forests]
    places = zip(packed.token_rows.tolist(), packed.token_slots.tolist(), packed.supervised.tolist(), strict=True)
    held: dict[tuple[int, int], list[Held]] = {}
    for completion, length in enumerate(packed.completion_lengths):
        for (row, segment), run in groupby(islice(places, length), key=lambda at: (at[0], segments[at[0]][at[1]])):
            tokens = list(run)
            num_behind = packed.forests[row].segments[segment].stop - tokens[-1][1] - 1
            supervised = tuple(counts for _, _, counts in tokens)
            held.setdefault((row, segment), []).append(Held(completion, supervised, num_behind))
    return held


def _forests(rows: Rows) -> list[Forest]:
    return [Forest.of([len(piece.ids) for piece in row], [piece.parent for piece in row]) for row in rows.rows]


def honest_positions(rows: Rows) -> Tensor:
    """Positions along each path; int64, [B, T]."""
    return torch.stack([path_positions(forest) for forest in _forests(rows)])


def _mask(rows: Rows) -> Tensor:
    return torch.stack([attention_rule(forest) for forest in _forests(rows)])


def _window(rows: Rows, mask: Tensor, window: int) -> Tensor:
    """Hide what is far on the path, whatever else the mask says; [B, T query, T key].

    A query that would be left without any key keeps those of the mask: its output would not be defined.
    """
    positions = honest_positions(rows)
    far = positions[:, :, None] - positions[:, None, :] >= window
    within = mask & ~far if mask.dtype == torch.bool else mask.masked_fill(far, -torch.inf)
    return torch.where(attended(within).any(-1, keepdim=True), within, mask)


def attended(mask: Tensor) -> Tensor:
    """What a mask lets through: whatever is not at minus infinity is attended to, however little.

    Args:
        mask: Bool, or what is added to scores; [B, T query, T key].

    Returns:
        Bool, of the same shape.
    """
    return mask if mask.dtype == torch.bool else mask > -torch.inf


def honest_activations(rows: Rows, module: str, output: Tensor) -> Tensor:
    """What a module gives, as it is."""
    return output


def _predictors(rows: Rows) -> Tensor:
    return torch.stack([predictor_slots(forest) for forest in _forests(rows)])


def _supervision(rows: Rows, predictors: Tensor) -> Targets:
    places = [
        (branch.row, slot, branch.completion, counts)
        for branch in rows.branches()
        for slot, counts in zip(branch.tokens, branch.held.supervised, strict=True)
    ]
    row, slot, completion, counted = torch.tensor(places).unbind(1)
    predicted_from = predictors[row, slot]
    if bool((predicted_from < 0).any()):
        raise ValueError("a completion token has no predictor")
    return Targets(row, predicted_from, rows.input_ids[row, slot], completion, counted.bool())


def _token_logps(logits: Tensor, token_ids: Tensor) -> Tensor:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits, dim=-1, dtype=dtype).gather(-1, token_ids[:, None])[:, 0]


def _reduction(logps: Tensor, targets: Targets) -> Tensor:
    completions = torch.where(targets.counted, targets.completions, -1).to(logps.device)
    return torch.stack([logps[completions == k].sum() for k in range(int(targets.completions.max()) + 1)])


def _reference(model: Any, forward: Forward, rows: Rows) -> Tensor:
    with torch.no_grad(), adapters_off(model):
        return forward(rows, {})


def _objective(sums: Tensor, ref_sums: Tensor, batch: Batch, objective: Objective) -> Terms:
    if isinstance(objective, RewardModel):
        return reward_terms(sums, batch)
    if isinstance(objective, Sft):
        counts = batch.num_counted.to(sums)
        weights = counts if objective.mean == "token" else torch.ones_like(counts)
        return Terms(-sums / counts.clamp(min=1), weights, sums.new_empty(0))
    sizes = [(len(group.positives), len(group.negatives)) for group in batch.groups]
    by_group = [torch.split(of_all, [sum(size) for size in sizes]) for of_all in (sums, ref_sums, batch.num_counted)]
    parts = [
        preference_terms(
            policy, reference, counts, [size],
            objective=objective.name, beta=objective.beta,
            label_smoothing=objective.label_smoothing, nll_weight=objective.nll_weight,
        )
        for size, policy, reference, counts in zip(sizes, *by_group, strict=True)
    ]  # fmt: skip
    losses = torch.stack([part.loss for part in parts])
    return Terms(losses, torch.ones_like(losses), torch.cat([part.rewards for part in parts]))


def _accumulation(terms: Terms, batch: Batch, rows: Rows) -> Tensor:
    return (terms.weights * terms.losses).sum() / terms.weights.sum()


def honest_gradients(name: str, parameter: Tensor, rows: Rows) -> Tensor:
    """A parameter that stands for itself."""
    return parameter

"""Trainers of groups and of supervised examples as a user would write them, wrong in one way each; nothing of ours.

``TreeTrainer`` is right: every sequence of a batch is put into one tree token by token; each token of the tree is a
slot of one row, sees its ancestors, stands at its depth and is predicted from its parent. ``SequenceTrainer`` is right
too and shares nothing: each sequence hangs on a root of its own. Each class below changes one thing and says in
``stage`` where.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.nn.functional import logsigmoid


class TreeTrainer:
    name = "tree-trainer"
    stage = "none"
    takes = ("groups", "examples")

    # Layout

    def sequences(self, groups):
        """Prompt, response and which of the response's tokens count, of every response."""
        found = []
        for group in groups:
            responses = [*group.positives, *group.negatives]
            masks = group.completion_masks or [[True] * len(ids) for ids in responses]
            found += [
                (list(group.prompt_ids), list(ids), list(mask)) for ids, mask in zip(responses, masks, strict=True)
            ]
        return found

    def root(self, number):
        """What the first token of a sequence hangs on; sequences with one root share what they begin with."""
        return -1

    def tables(self, groups):
        """Slots in the order in which their tokens are first met."""
        slots, ids, parents, depths, of_responses, masks, holders = {}, [], [], [], [], [], []
        for number, (prompt, response, mask) in enumerate(self.sequences(groups)):
            at, path = self.root(number), []
            for token in prompt + response:
                if (at, token) not in slots:
                    slots[at, token] = len(ids)
                    ids.append(token)
                    parents.append(at if at >= 0 else -1)
                    depths.append(len(path))
                    holders.append(0)
                at = slots[at, token]
                holders[at] += 1
                path.append(at)
            of_responses.append(path[len(prompt) :])
            masks.append(torch.tensor(mask))
        t = SimpleNamespace(
            ids=torch.tensor(ids), parents=parents, depths=torch.tensor(depths), responses=of_responses, masks=masks,
            holders=torch.tensor(holders), groups=groups,
        )  # fmt: skip
        t.segments, t.parent_segments = self.segments(t)
        return t

    def segments(self, t):
        """Runs of slots without a fork: number of each slot's, and the number of each one's parent."""
        num_children = [0] * len(t.parents)
        for parent in t.parents:
            if parent >= 0:
                num_children[parent] += 1
        segments, parents = [], []
        for slot, parent in enumerate(t.parents):
            if parent >= 0 and num_children[parent] == 1 and parent == slot - 1:
                segments.append(segments[parent])
            else:
                segments.append(len(parents))
                parents.append(segments[parent] if parent >= 0 else -1)
        return torch.tensor(segments), parents

    def positions(self, t):
        return t.depths

    def visible(self, t):
        visible = torch.eye(len(t.parents), dtype=torch.bool)
        for slot, parent in enumerate(t.parents):
            if parent >= 0:
                visible[slot] |= visible[parent]
        return visible

    def predictors(self, t, slots):
        return [t.parents[slot] for slot in slots]

    # Forward

    @contextmanager
    def around_model(self, model, t):
        yield

    def token_logps(self, logits, ids):
        return torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0]

    def logits(self, model, t):
        visible = self.visible(t)
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        with self.around_model(model, t):
            return model(
                input_ids=t.ids[None],
                attention_mask=mask[None, None],
                position_ids=self.positions(t)[None],
                use_cache=False,
            ).logits[0]

    def collected(self, logits, t):
        return [self.token_logps(logits[self.predictors(t, slots)], t.ids[slots]) for slots in t.responses]

    def per_token_logps(self, model, groups):
        t = self.tables(groups)
        return self.collected(self.logits(model, t), t)

    # Loss

    def sums(self, logps, t):
        return torch.stack([values[mask].sum() for values, mask in zip(logps, t.masks, strict=True)])

    def counts(self, t):
        return torch.tensor([float(mask.sum()) for mask in t.masks])

    def pair_losses(self, positives, negatives, objective):
        margins, e = positives[:, None] - negatives[None, :], objective.label_smoothing
        return -(1 - e) * logsigmoid(margins) - e * logsigmoid(-margins)

    def preference_rewards(self, sums, refs, objective, t):
        return objective.beta * (sums - refs)

    def over_groups(self, losses, t):
        return torch.stack([of_group.mean() for of_group in losses]).mean()

    def preference_loss(self, rewards, objective, t):
        sizes = [(len(group.positives), len(group.negatives)) for group in t.groups]
        parts = [part.split(size) for part, size in zip(rewards.split([m + n for m, n in sizes]), sizes, strict=True)]
        return self.over_groups([self.pair_losses(p, n, objective) for p, n in parts], t)

    def token_mean(self, logps, t):
        return -self.sums(logps, t).sum() / self.counts(t).sum()

    def example_mean(self, logps, t):
        return -(self.sums(logps, t) / self.counts(t)).mean()

    def supervised_loss(self, logps, objective, t):
        mean = self.token_mean if objective.name == "sft-token-mean" else self.example_mean
        return mean(logps, t)

    def loss(self, model, groups, objective):
        if objective.name != "sigmoid":
            t = self.tables(groups)
            logits = self.logits(model, t)
            t.logits = logits
            logps = self.collected(logits, t)
            return SimpleNamespace(loss=self.supervised_loss(logps, objective, t), per_token_logps=logps)
        with torch.no_grad(), model.disable_adapter():
            refs = self.per_token_logps(model, groups)
        t = self.tables(groups)
        logps = self.collected(self.logits(model, t), t)
        rewards = self.preference_rewards(self.sums(logps, t), self.sums(refs, t), objective, t)
        return SimpleNamespace(
            loss=self.preference_loss(rewards, objective, t), rewards=rewards, per_token_logps=logps,
            ref_per_token_logps=refs,
        )  # fmt: skip


class SequenceTrainer(TreeTrainer):
    """Packing of examples: sequences side by side."""

    name, stage = "sequence-trainer", "none"

    def root(self, number):
        return -2 - number


def decoder_of(model):
    return next(module for module in model.modules() if hasattr(module, "layers"))


# Layout


class PromptsCut(TreeTrainer):
    name, stage = "prompts-cut", "layout"

    def sequences(self, groups):
        return [(prompt[-5:], response, mask) for prompt, response, mask in super().sequences(groups)]


class UnsupervisedDropped(TreeTrainer):
    """What is not learned is not fed either."""

    name, stage = "unsupervised-dropped", "layout"

    def tables(self, groups):
        kept = [
            (prompt, [token for token, counts in zip(response, mask, strict=True) if counts], mask)
            for prompt, response, mask in self.sequences(groups)
        ]
        whole, self.sequences = self.sequences, lambda groups: kept
        try:
            t = super().tables(groups)
        finally:
            self.sequences = whole
        t.kept = [torch.tensor(mask) for _, _, mask in kept]
        return t

    def collected(self, logits, t):
        return [
            torch.zeros(len(mask), dtype=logits.dtype).masked_scatter(mask, values)
            for values, mask in zip(super().collected(logits, t), t.kept, strict=True)
        ]


# Mask


class ParentOnly(TreeTrainer):
    """A segment sees itself and its parent; deeper trees were never tried."""

    name, stage = "parent-only", "mask"

    def visible(self, t):
        parents = torch.tensor(t.parent_segments)[t.segments]
        near = (t.segments[:, None] == t.segments[None, :]) | (parents[:, None] == t.segments[None, :])
        return super().visible(t) & near


class WholeRowVisible(SequenceTrainer):
    """One causal mask for the row."""

    name, stage = "whole-row-visible", "mask"

    def visible(self, t):
        return torch.ones(len(t.ids), len(t.ids), dtype=torch.bool).tril()


class GroupVisible(TreeTrainer):
    """Responses of one prompt see those before them."""

    name, stage = "group-visible", "mask"

    def visible(self, t):
        roots = []
        for slot, parent in enumerate(t.parents):
            roots.append(roots[parent] if parent >= 0 else slot)
        roots = torch.tensor(roots)
        return (roots[:, None] == roots[None, :]).tril()


class UserTurnsHidden(TreeTrainer):
    """What is not learned is hidden from what is."""

    name, stage = "user-turns-hidden", "mask"

    def visible(self, t):
        visible, own = super().visible(t), torch.eye(len(t.ids), dtype=torch.bool)
        hidden = [
            slot
            for slots, mask in zip(t.responses, t.masks, strict=True)
            for slot, counts in zip(slots, mask, strict=True)
            if not counts
        ]
        visible[:, hidden] = False
        return visible | own


# Positions


class PositionsFromTheParent(TreeTrainer):
    name, stage = "positions-from-the-parent", "positions"

    def positions(self, t):
        lengths = t.segments.bincount().tolist()
        starts = torch.arange(len(t.ids)) - torch.tensor([t.segments.tolist().index(s) for s in t.segments.tolist()])
        return starts + torch.tensor([lengths[p] if p >= 0 else 0 for p in t.parent_segments])[t.segments]


class PositionsBySlot(TreeTrainer):
    name, stage = "positions-by-slot", "positions"

    def positions(self, t):
        return torch.arange(len(t.ids))


class PositionsWithoutUserTurns(SequenceTrainer):
    """Positions are counted over supervised tokens and the prompt."""

    name, stage = "positions-without-user-turns", "positions"

    def positions(self, t):
        positions = super().positions(t).clone()
        for slots, mask in zip(t.responses, t.masks, strict=True):
            skipped = (~mask).cumsum(0)
            positions[slots] = t.depths[slots] - skipped
        return positions


# Activations


class SharedFromACache(TreeTrainer):
    """Values of slots that several sequences share come from a cache, without a graph."""

    name, stage = "shared-from-a-cache", "activations"

    @contextmanager
    def around_model(self, model, t):
        shared = (t.holders > 1)[None, :, None]
        hooks = [
            layer.self_attn.v_proj.register_forward_hook(
                lambda _module, _args, output: torch.where(shared, output.detach(), output)
            )
            for layer in decoder_of(model).layers
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class ShiftedInto(SequenceTrainer):
    """A token-shift layer mixes each slot with the one before it, across the starts of sequences."""

    name, stage = "shifted-into", "activations"

    @contextmanager
    def around_model(self, model, t):
        starts = torch.tensor([parent < 0 for parent in t.parents])[None, :, None]
        hook = (
            decoder_of(model)
            .layers[0]
            .mlp.register_forward_hook(
                lambda _module, _args, output: output + torch.where(starts, 0.5 * output.roll(1, 1), 0 * output)
            )
        )
        try:
            yield
        finally:
            hook.remove()


# Predictors


class NeighbourPredictsForks(TreeTrainer):
    name, stage = "neighbour-predicts-forks", "predictors"

    def predictors(self, t, slots):
        return [slot - 1 for slot in slots]


class LabelsNotShifted(SequenceTrainer):
    name, stage = "labels-not-shifted", "predictors"

    def predictors(self, t, slots):
        return slots


# Supervision


class MaskIgnored(TreeTrainer):
    name, stage = "mask-ignored", "supervision"

    def tables(self, groups):
        t = super().tables(groups)
        t.masks = [torch.ones_like(mask) for mask in t.masks]
        return t


class MaskOneEarly(SequenceTrainer):
    name, stage = "mask-one-early", "supervision"
    takes = ("examples",)

    def tables(self, groups):
        t = super().tables(groups)
        t.masks = [torch.cat((mask[1:], mask[-1:])) for mask in t.masks]
        return t


class TurnStartsLost(SequenceTrainer):
    """Labels are cut by turn, and each turn loses its first target."""

    name, stage = "turn-starts-lost", "supervision"
    takes = ("examples",)

    def tables(self, groups):
        t = super().tables(groups)
        t.masks = [mask & torch.cat((torch.tensor([len(mask) == 1]), mask[:-1])) for mask in t.masks]
        t.masks = [mask if mask.any() else ~mask for mask in t.masks]
        return t


class WholeSequenceLearned(SequenceTrainer):
    """Every slot predicts the next one of its sequence."""

    name, stage = "whole-sequence-learned", "supervision"
    takes = ("examples",)

    def supervised_loss(self, logps, objective, t):
        slots = [slot for slot, parent in enumerate(t.parents) if parent >= 0]
        return -self.token_logps(t.logits[[slot - 1 for slot in slots]], t.ids[slots]).mean()


class NextSequenceLearned(SequenceTrainer):
    """The targets of the row are its ids, moved by one: each end predicts the start behind it."""

    name, stage = "next-sequence-learned", "supervision"
    takes = ("examples",)

    def token_mean(self, logps, t):
        ends = [slots[-1] for slots in t.responses[:-1]]
        extra = self.token_logps(t.logits[ends], t.ids[[end + 1 for end in ends]])
        return -(self.sums(logps, t).sum() + extra.sum()) / (self.counts(t).sum() + len(extra))


class SharedLearnedOnce(TreeTrainer):
    """One target for each slot."""

    name, stage = "shared-learned-once", "supervision"
    takes = ("examples",)

    def token_mean(self, logps, t):
        of_slots = {}
        for slots, values, mask in zip(t.responses, logps, t.masks, strict=True):
            of_slots.update({slot: value for slot, value, counts in zip(slots, values, mask, strict=True) if counts})
        return -torch.stack(list(of_slots.values())).mean()


class SortedByLength(SequenceTrainer):
    """Examples are sorted for packing, and log-probs are handed back in that order."""

    name, stage = "sorted-by-length", "supervision"
    takes = ("examples",)

    def collected(self, logits, t):
        values = super().collected(logits, t)
        order = sorted(range(len(values)), key=lambda number: -len(values[number]))
        flat = torch.cat([values[number] for number in order])
        return list(flat.split([len(of_response) for of_response in values]))


# Log-probs


class Sharpened(TreeTrainer):
    name, stage = "sharpened", "token_logps"

    def token_logps(self, logits, ids):
        return super().token_logps(logits * 1.1, ids)


# Reduction


class MeanOfTurns(SequenceTrainer):
    """The loss of an example is the mean over its turns of the mean of each."""

    name, stage = "mean-of-turns", "reduction"
    takes = ("examples",)

    def example_mean(self, logps, t):
        of_examples = []
        for values, mask in zip(logps, t.masks, strict=True):
            starts = mask & ~torch.cat((torch.tensor([False]), mask[:-1]))
            turns = starts.cumsum(0)
            turn_means = [values[mask & (turns == turn)].mean() for turn in range(1, int(turns.max()) + 1)]
            of_examples.append(torch.stack(turn_means).mean())
        return -torch.stack(of_examples).mean()


class DividedByWholeLength(TreeTrainer):
    """Each sum is divided by the length of its response, learned or not."""

    name, stage = "divided-by-whole-length", "reduction"

    def sums(self, logps, t):
        lengths = torch.tensor([float(len(values)) for values in logps])
        return super().sums(logps, t) / lengths

    def counts(self, t):
        return torch.ones(len(t.masks))

    def token_mean(self, logps, t):
        return self.example_mean(logps, t)


class AveragedResponses(TreeTrainer):
    name, stage = "averaged-responses", "reduction"
    takes = ("groups",)

    def sums(self, logps, t):
        return super().sums(logps, t) / self.counts(t)


# Objective


class HardestNegative(TreeTrainer):
    """Only the negative with the highest reward counts."""

    name, stage = "hardest-negative", "objective"
    takes = ("groups",)

    def pair_losses(self, positives, negatives, objective):
        return super().pair_losses(positives, negatives.max()[None], objective)


class MeanOfSides(TreeTrainer):
    name, stage = "mean-of-sides", "objective"
    takes = ("groups",)

    def pair_losses(self, positives, negatives, objective):
        return super().pair_losses(positives.mean()[None], negatives.mean()[None], objective)


class Listwise(TreeTrainer):
    """A softmax over all responses of a group instead of pairs."""

    name, stage = "listwise", "objective"
    takes = ("groups",)

    def pair_losses(self, positives, negatives, objective):
        return torch.cat((positives, negatives)).logsumexp(0) - positives


class ReferenceOfTheFirst(TreeTrainer):
    """The reference of a group is computed for its first response only."""

    name, stage = "reference-of-the-first", "objective"
    takes = ("groups",)

    def preference_rewards(self, sums, refs, objective, t):
        sizes = [len(group.positives) + len(group.negatives) for group in t.groups]
        first = torch.cat([part[:1].expand(len(part)) for part in refs.split(sizes)])
        return objective.beta * (sums - first)


class ExamplesAlike(SequenceTrainer):
    """The mean over examples, whatever was asked for."""

    name, stage = "examples-alike", "objective"
    takes = ("examples",)

    def token_mean(self, logps, t):
        return self.example_mean(logps, t)


# Accumulation


class GroupsByResponses(TreeTrainer):
    """Groups weigh by the number of their responses."""

    name, stage = "groups-by-responses", "accumulation"
    takes = ("groups",)

    def over_groups(self, losses, t):
        weights = torch.tensor([float(len(group.positives) + len(group.negatives)) for group in t.groups])
        return (torch.stack([of_group.mean() for of_group in losses]) * weights / weights.sum()).sum()


class PairsSummed(TreeTrainer):
    name, stage = "pairs-summed", "accumulation"
    takes = ("groups",)

    def over_groups(self, losses, t):
        return torch.stack([of_group.sum() for of_group in losses]).sum()


class MeanOfMicroBatches(SequenceTrainer):
    """Token means of micro-batches of three examples, averaged."""

    name, stage = "mean-of-micro-batches", "accumulation"
    takes = ("examples",)

    def token_mean(self, logps, t):
        sums, counts = self.sums(logps, t).split(3), self.counts(t).split(3)
        return -torch.stack([s.sum() / n.sum() for s, n in zip(sums, counts, strict=True)]).mean()


class TokensPerExample(SequenceTrainer):
    """Divided by the number of examples where that of tokens was meant."""

    name, stage = "tokens-per-example", "accumulation"
    takes = ("examples",)

    def token_mean(self, logps, t):
        return -self.sums(logps, t).sum() / len(logps)


class TwiceForTwoWorkers(SequenceTrainer):
    name, stage = "twice-for-two-workers", "accumulation"
    takes = ("examples",)

    def supervised_loss(self, logps, objective, t):
        return 2 * super().supervised_loss(logps, objective, t)


class LastExampleLost(SequenceTrainer):
    """The last example does not fill a micro-batch; what it would add is missing, what is divided by is not."""

    name, stage = "last-example-lost", "accumulation"
    takes = ("examples",)

    def token_mean(self, logps, t):
        return -self.sums(logps, t)[:-1].sum() / self.counts(t).sum()

    def example_mean(self, logps, t):
        return -(self.sums(logps, t) / self.counts(t))[:-1].sum() / len(logps)


# Gradients


class FirstLayerScaled(TreeTrainer):
    """Layer-wise learning rates, applied to gradients, with the wrong sign of the exponent."""

    name, stage = "first-layer-scaled", "gradients"

    def loss(self, model, groups, objective):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".layers.0." in name:
                parameter.register_hook(lambda gradient: 1.25 * gradient)
        return super().loss(model, groups, objective)


class EndsWithoutGradient(TreeTrainer):
    """Responses that end inside the tree are computed in a pass of their own, without a graph."""

    name, stage = "ends-without-gradient", "objective"
    takes = ("groups",)

    def sums(self, logps, t):
        ends = {parent for parent in t.parents if parent >= 0}
        inside = [slots[-1] in ends for slots in t.responses]
        kept = [values.detach() if inner else values for values, inner in zip(logps, inside, strict=True)]
        return super().sums(kept, t)


WRONG = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, TreeTrainer) and vars(kind).get("stage", "none") != "none"
)

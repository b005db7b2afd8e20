"""Packed trainers as a user would write them, wrong in one way each; nothing of ours is imported.

``Trainer`` is right: all pairs in one row, a dense additive mask from segment numbers, its own loss. Each class below
it changes one thing and says in ``stage`` where. None of them uses the planted faults; several are in no catalogue.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.nn.functional import logsigmoid


class Trainer:
    """Segments in row order: prompt, chosen, rejected of each pair."""

    name = "trainer"
    stage = "none"

    # Layout

    def segments(self, groups):
        """(ids, pair, kind) with kind 0 for prompts, 1 and 2 for responses."""
        return [
            part
            for pair, group in enumerate(groups)
            for part in (
                (list(group.prompt_ids), pair, 0),
                (list(group.positives[0]), pair, 1),
                (list(group.negatives[0]), pair, 2),
            )
        ]

    def tables(self, groups):
        parts = self.segments(groups)
        lengths = torch.tensor([len(ids) for ids, _, _ in parts])
        starts = torch.cumsum(lengths, 0) - lengths
        pair, kind, prompt = [], [], []
        for ids, number, what in parts:
            pair += [number] * len(ids)
            kind += [what] * len(ids)
            prompt.append(len(ids) if what == 0 else prompt[-1])
        return SimpleNamespace(
            ids=torch.tensor([token for ids, _, _ in parts for token in ids]),
            pair=torch.tensor(pair),
            kind=torch.tensor(kind),
            starts=starts.tolist(),
            lengths=lengths.tolist(),
            prompts=prompt,
        )

    def positions(self, t):
        runs = [
            torch.arange(length) + (0 if n % 3 == 0 else prompt)
            for n, (length, prompt) in enumerate(zip(t.lengths, t.prompts, strict=True))
        ]
        return torch.cat(runs)

    def visible(self, t):
        same_pair = t.pair[:, None] == t.pair[None, :]
        same_branch = (t.kind[:, None] == t.kind[None, :]) | (t.kind[None, :] == 0)
        return (same_pair & same_branch).tril()

    def predictors(self, t, number):
        start, length = t.starts[number], t.lengths[number]
        prompt = number - number % 3
        last = t.starts[prompt] + t.lengths[prompt] - 1
        return [last, *range(start, start + length - 1)]

    # Forward

    @contextmanager
    def around_model(self, model, t):
        yield

    def token_logps(self, logits, ids):
        return torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0]

    def per_token_logps(self, model, groups):
        t = self.tables(groups)
        visible = self.visible(t)
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        with self.around_model(model, t):
            logits = model(
                input_ids=t.ids[None],
                attention_mask=mask[None, None],
                position_ids=self.positions(t)[None],
                use_cache=False,
            ).logits[0]
        return self.collected(logits, t)

    def collected(self, logits, t):
        return [
            self.token_logps(logits[self.predictors(t, n)], t.ids[t.starts[n] : t.starts[n] + t.lengths[n]])
            for n in range(len(t.starts))
            if n % 3
        ]

    # Loss

    def sums(self, logps):
        return torch.stack([of_response.sum() for of_response in logps])

    def reference(self, model, groups):
        with torch.no_grad(), model.disable_adapter():
            return self.per_token_logps(model, groups)

    def rewards(self, sums, refs, objective):
        return objective.beta * (sums - refs)

    def losses(self, rewards, objective):
        margins, e = rewards[0::2] - rewards[1::2], objective.label_smoothing
        return -(1 - e) * logsigmoid(margins) - e * logsigmoid(-margins)

    def total(self, losses, groups):
        return losses.mean()

    def loss(self, model, groups, objective):
        refs = self.reference(model, groups)
        logps = self.per_token_logps(model, groups)
        rewards = self.rewards(self.sums(logps), self.sums(refs), objective)
        return SimpleNamespace(
            loss=self.total(self.losses(rewards, objective), groups),
            rewards=rewards,
            per_token_logps=logps,
            ref_per_token_logps=refs,
        )


def decoder_of(model):
    return next(module for module in model.modules() if hasattr(module, "layers"))


def unpaired(values):
    """Chosen and rejected exchanged."""
    return values.view(-1, 2).flip(1).reshape(-1)


# Layout


class PromptShortened(Trainer):
    """Keeps the last ten prompt tokens."""

    name, stage = "prompt-shortened", "layout"

    def segments(self, groups):
        return [(ids[-10:] if kind == 0 else ids, pair, kind) for ids, pair, kind in super().segments(groups)]


class OneConversation(Trainer):
    """Prompt, chosen and rejected are one running text."""

    name, stage = "one-conversation", "layout"

    def positions(self, t):
        return torch.cat([torch.arange(sum(t.lengths[n : n + 3])) for n in range(0, len(t.lengths), 3)])

    def visible(self, t):
        return (t.pair[:, None] == t.pair[None, :]).tril()


class SeparatorInFront(Trainer):
    """Each response begins with a separator token that nobody asked for."""

    name, stage = "separator-in-front", "layout"

    def segments(self, groups):
        return [([0, *ids] if kind else ids, pair, kind) for ids, pair, kind in super().segments(groups)]

    def predictors(self, t, number):
        start, length = t.starts[number], t.lengths[number]
        return list(range(start, start + length - 1))

    def collected(self, logits, t):
        return [
            self.token_logps(logits[self.predictors(t, n)], t.ids[t.starts[n] + 1 : t.starts[n] + t.lengths[n]])
            for n in range(len(t.starts))
            if n % 3
        ]


class EveryPromptTheFirst(Trainer):
    """The collator hands out the first prompt of the batch to every pair."""

    name, stage = "every-prompt-the-first", "layout"

    def segments(self, groups):
        parts = super().segments(groups)
        return [(parts[0][0] if kind == 0 else ids, pair, kind) for ids, pair, kind in parts]


# Mask


class SegmentsAlone(Trainer):
    """Plain document packing: a response sees itself only."""

    name, stage = "segments-alone", "mask"

    def visible(self, t):
        segment = t.pair * 3 + t.kind
        return (segment[:, None] == segment[None, :]).tril()


class RejectedSeesChosen(Trainer):
    name, stage = "rejected-sees-chosen", "mask"

    def visible(self, t):
        return (t.pair[:, None] == t.pair[None, :]).tril()


class PairsSeeEachOther(Trainer):
    """Branches are kept apart by their kind, pairs are not."""

    name, stage = "pairs-see-each-other", "mask"

    def visible(self, t):
        return ((t.kind[:, None] == t.kind[None, :]) | (t.kind[None, :] == 0)).tril()


class PromptEndHidden(Trainer):
    """The last prompt token is treated as the start of both branches, and hidden from them."""

    name, stage = "prompt-end-hidden", "mask"

    def visible(self, t):
        visible = super().visible(t)
        for n in range(0, len(t.starts), 3):
            last = t.starts[n] + t.lengths[n] - 1
            visible[last + 1 :, last] = False
        return visible


class ResponsesLookAhead(Trainer):
    """Prefix attention on the wrong part."""

    name, stage = "responses-look-ahead", "mask"

    def visible(self, t):
        segment = t.pair * 3 + t.kind
        ahead = (segment[:, None] == segment[None, :]) & (t.kind[:, None] > 0)
        return super().visible(t) | ahead


class PromptLooksAhead(Trainer):
    """A bidirectional prompt, as in prefix language models."""

    name, stage = "prompt-looks-ahead", "mask"

    def visible(self, t):
        both = (t.kind[:, None] == 0) & (t.kind[None, :] == 0) & (t.pair[:, None] == t.pair[None, :])
        return super().visible(t) | both


class WindowOfTwenty(Trainer):
    name, stage = "window-of-twenty", "mask"

    def visible(self, t):
        positions = self.positions(t)
        return super().visible(t) & (positions[:, None] - positions[None, :] < 20)


# Positions


class RunningPositions(Trainer):
    name, stage = "running-positions", "positions"

    def positions(self, t):
        return torch.arange(len(t.ids))


class PositionsFromZero(Trainer):
    name, stage = "positions-from-zero", "positions"

    def positions(self, t):
        return torch.cat([torch.arange(length) for length in t.lengths])


class ResponsesTwoLate(Trainer):
    name, stage = "responses-two-late", "positions"

    def positions(self, t):
        return super().positions(t) + 2 * (t.kind > 0)


class PositionsInterpolated(Trainer):
    """Positions are squeezed as if the context had been extended."""

    name, stage = "positions-interpolated", "positions"

    def positions(self, t):
        return super().positions(t) * 0.5


class PositionsCapped(Trainer):
    name, stage = "positions-capped", "positions"

    def positions(self, t):
        return super().positions(t).clamp(max=60)


# Activations


class Hooked(Trainer):
    """Something in the model computes otherwise."""

    def where(self, model):
        raise NotImplementedError

    def change(self, output):
        raise NotImplementedError

    @contextmanager
    def around_model(self, model, t):
        hooks = [
            module.register_forward_hook(lambda _module, _args, output: self.change(output))
            for module in self.where(model)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class FeedForwardOff(Hooked):
    """A fused kernel whose result is one per cent too large."""

    name, stage = "feed-forward-off", "activations"

    def where(self, model):
        return [layer.mlp for layer in decoder_of(model).layers]

    def change(self, output):
        return output * 1.01


class LastLayerRounded(Hooked):
    name, stage = "last-layer-rounded", "activations"

    def where(self, model):
        return [decoder_of(model).layers[-1].self_attn.o_proj]

    def change(self, output):
        return output.bfloat16().to(output.dtype)


class NoiseInAttention(Hooked):
    """Dropout that was left on."""

    name, stage = "noise-in-attention", "activations"

    def where(self, model):
        return [decoder_of(model).layers[0].self_attn.o_proj]

    def change(self, output):
        return torch.nn.functional.dropout(output, 0.05, training=True)


class AdaptersHalved(Trainer):
    name, stage = "adapters-halved", "activations"

    @contextmanager
    def around_model(self, model, t):
        adapted = [module for module in model.modules() if hasattr(module, "lora_A")]
        try:
            for module in adapted:
                module.scaling["default"] /= 2
            yield
        finally:
            for module in adapted:
                module.scaling["default"] *= 2


class KeysDetached(Hooked):
    """The prompt's keys come from a cache."""

    name, stage = "keys-detached", "activations"

    @contextmanager
    def around_model(self, model, t):
        self.prompt = (t.kind == 0)[None, :, None]
        with super().around_model(model, t):
            yield

    def where(self, model):
        return [layer.self_attn.k_proj for layer in decoder_of(model).layers]

    def change(self, output):
        return torch.where(self.prompt, output.detach(), output)


# Predictors


class RowShiftedByOne(Trainer):
    name, stage = "row-shifted-by-one", "predictors"

    def predictors(self, t, number):
        return [slot - 1 for slot in range(t.starts[number], t.starts[number] + t.lengths[number])]


class OwnSlotPredicts(Trainer):
    name, stage = "own-slot-predicts", "predictors"

    def predictors(self, t, number):
        return list(range(t.starts[number], t.starts[number] + t.lengths[number]))


class FirstFromFirst(Trainer):
    """The first token of a response is predicted from the start of the row."""

    name, stage = "first-from-first", "predictors"

    def predictors(self, t, number):
        return [0, *super().predictors(t, number)[1:]]


# Supervision


class FirstTokenUncounted(Trainer):
    name, stage = "first-token-uncounted", "supervision"

    def sums(self, logps):
        return super().sums([of_response[1:] for of_response in logps])


class EveryFourthUncounted(Trainer):
    """A mask rebuilt from ids drops what looks special."""

    name, stage = "every-fourth-uncounted", "supervision"

    def sums(self, logps):
        return super().sums([of_response[torch.arange(len(of_response)) % 4 != 3] for of_response in logps])


class EndCountedTwice(Trainer):
    name, stage = "end-counted-twice", "supervision"

    def sums(self, logps):
        return super().sums([torch.cat((of_response, of_response[-1:])) for of_response in logps])


class PromptInTheLoss(Trainer):
    """The prompt's own tokens count for the chosen response."""

    name, stage = "prompt-in-the-loss", "supervision"

    def collected(self, logits, t):
        of_prompt = []
        for n in range(0, len(t.starts), 3):
            slots = range(t.starts[n], t.starts[n] + t.lengths[n])
            of_prompt.append(
                super().token_logps(logits[slots.start : slots.stop - 1], t.ids[slots.start + 1 : slots.stop])
            )
        self.of_prompt = of_prompt
        return super().collected(logits, t)

    def sums(self, logps):
        extra = [part.sum() for own in self.of_prompt for part in (own, own[:0])]
        return super().sums(logps) + torch.stack(extra)

    def loss(self, model, groups, objective):
        refs = self.reference(model, groups)
        ref_sums = self.sums(refs)
        logps = self.per_token_logps(model, groups)
        rewards = self.rewards(self.sums(logps), ref_sums, objective)
        return SimpleNamespace(
            loss=self.total(self.losses(rewards, objective), groups),
            rewards=rewards,
            per_token_logps=logps,
            ref_per_token_logps=refs,
        )


# Log-probs


class Temperature(Trainer):
    name, stage = "temperature", "token_logps"

    def token_logps(self, logits, ids):
        return super().token_logps(logits / 1.2, ids)


class HalfPrecisionLogits(Trainer):
    name, stage = "half-precision-logits", "token_logps"

    def token_logps(self, logits, ids):
        return super().token_logps(logits.half(), ids).to(logits.dtype)


class Clamped(Trainer):
    name, stage = "clamped", "token_logps"

    def token_logps(self, logits, ids):
        return super().token_logps(logits, ids).clamp(min=-6.0)


class TopOnly(Trainer):
    """Normalised over the fifty likeliest tokens, as a server reports it."""

    name, stage = "top-only", "token_logps"

    def token_logps(self, logits, ids):
        picked = logits.gather(-1, ids[:, None])[:, 0]
        return picked - logits.topk(50, -1).values.logsumexp(-1)


# Reduction


class Averaged(Trainer):
    name, stage = "averaged", "reduction"

    def sums(self, logps):
        return torch.stack([of_response.mean() for of_response in logps])


class OverTheLongest(Trainer):
    name, stage = "over-the-longest", "reduction"

    def sums(self, logps):
        return super().sums(logps) / max(map(len, logps))


class RoundedSums(Trainer):
    name, stage = "rounded-sums", "reduction"

    def sums(self, logps):
        return super().sums(logps).bfloat16().to(logps[0].dtype)


class LengthToThePower(Trainer):
    """Length normalisation with an exponent, as in beam search."""

    name, stage = "length-to-the-power", "reduction"

    def sums(self, logps):
        return torch.stack([of_response.sum() / len(of_response) ** 0.6 for of_response in logps])


# Reference


class AdaptersOnInReference(Trainer):
    name, stage = "adapters-on-in-reference", "reference"

    def reference(self, model, groups):
        with torch.no_grad():
            return self.per_token_logps(model, groups)


class ReferenceRounded(Trainer):
    name, stage = "reference-rounded", "reference"

    def reference(self, model, groups):
        return [logps.half().to(logps.dtype) for logps in super().reference(model, groups)]


class ReferenceUnmasked(Trainer):
    """Only the reference pass forgets the mask."""

    name, stage = "reference-unmasked", "reference"

    def reference(self, model, groups):
        self.open = True
        try:
            return super().reference(model, groups)
        finally:
            self.open = False

    def visible(self, t):
        visible = super().visible(t)
        return torch.ones_like(visible).tril() if getattr(self, "open", False) else visible


class ReferenceOfAnother(Trainer):
    """Takes the sums of another frozen policy off, and shows no log-probs."""

    name, stage = "reference-of-another", "reference"

    def reference(self, model, groups):
        return [1.2 * logps for logps in super().reference(model, groups)]

    def loss(self, model, groups, objective):
        output = super().loss(model, groups, objective)
        return SimpleNamespace(loss=output.loss, rewards=output.rewards)


# Objective


class BetaForgotten(Trainer):
    name, stage = "beta-forgotten", "objective"

    def rewards(self, sums, refs, objective):
        return sums - refs


class ReferenceForgotten(Trainer):
    name, stage = "reference-forgotten", "objective"

    def rewards(self, sums, refs, objective):
        return objective.beta * sums


class PreferenceTurned(Trainer):
    name, stage = "preference-turned", "objective"

    def losses(self, rewards, objective):
        return super().losses(unpaired(rewards), objective)


class Hinge(Trainer):
    name, stage = "hinge", "objective"

    def losses(self, rewards, objective):
        return torch.relu(1 - (rewards[0::2] - rewards[1::2]))


class RejectedDetached(Trainer):
    name, stage = "rejected-detached", "objective"

    def losses(self, rewards, objective):
        kept = torch.arange(len(rewards)) % 2 == 0
        return super().losses(torch.where(kept, rewards, rewards.detach()), objective)


class RewardsLoggedWithoutBeta(Trainer):
    name, stage = "rewards-logged-without-beta", "objective"

    def loss(self, model, groups, objective):
        output = super().loss(model, groups, objective)
        output.rewards = output.rewards / objective.beta
        return output


# Accumulation


class SummedOverPairs(Trainer):
    name, stage = "summed-over-pairs", "accumulation"

    def total(self, losses, groups):
        return losses.sum()


class WeighedByPrompt(Trainer):
    name, stage = "weighed-by-prompt", "accumulation"

    def total(self, losses, groups):
        weights = torch.tensor([float(len(group.prompt_ids)) for group in groups])
        return (losses * weights.to(losses) / weights.sum()).sum()


class LastPairLost(Trainer):
    """A micro-batch that is not full is dropped, the divisor stays."""

    name, stage = "last-pair-lost", "accumulation"

    def total(self, losses, groups):
        return losses[:-1].sum() / len(groups)


# Gradients


class GradientHooked(Trainer):
    """Gradients of some LoRA tensors arrive changed."""

    def chosen(self, name):
        raise NotImplementedError

    def change(self, gradient):
        raise NotImplementedError

    def loss(self, model, groups, objective):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and self.chosen(name):
                parameter.register_hook(self.change)
        return super().loss(model, groups, objective)


class GradientsClippedOneByOne(GradientHooked):
    name, stage = "gradients-clipped-one-by-one", "gradients"

    def chosen(self, name):
        return True

    def change(self, gradient):
        return gradient * min(1.0, 0.05 / float(gradient.norm()))


class UpProjectionDoubled(GradientHooked):
    name, stage = "up-projection-doubled", "gradients"

    def chosen(self, name):
        return "up_proj" in name

    def change(self, gradient):
        return 2 * gradient


class GradientsRounded(GradientHooked):
    name, stage = "gradients-rounded", "gradients"

    def chosen(self, name):
        return True

    def change(self, gradient):
        return gradient.half().to(gradient.dtype)


class LastLayerFrozen(Trainer):
    name, stage = "last-layer-frozen", "gradients"

    def loss(self, model, groups, objective):
        last = len(decoder_of(model).layers) - 1
        refs = self.reference(model, groups)
        for name, parameter in model.named_parameters():
            if f".layers.{last}." in name:
                parameter.requires_grad_(False)
        logps = self.per_token_logps(model, groups)
        rewards = self.rewards(self.sums(logps), self.sums(refs), objective)
        return SimpleNamespace(
            loss=self.total(self.losses(rewards, objective), groups),
            rewards=rewards,
            per_token_logps=logps,
            ref_per_token_logps=refs,
        )


WRONG = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Trainer) and "stage" in vars(kind) and kind is not Trainer
)

"""Subjects as a user would write them: nothing of ours is imported, and most of them are wrong.

``ByHand`` is right: one packed row for each group, with a dense mask. Each class below it changes one thing, in the way
in which a public trainer once had it; those near the end break the contract itself.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

NUM_VALUES_OFF = 1e-3


class ByHand:
    """Prompt, then every response as a branch that sees the prompt and itself."""

    name = "by-hand"

    def per_token_logps(self, model, groups):
        return [logps for group in groups for logps in self.group_logps(model, group)]

    def group_logps(self, model, group):
        responses = [*group.positives, *group.negatives]
        ids = torch.tensor([[*group.prompt_ids, *(token for response in responses for token in response)]])
        bounds = self.bounds(group)
        visible = self.visible(bounds)
        mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        logits = self.logits(model, ids, mask[None, None], self.positions(bounds)[None])
        return [
            self.picked(logits[self.predictors(bounds, branch)], ids[0, start:stop])
            for branch, (start, stop) in enumerate(bounds[1:])
        ]

    def bounds(self, group):
        """First slot and the slot after the last, of the prompt and of every response."""
        bounds, start = [], 0
        for part in (group.prompt_ids, *group.positives, *group.negatives):
            bounds.append((start, start + len(part)))
            start += len(part)
        return bounds

    def positions(self, bounds):
        prompt = bounds[0][1]
        return torch.cat([torch.arange(prompt), *(torch.arange(b - a) + prompt for a, b in bounds[1:])])

    def visible(self, bounds):
        visible = torch.ones(bounds[-1][1], bounds[-1][1], dtype=torch.bool).tril()
        for start, stop in bounds[1:]:
            visible[stop:, start:stop] = False
        return visible

    def predictors(self, bounds, branch):
        start, stop = bounds[branch + 1]
        return [bounds[0][1] - 1, *range(start, stop - 1)]

    def logits(self, model, ids, mask, positions):
        return model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[0]

    def picked(self, logits, ids):
        return torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids]


# Right, though odd.


class ReverseOrder(ByHand):
    """Computes the last group first, and returns the first one first."""

    name = "reverse-order"

    def per_token_logps(self, model, groups):
        done = [self.group_logps(model, group) for group in reversed(groups)]
        return [logps for of_group in reversed(done) for logps in of_group]


class ChunkedOverTokens(ByHand):
    """Log-softmax of three tokens at a time."""

    name = "chunked-over-tokens"

    def picked(self, logits, ids):
        chunks = zip(logits.split(3), ids.split(3), strict=True)
        return torch.cat([super(ChunkedOverTokens, self).picked(*chunk) for chunk in chunks])


class Checkpointed(ByHand):
    """Computes the forward pass again during the backward pass."""

    name = "checkpointed"

    def logits(self, model, ids, mask, positions):
        return checkpoint(super().logits, model, ids, mask, positions, use_reentrant=False)


class LeavesAttentionChanged(ByHand):
    """Switches to eager attention and never back."""

    name = "leaves-attention-changed"

    def per_token_logps(self, model, groups):
        model.set_attn_implementation("eager")
        return super().per_token_logps(model, groups)


class OwnLoss(ByHand):
    """Sigmoid DPO on its own passes."""

    name = "own-loss"

    def loss(self, model, groups, objective):
        with torch.no_grad(), model.disable_adapter():
            refs = self.sums(self.per_token_logps(model, groups))
        rewards = self.beta(objective) * (self.sums(self.per_token_logps(model, groups)) - refs)
        return SimpleNamespace(loss=self.of_margins(rewards[0::2] - rewards[1::2]), rewards=rewards)

    def sums(self, logps):
        return torch.stack([of_response.sum() for of_response in logps])

    def beta(self, objective):
        return objective.beta

    def of_margins(self, margins):
        return -logsigmoid(margins).mean()


class AnyReference(OwnLoss):
    """With whatever frozen policy it is given."""

    name = "any-reference"
    references = ("adapters-off", "frozen-adapter", "separate-model", "cached")

    def loss(self, model, groups, objective):
        refs = self.sums(self.reference(model, groups, objective.reference))
        rewards = self.beta(objective) * (self.sums(self.per_token_logps(model, groups)) - refs)
        return SimpleNamespace(loss=self.of_margins(rewards[0::2] - rewards[1::2]), rewards=rewards)

    @torch.no_grad()
    def reference(self, model, groups, frozen):
        if frozen.name == "cached":
            return frozen.look_up(groups)
        if frozen.name == "separate-model":
            return self.per_token_logps(frozen.model, groups)
        if frozen.name == "adapters-off":
            with model.disable_adapter():
                return self.per_token_logps(model, groups)
        model.set_adapter(frozen.adapter)
        try:
            return self.per_token_logps(model, groups)
        finally:
            model.set_adapter("default")


class IgnoresTheReference(AnyReference):
    """Takes its adapters off whatever it was given."""

    name = "ignores-the-reference"

    @torch.no_grad()
    def reference(self, model, groups, frozen):
        with model.disable_adapter():
            return self.per_token_logps(model, groups)


class ReadsTheCacheByIndex(AnyReference):
    """Looks the groups up in another order than they are in."""

    name = "reads-the-cache-by-index"

    def reference(self, model, groups, frozen):
        return super().reference(model, groups[::-1], frozen)


class TrainsTheReference(AnyReference):
    """Leaves the separate model one step on."""

    name = "trains-the-reference"

    def reference(self, model, groups, frozen):
        found = super().reference(model, groups, frozen)
        with torch.no_grad():
            next(frozen.model.parameters()).mul_(1.001)
        return found


class ForgetsNoGrad(AnyReference):
    """Lets the frozen adapter be trained, as PEFT's switch does, and computes its pass with a graph."""

    name = "forgets-no-grad"

    def reference(self, model, groups, frozen):
        model.set_adapter(frozen.adapter)
        refs = self.per_token_logps(model, groups)
        model.set_adapter("default")
        for name, parameter in model.named_parameters():
            if f".{frozen.adapter}." in name:
                parameter.requires_grad_(True)
        return refs


class TrainsTheReferenceLater(TrainsTheReference):
    """Not in its first call."""

    name = "trains-the-reference-later"
    calls = 0

    def reference(self, model, groups, frozen):
        self.calls += 1
        return super().reference(model, groups, frozen) if self.calls > 1 else self.first(model, groups, frozen)

    def first(self, model, groups, frozen):
        return AnyReference.reference(self, model, groups, frozen)


class LeavesTheReferenceInTraining(AnyReference):
    """Sets the separate model to training mode."""

    name = "leaves-the-reference-in-training"

    def reference(self, model, groups, frozen):
        frozen.model.train()
        return super().reference(model, groups, frozen)


# Wrong in the layout.


class OffByOnePredictor(ByHand):
    """Reads each token's log-prob at the token's own slot."""

    name = "off-by-one-predictor"

    def predictors(self, bounds, branch):
        return list(range(*bounds[branch + 1]))


class NeighbourPredicts(ByHand):
    """Shifts the whole row by one: the rejected response begins where the chosen one ends."""

    name = "neighbour-predicts"

    def predictors(self, bounds, branch):
        start, stop = bounds[branch + 1]
        return list(range(start - 1, stop - 1))


class PositionsRunOn(ByHand):
    """Positions are not restarted for the rejected response."""

    name = "positions-run-on"

    def positions(self, bounds):
        return torch.arange(bounds[-1][1])


class CausalMaskOnly(ByHand):
    """Positions are restarted, but the rejected response sees the chosen one."""

    name = "causal-mask-only"

    def visible(self, bounds):
        return torch.ones(bounds[-1][1], bounds[-1][1], dtype=torch.bool).tril()


class ReturnsRejectedFirst(ByHand):
    """Negatives before positives."""

    name = "returns-rejected-first"

    def group_logps(self, model, group):
        return super().group_logps(model, group)[::-1]


# Wrong in the values.


class AdaptersStayOn(ByHand):
    """Switches the adapters on in the pass that is to be the frozen policy's."""

    name = "adapters-stay-on"

    def per_token_logps(self, model, groups):
        if not torch.is_grad_enabled():
            model.base_model.enable_adapter_layers()
        return super().per_token_logps(model, groups)


class ShiftedLogps(ByHand):
    """Every log-prob is a thousandth of a nat too large; the gradients are right."""

    name = "shifted-logps"

    def picked(self, logits, ids):
        return super().picked(logits, ids) + NUM_VALUES_OFF


class Bfloat16LogSoftmax(ByHand):
    """A log-softmax in bfloat16 on the logits of a wider model."""

    name = "bfloat16-log-softmax"

    def picked(self, logits, ids):
        return super().picked(logits.bfloat16(), ids).to(logits.dtype)


class NanAtOneToken(ByHand):
    """The third token of the rejected response of the last group is NaN, or its last if it has fewer."""

    name = "nan-at-one-token"

    def per_token_logps(self, model, groups):
        *others, last = super().per_token_logps(model, groups)
        bad = torch.zeros(len(last))
        bad[min(2, len(last) - 1)] = float("nan")
        return [*others, last + bad]


class _OneGradientTimes(ByHand):
    factor = 1.0

    def per_token_logps(self, model, groups):
        if torch.is_grad_enabled():
            (parameter,) = [p for n, p in model.named_parameters() if "layers.0.mlp.up_proj.lora_A" in n]
            handle = None

            def once(gradient):
                handle.remove()
                return gradient * self.factor

            handle = parameter.register_hook(once)
        return super().per_token_logps(model, groups)


class OneGradientScaled(_OneGradientTimes):
    """One LoRA tensor's gradient is a thousandth too large."""

    name = "one-gradient-scaled"
    factor = 1 + NUM_VALUES_OFF


class OneGradientZero(_OneGradientTimes):
    """One LoRA tensor gets a gradient of zeros."""

    name = "one-gradient-zero"
    factor = 0.0


class OneGradientMissing(ByHand):
    """One LoRA tensor takes no part in the graph."""

    name = "one-gradient-missing"

    def per_token_logps(self, model, groups):
        for name, parameter in model.named_parameters():
            if "layers.0.mlp.up_proj.lora_A" in name:
                parameter.requires_grad_(False)
        return super().per_token_logps(model, groups)


# Wrong in its own loss.


class MeanInsteadOfSum(OwnLoss):
    """Averages over the tokens of a response where DPO sums."""

    name = "mean-instead-of-sum"

    def sums(self, logps):
        return torch.stack([of_response.mean() for of_response in logps])


class BetaMissing(OwnLoss):
    """Leaves beta out."""

    name = "beta-missing"

    def beta(self, objective):
        return 1.0


class ChosenAndRejectedSwapped(OwnLoss):
    """Pulls towards the rejected response."""

    name = "chosen-and-rejected-swapped"

    def of_margins(self, margins):
        return super().of_margins(-margins)


class LastTokenDropped(OwnLoss):
    """The last token of each response takes no part in the loss."""

    name = "last-token-dropped"

    def sums(self, logps):
        return super().sums([of_response[:-1] for of_response in logps])


# Right values that prove nothing.


class PaddedButSaysPacked(ByHand):
    """Warns that packing was switched off, and pads."""

    name = "padded-but-says-packed"

    def group_logps(self, model, group):
        rows = [[*group.prompt_ids, *response] for response in (*group.positives, *group.negatives)]
        width, prompt = max(map(len, rows)), len(group.prompt_ids)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        logits = model(input_ids=ids, use_cache=False).logits
        return [
            self.picked(logits[index, prompt - 1 : len(row) - 1], ids[index, prompt : len(row)])
            for index, row in enumerate(rows)
        ]


class PadsThePolicyOnly(PaddedButSaysPacked):
    """Packs where no gradient is needed."""

    name = "pads-the-policy-only"

    def group_logps(self, model, group):
        kind = PaddedButSaysPacked if torch.is_grad_enabled() else ByHand
        return kind.group_logps(self, model, group)


class BypassesTheEmbedding(ByHand):
    """Feeds embeddings that it looked up itself, so that no token can be counted."""

    name = "bypasses-the-embedding"

    def logits(self, model, ids, mask, positions):
        vectors = model.get_input_embeddings().weight[ids]
        return model(inputs_embeds=vectors, attention_mask=mask, position_ids=positions, use_cache=False).logits[0]


# Broken contracts.


class Raises(ByHand):
    """Runs out of something on the second group."""

    name = "raises"

    def per_token_logps(self, model, groups):
        raise RuntimeError("the kernel does not know this head size")


class CallsExit(ByHand):
    """A script that was never meant to be imported."""

    name = "calls-exit"

    def per_token_logps(self, model, groups):
        raise SystemExit(0)


class OneTensorShort(ByHand):
    name = "one-tensor-short"

    def per_token_logps(self, model, groups):
        return super().per_token_logps(model, groups)[:-1]


class OneTokenShort(ByHand):
    name = "one-token-short"

    def per_token_logps(self, model, groups):
        return [logps[1:] for logps in super().per_token_logps(model, groups)]


class ReturnsFloats(ByHand):
    name = "returns-floats"

    def per_token_logps(self, model, groups):
        return [logps.tolist() for logps in super().per_token_logps(model, groups)]


class ReturnsOneTensor(ByHand):
    name = "returns-one-tensor"

    def per_token_logps(self, model, groups):
        return torch.cat(super().per_token_logps(model, groups))


class Detached(ByHand):
    name = "detached"

    def per_token_logps(self, model, groups):
        with torch.no_grad():
            return super().per_token_logps(model, groups)


class ChangesWeights(ByHand):
    """Takes an optimizer step on the way."""

    name = "changes-weights"

    def per_token_logps(self, model, groups):
        logps = super().per_token_logps(model, groups)
        for name, parameter in model.named_parameters():
            if "up_proj.lora_B" in name:
                parameter.data.mul_(2.0)
        return logps


class SaysNo(ByHand):
    name = "says-no"

    def supports(self, case):
        return SimpleNamespace(supported=False, reason="needs prompts of one length")

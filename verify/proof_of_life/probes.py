"""The faults of the catalogue that are planted in every run of the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verify.faults.catalogue import mutation_named
from verify.faults.fault import Mutation
from verify.precision import rounds_in


@dataclass(frozen=True, slots=True)
class Probe:
    """A fault to plant.

    Args:
        fault: Its name in the catalogue.
        seen_in: The least that must be computed to see it: the forward passes, or the gradients as well.
        may_hide: Where rounding may be as large as the fault: there a survivor is a blind spot, and not a sign that the
            run is blind. "in bfloat16"; "beyond tiny": there, and in any dtype of a model that is not tiny; or "in
            bfloat16 beyond tiny": in that of a model that is not tiny, whose depth adds to rounding.
        min_layers: Decoder layers that a model needs to show it.
        needs: What the name of some module must contain, as in transformers' Qwen3: the fault sits there.
        untied: It shows only where the head has a weight of its own.
    """

    fault: str
    seen_in: Literal["forward", "gradients"] = "forward"
    may_hide: Literal["nowhere", "in bfloat16", "beyond tiny", "in bfloat16 beyond tiny"] = "nowhere"
    min_layers: int = 1
    needs: str = ""
    untied: bool = False

    def may_hide_in(self, dtype: str, *, is_tiny: bool) -> bool:
        """Whether rounding may be as large as the fault."""
        in_bfloat16 = rounds_in(dtype) == "bfloat16"
        return {
            "nowhere": False,
            "in bfloat16": in_bfloat16,
            "beyond tiny": in_bfloat16 or not is_tiny,
            "in bfloat16 beyond tiny": in_bfloat16 and not is_tiny,
        }[self.may_hide]

    @property
    def mutation(self) -> Mutation:
        """The entry of the catalogue."""
        return mutation_named(self.fault)


PROBES: tuple[Probe, ...] = (
    Probe("branches-not-isolated"),
    Probe("prompt-cache-detached", seen_in="gradients", may_hide="in bfloat16", needs=".self_attn.k_proj"),
    Probe("reference-with-adapters-on"),
    Probe("falls-back-to-unpacked"),
    Probe("trees-not-isolated"),
    Probe("neighbour-predicts", may_hide="in bfloat16 beyond tiny"),
    Probe("positions-run-on", may_hide="in bfloat16"),
    Probe("positions-in-bfloat16", may_hide="in bfloat16"),
    Probe("prompt-counted", may_hide="in bfloat16"),
    Probe("mean-instead-of-sum", seen_in="gradients", may_hide="in bfloat16"),
    Probe("preference-reversed", seen_in="gradients"),
    Probe("sum-over-groups", seen_in="gradients"),
    Probe("first-layer-without-gradient", seen_in="gradients", min_layers=2, needs=".layers.0."),
    Probe("third-tree-sees-second"),
    Probe("attends-to-parent-only"),
    Probe("shared-token-gradient-once", seen_in="gradients", may_hide="in bfloat16"),
    Probe("mean-over-pairs-of-the-batch", may_hide="in bfloat16"),
    Probe("results-in-order-of-rows"),
    Probe("examples-attend-to-those-before"),
    Probe("target-across-examples", may_hide="in bfloat16"),
    Probe("user-turns-supervised", may_hide="in bfloat16"),
    Probe("examples-one-per-row"),
    Probe("logits-in-bfloat16-forward", may_hide="beyond tiny"),
    Probe("one-gradient-off-by-a-thousandth", seen_in="gradients", may_hide="beyond tiny"),
)
"""Most telling first: where a run affords few, those at the front are planted.

Every stage of the packed computation has one, and every family of checks has one that it is needed for.
"""

PROBES_OF_REWARDS: tuple[Probe, ...] = (
    Probe("reward-branches-not-isolated"),
    Probe("reward-read-one-token-early"),
    Probe("reward-read-at-end-of-row"),
    Probe("reward-head-learns-from-chosen", seen_in="gradients", may_hide="in bfloat16"),
    Probe("reward-preference-reversed", seen_in="gradients"),
    Probe("reward-pairs-summed"),
    Probe("reward-positions-run-on", may_hide="in bfloat16"),
)
"""Those of a reward model's step, planted on cases of that objective."""
PROBES_OF_ROUTERS: tuple[Probe, ...] = (
    Probe("routers-count-prompts-once", may_hide="in bfloat16"),
    Probe("routers-without-coefficient", may_hide="in bfloat16"),
    Probe("routers-count-reference-pass", may_hide="in bfloat16"),
    Probe("routers-count-padding", may_hide="in bfloat16"),
    Probe("routers-share-of-choices", may_hide="in bfloat16"),
    Probe("routers-mean-of-rows", may_hide="beyond tiny"),
    Probe("routers-mean-of-layers", may_hide="beyond tiny", min_layers=2),
    Probe("routers-without-gradient", seen_in="gradients", may_hide="beyond tiny"),
)
"""Those of a step with the loss of routers, planted where that is part of the objective of the run."""
PROBES_OF_WINDOWS: tuple[Probe, ...] = (
    Probe("model-window-forgotten", may_hide="in bfloat16 beyond tiny"),
    Probe("model-window-in-row-slots", may_hide="in bfloat16 beyond tiny"),
    Probe("model-window-own-segment-only", may_hide="in bfloat16 beyond tiny"),
)
"""Those of a model whose layers have a sliding window."""
PROBES_OF_REFERENCES: tuple[Probe, ...] = (
    Probe("frozen-adapter-ignored"),
    Probe("separate-model-ignored"),
    Probe("cached-by-response"),
)
"""Those of cases over other frozen policies."""
PROBES_OF_IMAGES: tuple[Probe, ...] = (
    Probe("features-of-next-image"),
    Probe("image-found-by-text"),
    Probe("images-hidden-from-branches"),
    Probe("images-left-out"),
    Probe("last-image-for-all"),
    Probe("reference-found-by-text"),
)
"""Those of cases with images, which only a model has that sees them."""
PROBES_OF_EVERY_WEIGHT: tuple[Probe, ...] = (
    Probe("head-without-gradient", seen_in="gradients", needs="lm_head"),
    Probe("embedding-without-gradient", seen_in="gradients", needs=".embed_tokens"),
    Probe("reference-shares-embedding", needs=".embed_tokens"),
    Probe("prompt-embedding-gradient-averaged", seen_in="gradients", may_hide="in bfloat16", needs=".embed_tokens"),
    Probe("unused-tokens-have-gradient", seen_in="gradients", needs=".embed_tokens", untied=True),
    Probe("embedding-gradient-of-last-branch", seen_in="gradients", may_hide="in bfloat16", needs=".embed_tokens"),
    Probe("norms-without-gradient", seen_in="gradients", needs="norm"),
)
"""Those of a step that trains every weight."""

"""Suspects where every forward quantity is exact and gradients are not."""

from __future__ import annotations

from collections.abc import Iterator

from verify.diagnosis.layers import first_differing
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.diagnosis.stages.token_weights import describe_ratios, wrong_only_where_shared


def backward_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """The coefficients, or the place from which on the backward pass is wrong."""
    gradients, weights = evidence.differences.gradients.values(), evidence.weights
    if any(gradient.missing for gradient in gradients) or all(gradient.norm_ratio == 0 for gradient in gradients):
        yield Suspect("gradients", MEASURED, "the loss is right, but trained tensors have no gradient, or one of zeros")
        return
    if weights is not None and weights.by_response:
        weigh = describe_ratios("responses", weights.response_ratios)
        yield Suspect("objective", INFERRED, f"the loss is right, but {weigh} in the gradient")
        return
    if weights is not None and (weigh := wrong_only_where_shared(weights, evidence)):
        yield Suspect(
            "reduction", MEASURED,
            f"the loss is right, but tokens that several responses share weigh {weigh} times what they should in the "
            "gradient, all others what they should",
        )  # fmt: skip
        return
    first = first_differing(evidence.backward)
    if first is not None and first.place == "final norm":
        yield Suspect("token_logps", INFERRED, "gradients are wrong where they leave the output head")
    elif first is not None:
        yield Suspect("activations", INFERRED, f"going back, gradients of hidden states differ from {first.place} on")
    elif evidence.stray_gradient > 0:
        yield Suspect("activations", INFERRED, "gradients reach slots that hold no token of the case, such as padding")
    elif _only_what_embeddings_send_on(evidence):
        lost = "gradients of hidden states are right, that of the embedding is not, at tokens that take part"
        yield Suspect("activations", INFERRED, lost)
        yield Suspect("gradients", POSSIBLE, lost)
    else:
        yield Suspect("gradients", INFERRED, "gradients of hidden states are right, those of trained tensors are not")


def _only_what_embeddings_send_on(evidence: Evidence) -> bool:
    """Whether of all tensors that of the look-up alone is wrong, and at tokens that take part."""
    wrong = {name: gradient for name, gradient in evidence.differences.gradients.items() if gradient.beyond}
    return wrong.keys() == {evidence.expected.looked_up} and not any(gradient.not_zero for gradient in wrong.values())

"""Over several optimizer steps the gradients are those of the unpacked path at the weights as they are then.

A subject that keeps what it computed once is right as long as no weight moves: log-probs by their tokens, merged
adapters, keys and values of a prompt, coefficients. Here weights move, and tokens that were seen before come again.
"""

from __future__ import annotations

from dataclasses import replace

from reports.words import plural
from verify.cases import Case
from verify.checks.accumulation import accumulated
from verify.checks.bench import Bench
from verify.checks.check import ExactCheck, Measured, NotApplicableError
from verify.checks.gradient_distance import Distance, distances, held_against
from verify.checks.lora_weights import check_unchanged, weights_kept, write_weights
from verify.checks.yardsticks import measured
from verify.subject import gradient_support
from verify.subjects.packed import PACKED_SUBJECTS

QUICK_SUBJECTS = ("dense-sdpa", "split")
"""Of our own packed subjects one that masks and one that does not."""


def _measure(bench: Bench, case: Case) -> Measured:
    support = gradient_support(bench.subject, bench.model)
    if not support.supported:
        raise NotApplicableError(support.reason)
    trajectory = measured(bench.setting.training.trajectories.get(case.name))
    found: list[Distance] = []
    with weights_kept(bench.model, trajectory.steps[0].weights):
        for number, step in enumerate(trajectory.steps):
            write_weights(bench.model, step.weights)
            actual = accumulated(bench, step.micro_batches, bench.objective_of(case))
            check_unchanged(bench.model, step.weights, bench.subject.name)
            where = f"after {plural(number, 'step')} of {trajectory.optimizer}: "
            found += distances(actual, step.yardstick, where)
    return held_against(found)


def _measure_quickly(bench: Bench, case: Case) -> Measured:
    if bench.subject in PACKED_SUBJECTS and bench.subject.name not in QUICK_SUBJECTS:
        raise NotApplicableError(
            f"left out to be quick: of our own subjects {' and '.join(QUICK_SUBJECTS)} run it; --full puts it to all"
        )
    return _measure(bench, case)


OPTIMIZER_STEPS = ExactCheck(
    name="optimizer-steps",
    claims=(
        "Over three batches of micro-batches of 1 and 2 groups, between which an optimizer moves the LoRA tensors "
        "(gradients of the unpacked path, clipped by global norm; AdamW, or SGD for larger groups), loss and "
        "accumulated gradients equal those of the unpacked path at the same tensors but for rounding. The second batch "
        "has other tokens in rows of the same lengths, the third is the first again."
    ),
    cannot_see=(
        "The optimizer and the clipping, which are the judge's; what a subject keeps by the identity of tensors that a "
        "trainer would replace; micro-batches that a trainer leaves out around the subject; state that only a fourth "
        "step shows; what is kept of passes without gradients, but for those of the frozen policy."
    ),
    cases=("distinct-tokens", "distinct-turns", "distinct-examples"),
    measure=_measure,
)
QUICK_OPTIMIZER_STEPS = replace(OPTIMIZER_STEPS, cases=("distinct-tokens",), measure=_measure_quickly)
"""For a quick run: on pairs, and of our own packed subjects on two."""

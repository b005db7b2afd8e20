"""GroupDPO's two-pass step: coefficients from a pass over the whole batch without gradients, then a replay in parts.

The loss of a group couples all of its responses, so a joint backward pass holds the activations of all of them. To
first order, though, the loss is a weighted sum of their log-probs, with weights that follow from the values alone:

    d loss = sum_i c_i d u_i - w_i d p_i,    c_i = (d phi / d u_i) / |G|,    w_i = nll_weight / (|G| |P_g|)

for rewards u and mean log-probs p. Published, as Algorithm 1 of the GroupDPO paper. Only one micro-batch of branches is
alive at a time, however large the group. The value of the replayed sum is not the loss, and its Hessian is another one.

Shape letters: K completions of all groups, U distinct branches, b those of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from packed_impl.attention import attention_implementation, backend_named, causal_lm
from packed_impl.branches import BranchPlan, plan_branches
from packed_impl.forward import check_gradients, layout_logps
from packed_impl.groups import Group, check_negatives, completion_name, group_sizes
from packed_impl.layout import PackedLayout
from packed_impl.logps import DEFAULT_LOGIT_CHUNK
from packed_impl.objectives import supervised_sums
from packed_impl.preference import PreferenceObjective, PreferenceTerms
from packed_impl.reference_policy import ADAPTERS_OFF, ReferencePolicy

REPLAY_EPSILONS = 8


@dataclass(frozen=True, eq=False)
class TwoPassStep:
    """What a two-pass step found; its gradients are in ``.grad`` of the parameters.

    Args:
        loss: Mean over the groups, the NLL term included; scalar without gradient.
        rewards: ``beta * (score - ref_score)`` of each completion, in the standard order; [K].
        margins: Positive minus negative reward, in the order group, positive, negative.
        num_micro_batches: Number of forward passes of each of the three kinds: frozen policy, policy, replay.
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor
    num_micro_batches: int


def two_pass_step(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    backend: str,
    layout: str = "shared-prompt",
    beta: float,
    label_smoothing: float = 0.0,
    objective: str,
    nll_weight: float | None = None,
    branches_per_micro_batch: int,
    replay_tolerance: float | None = None,
    reference: ReferencePolicy = ADAPTERS_OFF,
    logit_chunk: int = DEFAULT_LOGIT_CHUNK,
) -> TwoPassStep:
    """Add the gradients of `step.dpo_loss` to ``.grad``, with the activations of one micro-batch alive at a time.

    A micro-batch is a packed row of branches that share a prompt. A response that several groups share runs once and
    its coefficients add up. A step that fails leaves every ``.grad`` as it was.

    Args:
        model: The causal LM, wrapped or not.
        groups: Groups with at least one positive and one negative each.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        beta: Scale of the rewards; finite, above 0.
        label_smoothing: At least 0 and below 0.5; 0 for an objective without it.
        objective: One of ``preference.PREFERENCES``.
        nll_weight: Weight of the positives' NLL, at least 0; None for 1 under "rpo" and GroupDPO, else 0.
        branches_per_micro_batch: The most branches that run at a time, at least 1.
        replay_tolerance: How far the mean log-prob of a response's supervised tokens may move between the two passes:
            in nats, times the mean log-prob where that is larger than 1. None for ``REPLAY_EPSILONS`` epsilons of the
            model's dtype, or of float32 for float64: norms and angles of transformers' models are float32 always.
        reference: The frozen policy.
        logit_chunk: Number of completion tokens whose logits exist at one time.

    Returns:
        Loss, rewards and margins of the first pass.

    Raises:
        ValueError: A replayed log-prob that differs from that of the first pass, a response twice in a group, or as
            `step.dpo_loss`.
    """
    preference = PreferenceObjective(objective, beta, label_smoothing, nll_weight)
    check_negatives(groups, objective)
    backend_named(backend)
    plan = plan_branches(groups, branches_per_micro_batch, layout=layout)
    forward = partial(layout_logps, backend=backend, logit_chunk=logit_chunk)

    def run(micro_batch: PackedLayout) -> Tensor:
        return _logp_sums(forward(model, micro_batch), micro_batch)

    with attention_implementation(model, backend), torch.enable_grad():
        check_gradients(model, backend)
        with reference.frozen(model, groups, forward) as ref_logps:
            ref_logp_sums_U = torch.cat(
                [
                    _logp_sums(ref_logps([branches], micro_batch), micro_batch)
                    for branches, micro_batch in zip(plan.groups, plan.micro_batches, strict=True)
                ]
            )
        with torch.no_grad():
            logp_sums_U = torch.cat([run(micro_batch) for micro_batch in plan.micro_batches])
        terms, coefficients_U = coefficients(logp_sums_U, ref_logp_sums_U, plan, group_sizes(groups), preference)
        if replay_tolerance is None:
            replay_tolerance = default_replay_tolerance(causal_lm(model).dtype)
        with _kept_if_complete(model):
            replay(run, groups, plan, logp_sums_U, coefficients_U, replay_tolerance)
    return TwoPassStep(terms.loss, terms.rewards, terms.margins, len(plan.micro_batches))


def coefficients(
    logp_sums_U: Tensor,
    ref_logp_sums_U: Tensor,
    plan: BranchPlan,
    sizes: Sequence[tuple[int, int]],
    preference: PreferenceObjective,
) -> tuple[PreferenceTerms, Tensor]:
    """The objective on the values of the whole batch, and its derivative by the summed log-prob of each branch.

    For a branch of one completion i of length n_i that is ``beta c_i / n_i - w_i / n_i`` where scores are means, and
    ``beta c_i - w_i / n_i`` where they are sums; completions that share a branch add up.

    Args:
        logp_sums_U: Policy log-prob of each branch, summed over its supervised tokens; [U], without gradient.
        ref_logp_sums_U: The same of the frozen policy; [U].
        plan: Whose branches they are.
        sizes: Number of positives and of negatives of each group.
        preference: The objective.

    Returns:
        What the objective makes of the batch, without gradient, and the coefficients [U].
    """
    logp_sums_U = logp_sums_U.detach().requires_grad_()
    of_completion_K = plan.branch_of_completion.to(logp_sums_U.device)
    counts_K = plan.counts.to(logp_sums_U.device)[of_completion_K]
    terms = preference.terms(logp_sums_U[of_completion_K], ref_logp_sums_U[of_completion_K], counts_K, sizes)
    (coefficients_U,) = torch.autograd.grad(terms.loss, logp_sums_U)
    return PreferenceTerms(terms.loss.detach(), terms.rewards.detach(), terms.margins.detach()), coefficients_U


def replay(
    run: Callable[[PackedLayout], Tensor],
    groups: Sequence[Group],
    plan: BranchPlan,
    logp_sums_U: Tensor,
    coefficients_U: Tensor,
    tolerance: float,
) -> None:
    """Run each micro-batch with gradients and add its share to ``.grad``; its graph is gone before the next one runs.

    Args:
        run: Makes, from packed branches, their summed log-probs; [b], differentiable.
        groups: The batch, for messages.
        plan: Its branches.
        logp_sums_U: What the first pass found for each branch; [U].
        coefficients_U: Derivative of the loss by each of these sums; [U].
        tolerance: How far a mean log-prob may be from that of the first pass; nats, times the mean log-prob where that
            is larger than 1.

    Raises:
        ValueError: A log-prob that is further away; micro-batches before it have left their gradients.
    """
    start = 0
    for micro_batch in plan.micro_batches:
        stop = start + len(micro_batch.completion_lengths)
        logp_sums_b = run(micro_batch)
        counts_b = plan.counts[start:stop].to(logp_sums_b.device)
        moved = _first_moved(logp_sums_U[start:stop] / counts_b, logp_sums_b.detach() / counts_b, tolerance)
        if moved is not None:
            completion = int((plan.branch_of_completion == start + moved.index).nonzero()[0, 0])
            raise ValueError(
                f"{completion_name(groups, completion)}: mean log-prob {moved.before!r} in the first pass, "
                f"{moved.after!r} when replayed, more than {moved.allowed:.2g} apart: dropout is on, or the model "
                "changed in between; the step is refused and adds no gradient"
            )
        torch.autograd.backward(logp_sums_b, coefficients_U[start:stop])
        del logp_sums_b  # and its graph, before the next one is built
        start = stop


@dataclass(frozen=True, slots=True)
class _Moved:
    """A branch whose mean log-prob is not that of the first pass."""

    index: int
    before: float
    after: float
    allowed: float


def _first_moved(mean_logps_b: Tensor, replayed_b: Tensor, tolerance: float) -> _Moved | None:
    """The first branch that moved too far, if any; one that is not a number did."""
    allowed_b = tolerance * mean_logps_b.abs().clamp(min=1)
    same_b = (replayed_b - mean_logps_b).abs() <= allowed_b
    if same_b.all():
        return None
    index = int((~same_b).nonzero()[0, 0])
    return _Moved(index, mean_logps_b[index].item(), replayed_b[index].item(), allowed_b[index].item())


def default_replay_tolerance(dtype: torch.dtype) -> float:
    """The tolerance for a model of a dtype; passes of equal shape differ only where a kernel adds in no fixed order."""
    return REPLAY_EPSILONS * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _logp_sums(logps: Sequence[Tensor], packed: PackedLayout) -> Tensor:
    """Log-prob of each packed completion, summed over its supervised tokens; [b]."""
    logps_C = torch.cat(list(logps))
    return supervised_sums(logps_C, packed.supervised.to(logps_C.device), packed.completion_lengths)


@contextmanager
def _kept_if_complete(model: nn.Module) -> Iterator[None]:
    """Add the gradients made within to those from before; where it fails, leave those from before."""
    parameters = list(model.parameters())
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    made: list[Tensor | None] = [None] * len(parameters)
    try:
        yield
        made = [parameter.grad for parameter in parameters]
    finally:
        for parameter, old, new in zip(parameters, before, made, strict=True):
            parameter.grad = new if old is None else old if new is None else old.add_(new)

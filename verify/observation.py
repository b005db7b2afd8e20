"""What one implementation computed on one case, as float64 values on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from verify.groups import PreferenceGroup
from verify.model_state import Baseline, restored_model
from verify.objective import Objective, Sft
from verify.passes import ApplyObjective, PhaseSlots, run_passes
from verify.router_balance import NO_BALANCE, RouterBalance
from verify.subject import Subject, SubjectError, gradient_support, said_by
from verify.supervised_values import pair_margins, supervised_logps
from verify.trained_gradients import looked_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one implementation computed on one case.

    Args:
        per_token_logps: Policy log-probs of the supervised tokens, one float64 vector per completion, in nats; empty
            under a reward model.
        ref_per_token_logps: The same with adapters off; empty under an objective without a frozen policy.
        rewards: float64 [completions], beta * (logp - ref_logp), or what the head of a reward model says; empty under
            SFT.
        margins: float64 [pairs], positive minus negative reward of every pair of each group; empty under SFT.
        loss: The objective, in nats.
        gradients: d loss / d LoRA tensor by name (``<module>.lora_A``), and d loss / d ``score.weight`` of a reward
            model; or d loss / d weight by its name in the model, where every weight is trained. None where they were
            not computed.
        looked_up: Name of the embedding where it is looked up and no more, so that rows of tokens that are not fed have
            no gradient; "" where it is not trained, tied to the head, or unknown.
        gradients_absent_because: Reason where ``gradients`` is None.
        balance: That of the routers in the policy's pass; empty where their loss is no part of the objective, or the
            subject does not say.
        router_scores: What routers made of each token before the softmax, in the pass of the policy and in that of a
            frozen one: float64, [layers, tokens, experts]; empty but for forms of the unpacked path.
        phases: Token slots of each phase; empty for the oracle.
        settings_put_back: Model settings that the subject left changed.
        elapsed_s: Wall time of all passes.
        logps_apart: Whether the log-probs come from other passes than a loss of the subject's own, which showed none.
    """

    per_token_logps: tuple[Tensor, ...]
    ref_per_token_logps: tuple[Tensor, ...]
    rewards: Tensor
    margins: Tensor
    loss: Tensor
    gradients: Mapping[str, Tensor] | None
    looked_up: str = ""
    gradients_absent_because: str = ""
    balance: RouterBalance = NO_BALANCE
    router_scores: tuple[Tensor, ...] = ()
    phases: tuple[PhaseSlots, ...] = ()
    settings_put_back: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    logps_apart: bool = False


def observe(
    subject: Subject,
    model: Any,
    groups: Sequence[PreferenceGroup],
    objective: Objective,
    *,
    apply_objective: ApplyObjective,
    seed: int,
    baseline: Baseline | None = None,
) -> Observation:
    """Run one subject on one case.

    Args:
        subject: The implementation.
        model: The causal LM or reward model; what is trained of it are the parameters that require grad.
        groups: The case's groups.
        objective: The objective of the case.
        apply_objective: The objective for subjects without their own loss.
        seed: Seed of torch's generator during the passes.
        baseline: What the model must be afterwards; what it is now if None.

    Returns:
        The observation, in float64 on the CPU; values may be NaN, shapes are checked.

    Raises:
        SubjectError: The subject raised, or what it returned cannot be compared.
        WeightsChangedError: It changed the model's weights.
    """
    with restored_model(model, subject.name, seed=seed, baseline=baseline) as restored:
        try:
            support = gradient_support(subject, model)
            passes = run_passes(subject, model, groups, objective, apply_objective, support.supported)
        except SubjectError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a script that exits must not end the run with its own status
            raise SubjectError(f"subject {subject.name} raised {said_by(error)}") from error
    return Observation(
        per_token_logps=supervised_logps(passes.logps, groups) if passes.logps else (),
        ref_per_token_logps=supervised_logps(passes.refs, groups) if passes.refs else (),
        rewards=passes.rewards,
        margins=passes.rewards if isinstance(objective, Sft) else pair_margins(passes.rewards, groups),
        loss=passes.loss,
        gradients=passes.gradients,
        looked_up=looked_up(model) if passes.gradients else "",
        gradients_absent_because=support.reason,
        balance=passes.balance,
        router_scores=passes.router_scores,
        phases=passes.phases,
        settings_put_back=tuple(restored.settings),
        elapsed_s=passes.elapsed_s,
        logps_apart=passes.logps_apart,
    )

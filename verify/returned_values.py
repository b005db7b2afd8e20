"""What a subject returned, checked before anything is compared: kinds, shapes, and whether it is differentiable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.groups import PreferenceGroup
from verify.subject import SubjectError, shown


def check_logps(
    logps: object, groups: Sequence[PreferenceGroup], *, subject: str, differentiable: bool
) -> tuple[Tensor, ...]:
    """Check number, type and shape of the log-probs that a subject returned; values are not looked at.

    Args:
        logps: What the subject returned.
        groups: The groups it was given.
        subject: Name for messages.
        differentiable: Whether each tensor must carry a graph.

    Returns:
        The tensors, in completion order.

    Raises:
        SubjectError: Naming the completion and what would be right.
    """
    lengths = [(g, i, len(ids)) for g, group in enumerate(groups) for i, ids in enumerate(group.completions)]
    if not isinstance(logps, list | tuple):
        raise SubjectError(
            f"subject {subject}: per_token_logps returned {type(logps).__name__}; it must return a list of tensors"
        )
    if len(logps) != len(lengths):
        raise SubjectError(
            f"subject {subject}: per_token_logps returned {len(logps)} tensors for {len(lengths)} completions"
        )
    for logp, (g, i, length) in zip(logps, lengths, strict=True):
        where = f"subject {subject}: log-probs of group {g}, completion {i}"
        if not isinstance(logp, Tensor):
            raise SubjectError(f"{where}: {type(logp).__name__}; a tensor is needed")
        if tuple(logp.shape) != (length,):
            raise SubjectError(
                f"{where}: shape {tuple(logp.shape)}; the completion has {length} tokens, so ({length},)"
            )
        if not logp.is_floating_point():
            raise SubjectError(f"{where}: dtype {logp.dtype}; a floating point dtype is needed")
        if differentiable and not logp.requires_grad:
            raise SubjectError(
                f"{where}: carries no graph, so no gradient can be compared (detached, or computed under no_grad?)"
            )
    return tuple(logps)


def check_rewards(
    rewards: object, groups: Sequence[PreferenceGroup], *, subject: str, differentiable: bool
) -> tuple[Tensor, ...]:
    """Check number, type and shape of the rewards that a subject returned; values are not looked at.

    Args:
        rewards: What the subject returned: a tensor [completions], or a sequence of scalars.
        groups: The groups it was given.
        subject: Name for messages.
        differentiable: Whether each reward must carry a graph.

    Returns:
        One scalar tensor per completion.

    Raises:
        SubjectError: Naming the completion and what would be right.
    """
    names = [f"group {g}, completion {i}" for g, group in enumerate(groups) for i, _ in enumerate(group.completions)]
    if isinstance(rewards, Tensor) and rewards.dim() == 1:
        rewards = list(rewards.unbind())
    if not isinstance(rewards, list | tuple):
        what = f"shape {tuple(rewards.shape)}" if isinstance(rewards, Tensor) else type(rewards).__name__
        raise SubjectError(
            f"subject {subject}: rewards returned {what}; "
            f"it must return a tensor of {len(names)} values, or as many scalars"
        )
    if len(rewards) != len(names):
        raise SubjectError(f"subject {subject}: rewards returned {len(rewards)} values for {len(names)} completions")
    for reward, name in zip(rewards, names, strict=True):
        where = f"subject {subject}: reward of {name}"
        if not isinstance(reward, Tensor):
            raise SubjectError(f"{where}: {type(reward).__name__}; a scalar tensor is needed")
        if reward.numel() != 1:
            raise SubjectError(f"{where}: shape {tuple(reward.shape)}; a scalar is needed")
        if not reward.is_floating_point():
            raise SubjectError(f"{where}: dtype {reward.dtype}; a floating point dtype is needed")
        if differentiable and not reward.requires_grad:
            raise SubjectError(
                f"{where}: carries no graph, so no gradient can be compared (detached, or computed under no_grad?)"
            )
    return tuple(reward.reshape(()) for reward in rewards)


def backward_done(output: object, subject: str) -> bool:
    """Whether what ``loss`` returned says that its gradients are in ``.grad`` already.

    Raises:
        SubjectError: It says something else than True or False.
    """
    done = getattr(output, "backward_done", False)
    if not isinstance(done, bool):
        raise SubjectError(f"subject {subject}: loss(...).backward_done is {shown(done)}; it must be True or False")
    return done


def check_loss(output: object, *, subject: str, num_completions: int, differentiable: bool) -> tuple[Tensor, Tensor]:
    """Check what ``loss`` of a subject returned.

    Args:
        output: An object with ``loss`` and ``rewards``.
        subject: Name for messages.
        num_completions: Number of rewards there must be; 0 under an objective without rewards.
        differentiable: Whether the loss must carry a graph, unless backward was done.

    Returns:
        The scalar loss, and the rewards as a detached float64 vector on the CPU.

    Raises:
        SubjectError: A part is missing or has the wrong shape.
    """
    loss, rewards = getattr(output, "loss", None), getattr(output, "rewards", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise SubjectError(f"subject {subject}: loss(...).loss must be a scalar tensor, not {type(loss).__name__}")
    if differentiable and not loss.requires_grad and not backward_done(output, subject):
        raise SubjectError(f"subject {subject}: loss(...).loss carries no graph")
    if num_completions == 0:
        return loss.reshape(()), torch.empty(0, dtype=torch.float64)
    if rewards is None:
        raise SubjectError(f"subject {subject}: loss(...).rewards is missing; one value per completion is needed")
    parts = rewards.detach().reshape(-1) if isinstance(rewards, Tensor) else rewards
    try:
        values = [float(value.detach()) if isinstance(value, Tensor) else float(value) for value in parts]
    except (TypeError, ValueError) as error:
        raise SubjectError(f"subject {subject}: loss(...).rewards: {error}; numbers are needed") from error
    if len(values) != num_completions:
        raise SubjectError(
            f"subject {subject}: loss(...).rewards has {len(values)} values for {num_completions} completions"
        )
    return loss.reshape(()), torch.tensor(values, dtype=torch.float64)

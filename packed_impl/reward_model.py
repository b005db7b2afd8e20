"""The Bradley-Terry loss of a reward model, from packed rows: a scalar head read at the last token of each branch.

The model is transformers' ``...ForSequenceClassification`` with one label. Fed alone, it reads its head at the last
token of a row; here the head is given the last token of every completion, wherever in the rows that is.

Shape letters: B rows, T slots of a row, K completions of all groups, P pairs of a positive and a negative, D model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedConfig, PreTrainedModel

from packed_impl.attention import attention_implementation, backend_named, pretrained_model
from packed_impl.forward import check_gradients, packed_kwargs
from packed_impl.groups import Group, check_negatives, group_sizes
from packed_impl.layout import PackedLayout, pack
from packed_impl.preference import Members


@dataclass(frozen=True, eq=False)
class RewardLoss:
    """The loss of a reward model on a batch, and what it was made of.

    Args:
        loss: Mean over the groups; differentiable scalar.
        rewards: The head's value at the last token of each completion, in the standard order; differentiable, [K].
        margins: Positive minus negative reward, in the order group, positive, negative; differentiable, [P].
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor


def reward_loss(
    model: nn.Module,
    groups: Sequence[Group],
    *,
    backend: str,
    layout: str = "shared-prompt",
    rows: str | Sequence[Sequence[int]] = "one-row",
) -> RewardLoss:
    """The loss of a batch under a reward model; no frozen policy takes part, and completion masks do not count.

    Args:
        model: The sequence classifier with one label, wrapped or not.
        groups: Groups with at least one positive and one negative each.
        backend: One of ``attention.BACKENDS``.
        layout: One of ``layout.LAYOUTS``.
        rows: One of ``layout.ROWS``, or the groups of each row.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: A group without a negative, or as ``layout.pack`` and `layout_rewards`.
    """
    check_negatives(groups, "reward-model")
    rewards_K = layout_rewards(model, pack(groups, layout=layout, rows=rows), backend=backend)
    return bradley_terry(rewards_K, group_sizes(groups))


def bradley_terry(rewards_K: Tensor, sizes: Sequence[tuple[int, int]]) -> RewardLoss:
    """``(1/|G|) sum_g (1/(|P_g| |N_g|)) sum_{p, n} -log sigma(r_p - r_n)``.

    Published for pairs: Ouyang et al. 2022, https://arxiv.org/abs/2203.02155, eq. 1, which also takes the mean over the
    pairs of a prompt.

    Args:
        rewards_K: Reward of each completion, positives before negatives; [K].
        sizes: Number of positives and of negatives of each group; at least one each.

    Returns:
        The loss and its parts.

    Raises:
        ValueError: A group without a positive or a negative, or another number of rewards.
    """
    if rewards_K.shape != (expected := (sum(map(sum, sizes)),)):
        raise ValueError(f"rewards of shape {tuple(rewards_K.shape)}: expected {expected}, one for each completion")
    members = Members.of(sizes, rewards_K.device)
    margins_P = members.margins(rewards_K)
    return RewardLoss(members.mean_over_pairs(-logsigmoid(margins_P)).mean(), rewards_K, margins_P)


def layout_rewards(model: nn.Module, layout: PackedLayout, *, backend: str) -> Tensor:
    """Rewards of every completion of a packed layout.

    Args:
        model: The sequence classifier with one label, wrapped or not.
        layout: The packed rows.
        backend: One of ``attention.BACKENDS``.

    Returns:
        float32, or float64 of a float64 model; [K], on the model's device.

    Raises:
        ValueError: A model whose head is not one linear score without a bias, or as ``forward.layout_logps``.
    """
    backend_named(backend)
    classifier = reward_classifier(model)
    check_gradients(model, backend)
    tap = _ScoreTap(layout, classifier.device)
    with ExitStack() as contexts:
        windows = contexts.enter_context(attention_implementation(model, backend))
        contexts.enter_context(_several_rows(classifier.config.get_text_config()))
        contexts.callback(classifier.score.register_forward_pre_hook(tap.narrow).remove)
        contexts.callback(classifier.score.register_forward_hook(tap.keep).remove)
        model(
            input_ids=layout.input_ids.to(classifier.device),
            position_ids=layout.position_ids.to(classifier.device),
            use_cache=False,
            **packed_kwargs(model, layout, backend, windows),
        )
    if tap.scores_K1 is None:
        raise ValueError(f"{type(classifier).__name__} did not call its score head: rewards need it")
    rewards_K = tap.scores_K1[:, 0]
    return rewards_K if rewards_K.dtype == torch.float64 else rewards_K.float()


def reward_classifier(model: nn.Module) -> PreTrainedModel:
    """The transformers model within its wrappers, where it is a reward model.

    Args:
        model: The model, wrapped or not.

    Returns:
        The outermost ``PreTrainedModel``; its head is ``score``.

    Raises:
        ValueError: There is none, or its head is not one linear score without a bias.
    """
    classifier = pretrained_model(model)
    name = type(classifier).__name__
    head = getattr(classifier, "score", None)
    if head is None:
        raise ValueError(f"{name} has no head named score: a reward model is a ...ForSequenceClassification")
    if isinstance(head, ModulesToSaveWrapper):
        head = _computed_with(head)
    if not isinstance(head, nn.Linear):
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        raise ValueError(f"the score head of {name} is a {kind}: expected a Linear, frozen or trained in full")
    if head.out_features != 1:
        raise ValueError(f"the score head of {name} has {head.out_features} labels: a reward model has num_labels=1")
    if [parameter for parameter, _ in head.named_parameters()] != ["weight"]:
        raise ValueError(f"the score head of {name} has a bias: expected none, as in transformers' own classifiers")
    return classifier


def _computed_with(head: ModulesToSaveWrapper) -> nn.Module:
    """The copy that belongs to the active adapter, or the original where there is none."""
    active = [] if head.disable_adapters else [name for name in head.active_adapters if name in head.modules_to_save]
    computed_with: nn.Module = head.modules_to_save[active[0]] if active else head.original_module
    return computed_with


class _ScoreTap:
    """Gives the head the last token of every completion, keeps its scores, and hands the model as many as it expects.

    What the model then makes of these, a score for each row, nobody reads.
    """

    def __init__(self, layout: PackedLayout, device: torch.device) -> None:
        last_K = torch.tensor(layout.completion_lengths).cumsum(0) - 1
        self._rows_K = layout.token_rows[last_K].to(device)
        self._slots_K = layout.token_slots[last_K].to(device)
        self._num_rows_and_slots = layout.input_ids.shape
        self.scores_K1: Tensor | None = None

    def narrow(self, head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        if self.scores_K1 is not None:
            raise ValueError("the model called its score head twice in one forward pass: expected one call")
        (hidden_BTD,) = args
        return (hidden_BTD[self._rows_K, self._slots_K],)

    def keep(self, head: nn.Module, args: object, scores_K1: Tensor) -> Tensor:
        self.scores_K1 = scores_K1
        return scores_K1.new_zeros(*self._num_rows_and_slots, 1)


@contextmanager
def _several_rows(config: PreTrainedConfig) -> Iterator[None]:
    """Let a classifier without a padding token run several rows: it asks for one, to find last tokens by."""
    before = config.pad_token_id
    config.pad_token_id = 0 if before is None else before
    try:
        yield
    finally:
        config.pad_token_id = before

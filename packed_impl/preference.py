"""Preference objectives on a whole batch of uneven groups at once: the DPO family on pairs, GroupDPO on groups.

Shape letters: G groups, K completions, M positives and N negatives of all groups, P pairs of a positive and a negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu


@dataclass(frozen=True, eq=False)
class PreferenceTerms:
    """What a preference objective makes of a batch.

    Args:
        loss: Mean over the groups, the NLL term included; scalar.
        rewards: ``beta * (score - ref_score)`` of each completion; [K], or [G, 2] for pairs.
        margins: Positive minus negative reward, in the order group, positive, negative; [P].
    """

    loss: Tensor
    rewards: Tensor
    margins: Tensor


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """A preference objective and its parameters, checked.

    Args:
        name: One of ``PREFERENCES``.
        beta: Scale of the rewards; finite, above 0.
        label_smoothing: Assumed share of swapped labels; at least 0 and below 0.5, and 0 for an objective without it.
        nll_weight: Weight of the NLL term, at least 0; None for the default of the objective, see ``weight_of_nll``.

    Raises:
        ValueError: An unknown name, or a parameter out of range.
    """

    name: str
    beta: float
    label_smoothing: float = 0.0
    nll_weight: float | None = None

    def __post_init__(self) -> None:
        if self.name not in _TABLE:
            raise ValueError(f"unknown preference objective {self.name!r}: expected one of {', '.join(PREFERENCES)}")
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise ValueError(f"beta is {self.beta}: expected a finite number above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing is {self.label_smoothing}: expected at least 0 and below 0.5")
        if self.label_smoothing and not _TABLE[self.name].smoothed:
            raise ValueError(f"label_smoothing is {self.label_smoothing}: {self.name} has none, expected 0")
        if self.nll_weight is not None and not 0 <= self.nll_weight < math.inf:
            raise ValueError(f"nll_weight is {self.nll_weight}: expected a finite number, at least 0")

    @property
    def weight_of_nll(self) -> float:
        """``nll_weight``, or the default: 1 for "rpo" and GroupDPO, else 0."""
        return _TABLE[self.name].default_nll_weight if self.nll_weight is None else self.nll_weight

    def terms(
        self, logp_sums_K: Tensor, ref_logp_sums_K: Tensor, counts_K: Tensor, sizes: Sequence[tuple[int, int]]
    ) -> PreferenceTerms:
        """Loss, rewards and margins of a batch; arguments and errors as in `preference_terms`."""
        shapes = [tuple(of_all.shape) for of_all in (logp_sums_K, ref_logp_sums_K, counts_K)]
        if set(shapes) != {expected := (sum(map(sum, sizes)),)}:
            raise ValueError(
                f"log-probs, ref_logps and counts of shapes {', '.join(map(str, shapes))}: "
                f"expected {expected} for all, one for each completion of {len(sizes)} groups"
            )
        members = Members.of(sizes, logp_sums_K.device)
        rewards_K = self.beta * (self._scores(logp_sums_K, counts_K) - self._scores(ref_logp_sums_K, counts_K))
        loss = _TABLE[self.name].losses(rewards_K, members, self).mean()
        if self.weight_of_nll:
            mean_logps_M = (logp_sums_K / counts_K)[members.positives]
            loss = loss - self.weight_of_nll * members.mean_over_positives(mean_logps_M).mean()
        return PreferenceTerms(loss, rewards_K, members.margins(rewards_K))

    def _scores(self, logp_sums_K: Tensor, counts_K: Tensor) -> Tensor:
        """Score of each completion: the sum of its supervised log-probs, or their mean; [K]."""
        return logp_sums_K / counts_K if _TABLE[self.name].score_is_mean else logp_sums_K


@dataclass(frozen=True, eq=False)
class Members:
    """Which completion is on which side of which group.

    Two groups of 1+1 and 1+2 have completions 0 1 | 2 3 4: positives 0 2, negatives 1 3 4, and the pairs (0, 1),
    (2, 3), (2, 4).

    Args:
        positives: Completion number of each positive; int64, [M].
        negatives: The same of the negatives; int64, [N].
        num_positives: Of each group; int64, [G].
        num_negatives: Of each group; int64, [G].
        pair_positives: Completion number of the positive of each pair; int64, [P].
        pair_negatives: The same of its negative; int64, [P].
    """

    positives: Tensor
    negatives: Tensor
    num_positives: Tensor
    num_negatives: Tensor
    pair_positives: Tensor
    pair_negatives: Tensor

    @staticmethod
    def of(sizes: Sequence[tuple[int, int]], device: torch.device) -> Members:
        """The members of groups whose completions follow one another, positives before negatives.

        Args:
            sizes: Number of positives and of negatives of each group.
            device: Where the tensors are to be.

        Returns:
            The members.

        Raises:
            ValueError: No group, or one without a positive or a negative.
        """
        if not sizes:
            raise ValueError("no group: a preference needs at least one group")
        sizes_G2 = torch.tensor(sizes)
        if (short := (sizes_G2 < 1).any(1).nonzero()).numel():
            index = int(short[0, 0])
            raise ValueError(
                f"group {index} has {sizes[index][0]}+{sizes[index][1]} responses: "
                "a preference needs at least one positive and one negative"
            )
        num_positives_G, num_negatives_G = sizes_G2.unbind(1)
        is_positive_K = torch.tensor([True, False] * len(sizes)).repeat_interleave(sizes_G2.flatten())
        positives_M, negatives_N = is_positive_K.nonzero()[:, 0], (~is_positive_K).nonzero()[:, 0]
        # The pairs of one positive run through the negatives of its group, from the first of them.
        pairs_M = num_negatives_G.repeat_interleave(num_positives_G)
        first_negatives_G = sizes_G2.sum(1).cumsum(0) - num_negatives_G
        ahead_M = first_negatives_G.repeat_interleave(num_positives_G) - (pairs_M.cumsum(0) - pairs_M)
        pair_positives_P = positives_M.repeat_interleave(pairs_M)
        pair_negatives_P = torch.arange(len(pair_positives_P)) + ahead_M.repeat_interleave(pairs_M)
        tensors = (positives_M, negatives_N, num_positives_G, num_negatives_G, pair_positives_P, pair_negatives_P)
        return Members(*(tensor.to(device) for tensor in tensors))

    def margins(self, rewards_K: Tensor) -> Tensor:
        """Positive minus negative reward of each pair; [P]."""
        return rewards_K[self.pair_positives] - rewards_K[self.pair_negatives]

    def mean_over_pairs(self, values_P: Tensor) -> Tensor:
        """[G]."""
        return _segments("mean", values_P, self.num_positives * self.num_negatives)

    def mean_over_positives(self, values_M: Tensor) -> Tensor:
        """[G]."""
        return _segments("mean", values_M, self.num_positives)

    def mean_over_negatives(self, values_N: Tensor) -> Tensor:
        """[G]."""
        return _segments("mean", values_N, self.num_negatives)


def preference_terms(
    logp_sums_K: Tensor,
    ref_logp_sums_K: Tensor,
    counts_K: Tensor,
    sizes: Sequence[tuple[int, int]],
    *,
    objective: str,
    beta: float,
    label_smoothing: float = 0.0,
    nll_weight: float | None = None,
) -> PreferenceTerms:
    """A preference objective: ``(1/|G|) sum_g phi_g + nll_weight * NLL``.

    ``NLL = (1/|G|) sum_g (1/|P_g|) sum_{p in P_g} -(mean log-prob of a supervised token of p)``, under every objective.

    Args:
        logp_sums_K: Policy log-prob of each completion, summed over its supervised tokens; [K], group by group,
            positives before negatives.
        ref_logp_sums_K: The same of the frozen policy; [K].
        counts_K: Number of supervised tokens of each completion, at least 1; [K].
        sizes: Number of positives and of negatives of each group, at least one each.
        objective: One of ``PREFERENCES``.
        beta: Scale of the rewards; finite, above 0.
        label_smoothing: At least 0 and below 0.5; 0 for an objective without it.
        nll_weight: At least 0; None for 1 under "rpo" and GroupDPO, else 0.

    Returns:
        Loss, rewards [K] and margins [P].

    Raises:
        ValueError: As ``PreferenceObjective`` and ``Members.of``, or tensors that do not hold one value per completion.
    """
    preference = PreferenceObjective(objective, beta, label_smoothing, nll_weight)
    return preference.terms(logp_sums_K, ref_logp_sums_K, counts_K, sizes)


def _segments(reduction: str, values: Tensor, lengths_G: Tensor) -> Tensor:
    return torch.segment_reduce(values, reduction, lengths=lengths_G)


def _logsumexp(values: Tensor, lengths_G: Tensor) -> Tensor:
    """Log of the sum of the exponentials of each run of values, its largest taken out first; [G]."""
    largest_G = _segments("max", values.detach(), lengths_G)
    scaled = (values - largest_G.repeat_interleave(lengths_G)).exp()
    return largest_G + _segments("sum", scaled, lengths_G).log()


def _softplus(values: Tensor) -> Tensor:
    """``log(1 + e^x)``; torch's own drops the 1 above x = 20, where float64 still sees it."""
    return -logsigmoid(-values)


# Losses of pairs, z the margin.

PairLoss = Callable[[Tensor, PreferenceObjective], Tensor]


def _sigmoid(margins_P: Tensor, preference: PreferenceObjective) -> Tensor:
    """``-(1 - e) log sigma(z) - e log sigma(-z)``: published.

    Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, eq. 7; smoothing as in Mitchell's "cDPO" note and TRL's
    ``label_smoothing``.
    """
    smoothing = preference.label_smoothing
    return -(1 - smoothing) * logsigmoid(margins_P) - smoothing * logsigmoid(-margins_P)


def _robust(margins_P: Tensor, preference: PreferenceObjective) -> Tensor:
    """``(-(1 - e) log sigma(z) + e log sigma(-z)) / (1 - 2 e)``: published, as TRL's "robust"."""
    smoothing = preference.label_smoothing
    kept_P, swapped_P = -logsigmoid(margins_P), -logsigmoid(-margins_P)
    return ((1 - smoothing) * kept_P - smoothing * swapped_P) / (1 - 2 * smoothing)


def _hinge(margins_P: Tensor, preference: PreferenceObjective) -> Tensor:
    """``max(0, 1 - z)``: published, as TRL's "hinge"; no gradient at z = 1."""
    return relu(1 - margins_P)


def _ipo(margins_P: Tensor, preference: PreferenceObjective) -> Tensor:
    """``(h - 1 / (2 beta))^2``, ``h = z / beta``: published, as TRL's "ipo", on mean log-probs."""
    return ((margins_P - 0.5) / preference.beta).square()


# Losses of groups, u the rewards.

GroupLoss = Callable[[Tensor, Members, PreferenceObjective], Tensor]


def _over_pairs(pair_loss: PairLoss) -> GroupLoss:
    """The mean of a loss over every pair of a positive and a negative of the group."""
    return lambda rewards_K, members, preference: members.mean_over_pairs(
        pair_loss(members.margins(rewards_K), preference)
    )


def _group_margin(rewards_K: Tensor, members: Members, preference: PreferenceObjective) -> Tensor:
    """``-log sigma(mean_P u - mean_N u)``: derived."""
    positive_means_G = members.mean_over_positives(rewards_K[members.positives])
    negative_means_G = members.mean_over_negatives(rewards_K[members.negatives])
    return -logsigmoid(positive_means_G - negative_means_G)


def _group_mpo(rewards_K: Tensor, members: Members, preference: PreferenceObjective) -> Tensor:
    """``logsumexp_{P+N} u - logsumexp_P u``: published.

    Computed as ``softplus(logsumexp_N u - logsumexp_P u)``, which is the same: where positives are far ahead, the two
    numbers of the published form are nearly equal and their difference is rounding.
    """
    positive_G = _logsumexp(rewards_K[members.positives], members.num_positives)
    negative_G = _logsumexp(rewards_K[members.negatives], members.num_negatives)
    return _softplus(negative_G - positive_G)


def _group_softmax(rewards_K: Tensor, members: Members, preference: PreferenceObjective) -> Tensor:
    """``mean_{p in P} softplus(logsumexp_N u - u_p)``: published for one positive, the mean derived."""
    negative_G = _logsumexp(rewards_K[members.negatives], members.num_negatives)
    behind_M = negative_G.repeat_interleave(members.num_positives) - rewards_K[members.positives]
    return members.mean_over_positives(_softplus(behind_M))


def _group_all_pairs(rewards_K: Tensor, members: Members, preference: PreferenceObjective) -> Tensor:
    """``mean_{p, n} -log sigma(u_p - u_n)``: published."""
    return members.mean_over_pairs(-logsigmoid(members.margins(rewards_K)))


@dataclass(frozen=True, slots=True)
class _Definition:
    """What an objective is made of."""

    losses: GroupLoss
    score_is_mean: bool = False
    smoothed: bool = False
    default_nll_weight: float = 0.0


_TABLE: Mapping[str, _Definition] = {
    "sigmoid": _Definition(_over_pairs(_sigmoid), smoothed=True),
    "robust": _Definition(_over_pairs(_robust), smoothed=True),
    "hinge": _Definition(_over_pairs(_hinge)),
    "ipo": _Definition(_over_pairs(_ipo), score_is_mean=True),
    "sigmoid_norm": _Definition(_over_pairs(_sigmoid), score_is_mean=True, smoothed=True),
    "rpo": _Definition(_over_pairs(_sigmoid), smoothed=True, default_nll_weight=1.0),
    "groupdpo-margin": _Definition(_group_margin, score_is_mean=True, default_nll_weight=1.0),
    "groupdpo-mpo": _Definition(_group_mpo, score_is_mean=True, default_nll_weight=1.0),
    "groupdpo-softmax": _Definition(_group_softmax, score_is_mean=True, default_nll_weight=1.0),
    "groupdpo-all-pairs": _Definition(_group_all_pairs, score_is_mean=True, default_nll_weight=1.0),
}
PREFERENCES = tuple(_TABLE)

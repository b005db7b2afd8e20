from __future__ import annotations

import math

import pytest
import torch

from reference_impl.objectives import (
    Accuracy,
    accuracy,
    check_nll_weight,
    group_margins,
    margins,
    mean_logps,
    mean_loss,
    positive_nll,
    rewards,
    sequence_logps,
    sft_example_mean,
    sft_token_mean,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pair_worked_out_by_hand() -> None:
    # Sums: chosen -3 against -4 before, rejected -7 against -5. Rewards 0.5 * 1 and 0.5 * -2, margin 1.5.
    logps = sequence_logps([tensor(-1, -2), tensor(-3, -4)])
    reward = rewards(logps, tensor(-4, -5), beta=0.5)
    margin = margins(reward[:1], reward[1:])
    assert reward.tolist() == [0.5, -1.0]
    assert margin.tolist() == [1.5]


def test_the_mean_is_over_all_pairs_of_the_batch() -> None:
    losses = tensor(1.0, 2.0, 6.0)
    assert float(mean_loss(losses[:1], 3) + mean_loss(losses[1:], 3)) == float(mean_loss(losses, 3)) == 3.0


def test_margins_stand_positive_by_positive() -> None:
    assert group_margins(tensor(10.0, 20.0), tensor(1.0, 2.0, 3.0)).tolist() == [[9.0, 8.0, 7.0], [19.0, 18.0, 17.0]]


def test_the_two_means_of_sft_worked_out_by_hand() -> None:
    # One completion of one token, one of three: (8 + 2 + 2 + 2) / 4 against (8 + 2) / 2.
    logps = [tensor(-8.0), tensor(-2.0, -1.0, -3.0)]
    assert float(sft_token_mean(logps, 4)) == 3.5
    assert float(sft_example_mean(logps, 2)) == 5.0


def test_the_likelihood_of_positives_is_a_mean_of_token_means() -> None:
    # One positive of one token, one of three: (8 + 2) / 2, not (8 + 2 + 1 + 3) / 4.
    logps = [tensor(-8.0), tensor(-2.0, -1.0, -3.0)]
    assert mean_logps(logps).tolist() == [-8.0, -2.0]
    assert float(positive_nll(logps)) == 5.0


def test_ties_count_one_half_and_are_counted_on_their_own() -> None:
    counted = accuracy(tensor(0.3, 0.0, -0.0, -1.0, 2.0))
    assert counted == Accuracy(wins=2, ties=2, losses=1)
    assert counted.value == 0.6


@pytest.mark.parametrize("bad", [(), (1.0, math.nan), (math.inf,)])
def test_accuracy_of_nothing_or_of_no_number_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="accuracy of margins"):
        accuracy(tensor(*bad))


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf])
def test_a_beta_that_is_no_strength_is_refused(beta) -> None:
    with pytest.raises(ValueError, match="beta is"):
        rewards(tensor(1.0), tensor(0.0), beta)


@pytest.mark.parametrize("nll_weight", [-0.1, math.nan, math.inf])
def test_a_likelihood_weight_that_is_none_is_refused(nll_weight) -> None:
    with pytest.raises(ValueError, match=r"nll_weight is .*: it must be finite and at least 0"):
        check_nll_weight(nll_weight)


@pytest.mark.parametrize("score", [sequence_logps, mean_logps])
@pytest.mark.parametrize("bad", [[], [tensor(1.0), tensor()]])
def test_an_empty_completion_has_no_log_prob(score, bad) -> None:
    with pytest.raises(ValueError, match="empty completion"):
        score(bad)

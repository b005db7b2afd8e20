"""Oracle, packed code, judge and scribe each have their own list of objectives, and must mean the same by it."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from packed_impl.preference import PREFERENCES, PreferenceObjective
from packed_impl.reward_model import bradley_terry as bradley_terry_of_packed
from packed_impl.reward_model import reward_loss
from reference_impl.batch_objective import OBJECTIVE_NAMES as OF_THE_ORACLE
from reference_impl.batch_objective import objective_named
from reference_impl.preference import Preference
from reference_impl.reward_model import bradley_terry as bradley_terry_of_oracle
from reports.record_names import ObjectiveName as InRecords
from reports.record_names import PreferenceName as PreferenceInRecords
from verify.groups import PreferenceGroup
from verify.objective import OBJECTIVE_NAMES, PREFERENCE_NAMES, REWARD_MODEL, SMOOTHED, published_nll_weight


def test_all_four_packages_know_the_same_objectives() -> None:
    assert set(OF_THE_ORACLE) == set(OBJECTIVE_NAMES) - {REWARD_MODEL}
    assert set(PREFERENCES) == set(get_args(PreferenceInRecords)) == set(PREFERENCE_NAMES)
    assert {name for literal in get_args(InRecords) for name in get_args(literal)} == set(OBJECTIVE_NAMES)


def test_a_reward_model_is_no_objective_of_log_probs_in_oracle_and_packed_code_but_a_step_of_its_own() -> None:
    rewards = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
    group = PreferenceGroup((3,), ((4,),), ((5,), (6,)))
    of_oracle = bradley_terry_of_oracle(rewards, [group])
    torch.testing.assert_close(of_oracle, bradley_terry_of_packed(rewards, [(1, 2)]).loss)
    with pytest.raises(ValueError, match=f"no negative response: {REWARD_MODEL} needs"):
        reward_loss(torch.nn.Linear(1, 1), [PreferenceGroup((3,), ((4,),))], backend="dense-sdpa")


@pytest.mark.parametrize("name", PREFERENCE_NAMES)
def test_oracle_and_packed_code_smooth_the_same_objectives_and_weigh_their_likelihood_alike(name) -> None:
    smoothing = 0.1 if name in SMOOTHED else 0.0
    of_oracle = objective_named(name, 0.5, smoothing, None)
    assert isinstance(of_oracle, Preference)
    of_packed = PreferenceObjective(name, 0.5, smoothing)
    assert of_oracle.nll_weight == of_packed.weight_of_nll == published_nll_weight(name)
    if name not in SMOOTHED:
        with pytest.raises(ValueError, match="label_smoothing"):
            objective_named(name, 0.5, 0.1, None)
        with pytest.raises(ValueError, match="label_smoothing"):
            PreferenceObjective(name, 0.5, 0.1)

"""What a subject does on a rank: however it ends, the rank says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from verify.groups import PreferenceGroup
from verify.objective import Preference
from verify.sharded.rank_work import SubjectOnRank
from verify.subject import SubjectError


class Exits:
    """Ends its process with the status of success, as a script does that is imported as a subject."""

    name = "exits"
    layout = "packed"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Any:
        raise SystemExit(0)


class AsksOtherRanks:
    """Sums a count over ranks, whatever model it is on."""

    name = "asks-other-ranks"
    layout = "packed"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Any:
        count = torch.ones(1)
        torch.distributed.all_reduce(count)
        return [count]


def test_a_collective_on_a_whole_model_is_refused_at_once_and_the_message_says_what_to_do() -> None:
    all_reduce = torch.distributed.all_reduce
    group = PreferenceGroup((1, 2), ((3,),), ((4,),))
    cached = ((torch.zeros(1), torch.zeros(1)),)
    on_rank = SubjectOnRank(AsksOtherRanks(), torch.nn.Linear(1, 1), (group,), Preference(), table=cached)
    match = "asks-other-ranks raised CollectiveAloneError: all_reduce on a whole model.* only where .* is a DTensor"
    with pytest.raises(SubjectError, match=match):
        on_rank.loss_of((0,), (0,))
    assert torch.distributed.all_reduce is all_reduce


def test_a_subject_that_exits_is_an_error_and_does_not_end_its_rank() -> None:
    group = PreferenceGroup((1, 2), ((3,),), ((4,),))
    cached = ((torch.zeros(1), torch.zeros(1)),)
    on_rank = SubjectOnRank(Exits(), torch.nn.Module(), (group,), Preference(), table=cached)
    match = "subject exits raised SystemExit: 0"
    with pytest.raises(SubjectError, match=match):
        on_rank.loss_of((0,), (0,))
    with pytest.raises(SubjectError, match=match):
        on_rank.dummy()

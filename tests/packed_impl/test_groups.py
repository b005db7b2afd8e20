from __future__ import annotations

from typing import Any

import pytest

from packed_impl.groups import check_groups, supervised_tokens
from packed_impl.layout import LAYOUTS, pack

T, F = True, False


def test_without_masks_every_token_is_supervised(make_group: Any) -> None:
    groups = [make_group((1,), ((2, 3),), ((4,),)), make_group((5,), ((6,),))]
    assert supervised_tokens(groups).tolist() == [T, T, T, T]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_come_in_the_order_of_the_tokens_whichever_row_a_group_is_in(make_group: Any, layout: str) -> None:
    groups = [
        make_group((1,), ((2, 3), (4,)), ((5, 6, 7),), ((T, F), (T,), (F, F, T))),
        make_group((8,), ((9, 9),)),
        make_group((1,), ((2, 3),), (), ((F, T),)),
    ]
    packed = pack(groups, layout=layout, rows=[(2, 0), (1,)])
    assert packed.supervised.tolist() == [T, F, T, F, F, T, T, T, F, T]
    assert packed.token_ids.tolist() == [2, 3, 4, 5, 6, 7, 9, 9, 2, 3]


def test_a_shared_slot_may_count_for_one_completion_and_not_for_another(make_group: Any) -> None:
    packed = pack([make_group((1,), ((2, 3), (2, 4)), (), ((T, T), (F, T)))], layout="prefix-tree")
    assert packed.token_slots.tolist() == [1, 2, 1, 3]
    assert packed.supervised.tolist() == [T, T, F, T]


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (((T, T),), r"group 1 has 1 completion_masks for 2 responses: expected one each or none"),
        (((T, T), (T,), (T,)), r"group 1 has 3 completion_masks for 2 responses"),
        (((T,), (T,)), r"group 1, completion_masks\[0\] has 1 values for 2 tokens"),
        (((T, T), ()), r"group 1, completion_masks\[1\] has 0 values for 1 tokens"),
        (((T, T), (F,)), r"group 1, completion_masks\[1\] is False throughout"),
        (((T, 1), (T,)), r"group 1, completion_masks\[0\] holds int: expected only bool"),
    ],
)
def test_masks_that_do_not_fit_are_refused(make_group: Any, masks: Any, message: str) -> None:
    groups = [make_group((1,), ((2,),)), make_group((1,), ((2, 3),), ((4,),), masks)]
    with pytest.raises(ValueError, match=message):
        check_groups(groups)
    with pytest.raises(ValueError, match=message):
        pack(groups)

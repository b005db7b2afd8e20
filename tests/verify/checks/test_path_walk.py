"""The walk agrees with every layout of ``pack`` and with every block table, and sees a single wrong value."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_impl import flex
from packed_impl.forest import attention_rule
from packed_impl.layout import LAYOUTS, ROWS, PackedLayout, pack
from verify.checks.block_table import effective_mask
from verify.checks.packed_rows import PackedRows, check_packed_rows
from verify.checks.path_walk import walk_paths, walk_positions
from verify.groups import PreferenceGroup

# Few token ids: equal tokens side by side must not be taken for one another.
IDS = st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple)
UNMASKED = st.builds(
    PreferenceGroup,
    IDS,
    st.lists(IDS, min_size=1, max_size=3).map(tuple),
    st.lists(IDS, max_size=3).map(tuple),
)


@st.composite
def masked(draw: st.DrawFn) -> PreferenceGroup:
    group = draw(UNMASKED)
    lengths = [len(ids) for ids in group.completions]
    masks = [st.lists(st.booleans(), min_size=n, max_size=n).filter(any).map(tuple) for n in lengths]
    return replace(group, completion_masks=draw(st.tuples(*masks)))


GROUPS = st.lists(st.one_of(UNMASKED, masked()), min_size=1, max_size=4)


def shown(packed: PackedLayout) -> PackedRows:
    lengths = torch.tensor(packed.completion_lengths)
    completions = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return PackedRows(
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        attended=torch.stack([attention_rule(forest) for forest in packed.forests]),
        supervised=torch.stack((completions, packed.token_rows, packed.token_slots, packed.predictor_slots), dim=1)[
            packed.supervised
        ],
    )


@given(groups=GROUPS, layout=st.sampled_from(LAYOUTS), rows=st.sampled_from(ROWS))
@settings(max_examples=60, deadline=None)
def test_every_layout_is_what_the_definition_says(groups: list[PreferenceGroup], layout: str, rows: str) -> None:
    walk = walk_paths(shown(pack(groups, layout=layout, rows=rows)), groups)
    assert walk.deviations == ()
    assert walk.num_compared > sum(sum(group.num_supervised) for group in groups)
    assert walk_positions(shown(pack(groups, layout=layout, rows=rows)), groups).deviations == ()


@given(groups=GROUPS, rows=st.sampled_from(ROWS), block_size=st.sampled_from([1, 2, 4, 16]))
@settings(max_examples=40, deadline=None)
def test_a_block_table_is_rebuilt_to_the_rule(groups: list[PreferenceGroup], rows: str, block_size: int) -> None:
    packed = pack(groups, rows=rows)
    table = flex.block_mask(packed.forests, torch.device("cpu"), block_size)
    assert torch.equal(effective_mask(table), shown(packed).attended)
    through_the_contract = PackedRows(packed.input_ids, packed.position_ids, table, shown(packed).supervised)
    assert walk_paths(check_packed_rows(through_the_contract, groups, subject="x"), groups).deviations == ()


@given(groups=GROUPS, rows=st.sampled_from(ROWS), data=st.data())
@settings(max_examples=80, deadline=None)
def test_one_wrong_value_on_a_path_is_seen(groups: list[PreferenceGroup], rows: str, data: st.DataObject) -> None:
    right = shown(pack(groups, rows=rows))
    part = data.draw(st.sampled_from(["input_ids", "position_ids", "attended", "supervised"]))
    wrong = {name: getattr(right, name).clone() for name in ("input_ids", "position_ids", "attended", "supervised")}
    _, row, slot, _ = wrong["supervised"][data.draw(st.integers(0, len(right.supervised) - 1))].tolist()
    if part == "supervised":
        index = data.draw(st.integers(0, len(right.supervised) - 1))
        wrong[part][index, 3] = (wrong[part][index, 3] + 1) % right.input_ids.shape[1]
    elif part == "attended":
        key = data.draw(st.integers(0, right.input_ids.shape[1] - 1))
        wrong[part][row, slot, key] ^= True
    else:
        wrong[part][row, slot] += 1
    walk = walk_paths(PackedRows(**wrong), groups)
    assert sum(deviation.count for deviation in walk.deviations) > 0


def test_a_mask_of_one_prompt_and_two_responses_by_hand() -> None:
    """Prompt ``a b`` with the responses ``c`` and ``d e``: slots a b c d e."""
    groups = [PreferenceGroup((5, 6), ((7,),), ((8, 9),))]
    attended = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]], dtype=torch.bool
    )
    rows = PackedRows(
        input_ids=torch.tensor([[5, 6, 7, 8, 9]]),
        position_ids=torch.tensor([[0, 1, 2, 2, 3]]),
        attended=attended[None],
        supervised=torch.tensor([[0, 0, 2, 1], [1, 0, 3, 1], [1, 0, 4, 3]]),
    )
    assert walk_paths(rows, groups).deviations == ()
    attended[4, 2] = True
    (deviation,) = walk_paths(rows, groups).deviations
    assert deviation.words == "group 0, rejected: its last token attends to 5 slots; its path has 4"

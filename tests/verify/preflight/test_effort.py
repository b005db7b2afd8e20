"""How long parity takes is told beforehand: more layers take longer, and what would not end in time is not begun."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.memory import num_weights
from verify.preflight.collectives import gather_seconds
from verify.preflight.effort import Effort, Rates, Workload
from verify.preflight.parity_cases import made_up_pairs, parity_cases
from verify.preflight.parity_setting import ParitySetting

CONFIG, LORA = named_config("qwen3-0.6b"), LoraSpec()
WORK = Workload(
    config=CONFIG,
    lora=LORA,
    cases=parity_cases(made_up_pairs(257, 0, 3, short=True), 2),
    num_layers=28,
    num_subjects=1,
    num_unpacked=3,
    itemsize=4,
    world_size=2,
)
NOTHING = Rates(wide_s=0.0, own_s=0.0, gather_s=0.0)


def test_a_sharded_step_gathers_all_weights_three_times_in_each_round() -> None:
    """Three groups on two ranks are two rounds, and a rank lacks half of the bytes; two steps are a fault's."""
    found = WORK.expected(28, replace(NOTHING, gather_s=1.0))
    half = num_weights(CONFIG, 28, LORA) * 4 / 2
    assert found.step_s == 2 * 3 * half
    assert found.steps_s == 4 * found.step_s
    assert found.one_process_s == found.full_steps_s == 0.0


def test_where_the_oracle_is_cut_all_layers_come_on_top_and_unpacked_calls_are_more() -> None:
    rates = replace(NOTHING, gather_s=1.0)
    whole, cut = WORK.expected(28, rates), WORK.expected(1, rates)
    assert cut.step_s < whole.step_s
    assert cut.full_step_s == 2 * whole.step_s  # two responses of each group
    assert cut.full_steps_s == whole.step_s + 3 * cut.full_step_s


def test_the_oracle_decides_about_the_time_in_one_process_where_float64_is_slow() -> None:
    slow, even = (WORK.expected(28, Rates(wide_s=wide, own_s=1e-12, gather_s=0.0)) for wide in (1e-9, 1e-12))
    tokens = sum(each.case.pairwise_slots for each in WORK.cases)
    assert slow.one_process_s >= 3 * num_weights(CONFIG, 28, LORA) * tokens * 1e-9 > 100 * even.one_process_s


def test_gathers_are_those_of_the_slowest_rank_at_the_largest_size() -> None:
    times = [{"all_gather": {2**10: 9.0, 2**20: seconds}} for seconds in (1.0, 2.0)]
    assert gather_seconds(times) == pytest.approx(2.0 / 2**19)


def test_what_the_watch_would_end_is_not_begun_and_the_message_says_what_to_give() -> None:
    effort = Effort(one_process_s=700.0, step_s=1.0, steps_s=1.0, full_step_s=5.0, full_steps_s=1.0, building_s=1.0)
    setting = SimpleNamespace(effort=effort, plan=SimpleNamespace(options=SimpleNamespace(timeout_s=600.0, data=None)))
    too_long = ParitySetting.too_long
    assert "--timeout 1402" in too_long(setting, full_depth=False)  # type: ignore[arg-type]
    assert too_long(setting, full_depth=True) == ""  # type: ignore[arg-type]

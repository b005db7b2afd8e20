"""Who agrees with whom."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from verify.diagnosis.triangulation import clusters, odd_one_out


def paths(**values: float) -> dict[str, Tensor]:
    return {name: torch.tensor([1.0, value], dtype=torch.float64) for name, value in values.items()}


def test_the_one_that_disagrees_is_named() -> None:
    said = odd_one_out(paths(unpacked=0.0, dense=1e-7, sparse=-1e-7, split=0.0, mine=0.5), 1e-6)
    assert said == "unpacked, dense, sparse and split agree; mine differs by up to 0.5 nats"


def test_two_that_disagree_alike_stand_together() -> None:
    said = odd_one_out(paths(unpacked=0.0, dense=0.3, split=0.0, mine=0.3), 1e-6)
    assert "unpacked and split agree" in said
    assert "dense and mine differ by up to 0.3 nats" in said


def test_agreement_and_its_absence_are_said() -> None:
    assert odd_one_out(paths(unpacked=0.0, mine=0.0), 1e-6) == "log-probs of unpacked and mine agree"
    assert odd_one_out(paths(unpacked=0.0, dense=1.0, mine=2.0), 1e-6) == "no two of unpacked, dense and mine agree"


def test_nan_agrees_with_nothing_not_even_itself() -> None:
    assert sorted(map(len, clusters(paths(a=math.nan, b=math.nan, c=0.0), 1e9))) == [1, 1, 1]


def test_one_path_cannot_disagree() -> None:
    with pytest.raises(ValueError, match="two are needed"):
        odd_one_out(paths(unpacked=0.0), 1e-6)

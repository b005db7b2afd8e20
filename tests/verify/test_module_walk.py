"""One walk finds what torch's own walks find, in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from verify.models.request import ModelRequest, build_model
from verify.module_walk import modules_of, named_modules, named_parameters


@pytest.fixture(params=["model", "shared-and-empty"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "model":
        return build_model(ModelRequest(name="tiny"), "float32").model
    shared = nn.Linear(2, 2)
    tied = nn.Linear(2, 2, bias=False)
    tied.weight = shared.weight
    root = nn.ModuleDict(
        {"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": nn.Sequential(tied), "d": nn.Module()}
    )
    root["d"].register_module("absent", None)
    root["d"].register_parameter("nothing", None)
    return root


def test_modules_come_in_the_order_of_named_modules_each_once(model: Any) -> None:
    assert named_modules(model) == list(model.named_modules())


def test_modules_without_names_are_the_same_ones_each_once(model: Any) -> None:
    assert sorted(map(id, modules_of(model))) == sorted(map(id, model.modules()))


def test_the_next_walk_sees_what_was_exchanged() -> None:
    root = nn.Sequential(nn.Sequential(nn.ReLU()))
    assert set(modules_of(root)) == {root, root[0], root[0][0]}
    root[0][0] = nn.Tanh()
    assert set(modules_of(root)) == {root, root[0], root[0][0]}


def test_parameters_come_in_the_order_of_named_parameters_each_once(model: Any) -> None:
    expected = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    assert [(name, id(parameter)) for name, parameter in named_parameters(named_modules(model))] == expected

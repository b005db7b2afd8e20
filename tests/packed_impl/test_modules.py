"""One walk finds what torch's own walk finds, and what has changed since the last one."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from packed_impl.modules import all_modules

Build = Callable[..., nn.Module]


def ids(modules: list[nn.Module]) -> list[int]:
    return sorted(map(id, modules))


def test_every_module_of_a_model_is_found(tiny_model: Build) -> None:
    model = tiny_model()
    assert ids(all_modules(model)) == ids(list(model.modules()))


def test_what_several_modules_hold_is_found_once_and_absent_children_never() -> None:
    shared = nn.Linear(2, 2)
    root = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": nn.Module()})
    root["c"].register_module("absent", None)
    assert ids(all_modules(root)) == ids(list(root.modules()))
    assert len(all_modules(root)) == len([root, root["a"], root["b"], root["c"], root["a"][1]])


def test_modules_that_hold_each_other_are_each_found_once() -> None:
    inner, outer = nn.Module(), nn.Module()
    outer.inner, inner.outer = inner, outer
    assert all_modules(outer) == [outer, inner]


def test_the_next_walk_sees_what_was_exchanged_added_and_taken_out() -> None:
    root = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh())
    before = all_modules(root)
    root[0][0] = nn.Dropout()
    root[0].append(nn.Linear(1, 1))
    del root[1]
    assert all_modules(root) == [root, root[0], root[0][0], root[0][1]] != before

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from packed_impl.branches import plan_branches
from packed_impl.layout import PackedLayout
from packed_impl.preference import PreferenceObjective
from packed_impl.step import dpo_loss
from packed_impl.two_pass import coefficients, replay, two_pass_step

Build = Callable[..., nn.Module]

OBJECTIVES = ("groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs", "sigmoid")
SEEDS = (42, 43, 44)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}
# transformers computes norms and angles in float32 whatever the dtype, so another row is another rounding.
GRADIENT_TOLERANCE = 5e-6


@pytest.fixture
def uneven_groups(make_group: Any) -> Callable[[int], list[Any]]:
    """Groups of 2+4, 1+2 and 3+1, the first two of one prompt: a response on opposite sides, one on the same side."""

    def draw(seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)

        def ids(length: int) -> tuple[int, ...]:
            return tuple(torch.randint(1, 61, (length,), generator=generator).tolist())

        shared, a, b, c, d, e, f = (ids(length) for length in (5, 4, 2, 7, 3, 6, 1))
        return [
            make_group(shared, (a, b), (c, d, e, f)),
            make_group(shared, (c,), (d, ids(4))),
            make_group(
                ids(2), (ids(3), ids(5), ids(2)), (ids(4),),
                ((True, False, True), (True,) * 5, (False, True), (True,) * 4),
            ),
        ]  # fmt: skip

    return draw


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def worst(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest relative L2 error over tensors, none of which may be zero."""
    assert actual.keys() == expected.keys()
    assert expected
    assert all(tensor.norm() > 0 for tensor in expected.values())
    return max(((actual[name] - expected[name]).norm() / expected[name].norm()).item() for name in expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_three_updates_are_those_of_the_joint_backward_pass(
    tiny_model: Build, uneven_groups: Callable[[int], list[Any]], objective: str, optimizer: str, seed: int
) -> None:
    joint = tiny_model(torch.float64, seed=seed, targets=("q_proj", "v_proj", "down_proj"), num_hidden_layers=1)
    two_pass = copy.deepcopy(joint)
    optimizers = [OPTIMIZERS[optimizer]([p for p in m.parameters() if p.requires_grad]) for m in (joint, two_pass)]
    before = {name: p.detach().clone() for name, p in joint.named_parameters() if p.requires_grad}
    for update, micro_batch in enumerate((2, 5, 16)):
        groups = uneven_groups(10 * seed + update)
        for each in optimizers:
            each.zero_grad()
        expected = dpo_loss(joint, groups, backend="split", beta=0.4, objective=objective)
        expected.loss.backward()
        actual = two_pass_step(
            two_pass, groups, backend="split", beta=0.4, objective=objective, branches_per_micro_batch=micro_batch
        )
        # Of 13 completions, 7 branches of the first prompt and 4 of the second.
        assert actual.num_micro_batches == {2: 4 + 2, 5: 2 + 1, 16: 1 + 1}[micro_batch]
        assert actual.loss.item() == pytest.approx(expected.loss.item(), abs=2e-6)
        assert actual.rewards.tolist() == pytest.approx(expected.rewards.tolist(), abs=5e-6)
        assert actual.margins.tolist() == pytest.approx(expected.margins.tolist(), abs=5e-6)
        assert not actual.loss.requires_grad
        assert worst(gradients(two_pass), gradients(joint)) < GRADIENT_TOLERANCE
        for each in optimizers:
            each.step()
    moved, moved_jointly = (
        {name: p.detach() - before[name] for name, p in m.named_parameters() if p.requires_grad}
        for m in (two_pass, joint)
    )
    assert worst(moved, moved_jointly) < {"sgd": GRADIENT_TOLERANCE, "adamw": 1e-4}[optimizer]


# The same in arithmetic that is float64 throughout: a table of bigrams in place of the transformer.


@dataclass(frozen=True, eq=False)
class Bigrams:
    """``log softmax(table[predictor])[token]``, summed over supervised tokens."""

    table: Tensor

    def __call__(self, packed: PackedLayout) -> Tensor:
        predictors = packed.input_ids[packed.token_rows, packed.predictor_slots]
        logps = self.table[predictors].log_softmax(-1).gather(-1, packed.token_ids[:, None])[:, 0]
        counted = torch.where(packed.supervised, logps, 0.0)
        return torch.stack([part.sum() for part in counted.split(list(packed.completion_lengths))])

    def of_groups(self, groups: Sequence[Any]) -> Tensor:
        """Completion by completion, without packing."""
        sums = []
        for group in groups:
            for place, response in enumerate(group.positives + group.negatives):
                mask = group.completion_masks[place] if group.completion_masks else (True,) * len(response)
                steps = zip((group.prompt_ids[-1], *response), response, mask, strict=False)
                sums.append(sum(self.table[a].log_softmax(-1)[b] for a, b, counted in steps if counted))
        return torch.stack(sums)


def supervised(group: Any) -> list[int]:
    if group.completion_masks:
        return [sum(mask) for mask in group.completion_masks]
    return [len(response) for response in group.positives + group.negatives]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.4, 1e4], ids=["ordinary", "extreme"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_are_exact_where_the_arithmetic_is(
    uneven_groups: Callable[[int], list[Any]], objective: str, beta: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    table, ref_table = torch.randn(2, 61, 61, generator=generator, dtype=torch.float64)
    table.requires_grad_()
    policy, frozen = Bigrams(table), Bigrams(ref_table)
    groups, preference = uneven_groups(seed), PreferenceObjective(objective, beta)
    sizes = [(len(group.positives), len(group.negatives)) for group in groups]
    counts = torch.tensor([count for group in groups for count in supervised(group)])
    expected = preference.terms(policy.of_groups(groups), frozen.of_groups(groups), counts, sizes)
    (joint,) = torch.autograd.grad(expected.loss, table)
    if beta == 1e4:
        assert expected.margins.abs().max() > 1e3
    for micro_batch in (1, 2, 3, 16):
        plan = plan_branches(groups, micro_batch, layout="shared-prompt")
        with torch.no_grad():
            sums, ref_sums = (torch.cat([run(packed) for packed in plan.micro_batches]) for run in (policy, frozen))
        terms, weights = coefficients(sums, ref_sums, plan, sizes, preference)
        table.grad = None
        replay(policy, groups, plan, sums, weights, 0.0)
        assert table.grad is not None
        assert ((table.grad - joint).norm() / joint.norm()).item() < 1e-13
        assert terms.loss.item() == pytest.approx(expected.loss.item(), rel=1e-13)


def test_coefficients_are_those_of_the_paper(make_group: Any) -> None:
    """Margin, with its closed form ``c_p = -s / |P|``, ``c_n = s / |N|`` and NLL weights ``1 / (|G| |P|)``."""
    groups = [make_group((1,), ((2, 3), (4,)), ((5, 6, 7),)), make_group((1,), ((5, 6, 7),), ((8, 9),))]
    plan = plan_branches(groups, 2, layout="shared-prompt")
    sums = torch.tensor([-3.0, -1.0, -6.0, -5.0], dtype=torch.float64)  # means of -1.5, -1, -2, -2.5
    _, weights = coefficients(
        sums, torch.zeros(4, dtype=torch.float64), plan, [(2, 1), (1, 1)], PreferenceObjective("groupdpo-margin", 2.0)
    )
    # Rewards -3 -2 | -4 and -4 | -5: margins of means 1.5 and 1.
    first, second = (1 / (1 + torch.tensor(z, dtype=torch.float64).exp()).item() for z in (1.5, 1.0))
    of_means = [
        2 * (-first / 2) / 2 - 1 / 4,
        2 * (-first / 2) / 2 - 1 / 4,
        2 * first / 2 + 2 * (-second) / 2 - 1 / 2,  # a negative of the first group, the positive of the second
        2 * second / 2,
    ]
    assert weights.tolist() == pytest.approx([of_means[0] / 2, of_means[1], of_means[2] / 3, of_means[3] / 2])


@pytest.mark.parametrize("backend", ["dense-eager", "dense-sdpa"])
def test_the_other_backends_agree(tiny_model: Build, uneven_groups: Callable[[int], list[Any]], backend: str) -> None:
    model, groups = tiny_model(torch.float64), uneven_groups(1)
    dpo_loss(model, groups, backend="split", beta=0.4, objective="groupdpo-mpo").loss.backward()
    expected = gradients(model)
    model.zero_grad()
    two_pass_step(
        model, groups, backend=backend, layout="prefix-tree", beta=0.4, objective="groupdpo-mpo",
        branches_per_micro_batch=2,
    )  # fmt: skip
    assert worst(gradients(model), expected) < GRADIENT_TOLERANCE


def test_gradient_checkpointing_recomputes_the_attention_of_the_step(
    tiny_model: Build, uneven_groups: Callable[[int], list[Any]]
) -> None:
    model, groups = tiny_model(torch.float64), uneven_groups(1)
    dpo_loss(model, groups, backend="split", beta=0.4, objective="groupdpo-margin").loss.backward()
    expected = gradients(model)
    model.zero_grad()
    base = model.train().get_base_model()
    enable = getattr(base, "activation_checkpointing_enable", None) or base.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    two_pass_step(
        model, groups, backend="split", beta=0.4, objective="groupdpo-margin", branches_per_micro_batch=4, logit_chunk=5
    )
    assert worst(gradients(model), expected) < GRADIENT_TOLERANCE


def test_a_step_adds_to_the_gradients_that_are_there(
    tiny_model: Build, uneven_groups: Callable[[int], list[Any]]
) -> None:
    model, once = tiny_model(torch.float64), {}
    for step in range(2):
        two_pass_step(
            model, uneven_groups(1), backend="split", beta=0.4, objective="sigmoid", branches_per_micro_batch=4
        )
        once = once or gradients(model)
        assert worst(gradients(model), {name: (step + 1) * gradient for name, gradient in once.items()}) < 1e-15


def test_a_shared_response_runs_once(tiny_model: Build, make_group: Any) -> None:
    model, slots = tiny_model(), []
    model.get_input_embeddings().register_forward_hook(lambda _, args, __: slots.append(args[0].numel()))
    groups = [make_group((1, 2, 3), ((4, 5),), ((6,),)), make_group((1, 2, 3), ((4, 5),), ((7, 8),))]
    done = two_pass_step(
        model, groups, backend="split", beta=0.4, objective="groupdpo-margin", branches_per_micro_batch=2
    )
    assert slots == [3 + 2 + 1, 3 + 2] * 3  # frozen policy, policy, replay
    assert done.rewards[0] == done.rewards[2]


# What is refused, and what is left behind.


@pytest.mark.parametrize("before", [False, True], ids=["no gradients before", "gradients before"])
def test_dropout_is_refused_and_leaves_the_gradients_as_they_were(
    tiny_model: Build, uneven_groups: Callable[[int], list[Any]], before: bool
) -> None:
    model = tiny_model().train()
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            layer.lora_dropout["default"] = nn.Dropout(0.05)
    if before:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
    with pytest.raises(ValueError, match=r"group 0, positives\[0\]: mean log-prob -\d.* dropout is on"):
        two_pass_step(
            model, uneven_groups(1), backend="split", beta=0.4, objective="groupdpo-mpo", branches_per_micro_batch=2
        )
    if before:
        assert all(torch.equal(p.grad, torch.full_like(p, 0.5)) for p in model.parameters() if p.grad is not None)
    assert all((p.grad is not None) == before for p in model.parameters())


def test_a_model_that_changes_between_the_passes_is_refused_by_the_name_of_the_response(
    tiny_model: Build, make_group: Any
) -> None:
    """Two micro-batches, so six passes; before the last one a weight moves by 0.1 %."""
    model = tiny_model()
    groups = [make_group((1, 2), ((3, 4), (5,)), ((6, 7),)), make_group((1, 2), ((5,),), ((8, 9, 10),))]
    passes: list[int] = []

    def change(*_: object) -> None:
        passes.append(len(passes))
        if len(passes) == 6:
            with torch.no_grad():
                model.get_output_embeddings().base_layer.weight.mul_(1.001)

    model.register_forward_pre_hook(change)
    with pytest.raises(ValueError, match=r"group 0, negatives\[0\]: mean log-prob") as refused:
        two_pass_step(
            model, groups, backend="split", beta=0.4, objective="groupdpo-softmax", branches_per_micro_batch=2
        )
    assert "the step is refused and adds no gradient" in str(refused.value)
    assert len(passes) == 6
    assert gradients(model) == {}


def test_an_interrupt_leaves_no_gradient(tiny_model: Build, uneven_groups: Callable[[int], list[Any]]) -> None:
    model, backwards = tiny_model(), []

    def interrupt(*_: object) -> None:
        backwards.append(1)
        if len(backwards) == 2:
            raise KeyboardInterrupt

    model.get_output_embeddings().register_full_backward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        two_pass_step(
            model, uneven_groups(1), backend="split", beta=0.4, objective="sigmoid", branches_per_micro_batch=2
        )
    assert gradients(model) == {}


def test_a_log_prob_that_is_no_number_is_refused(make_group: Any) -> None:
    groups = [make_group((1,), ((2,),), ((3,),))]
    plan = plan_branches(groups, 2, layout="shared-prompt")
    sums = torch.tensor([-1.0, torch.nan], requires_grad=True)
    with pytest.raises(ValueError, match=r"group 0, negatives\[0\]: mean log-prob nan in the first pass, nan"):
        replay(lambda _: sums, groups, plan, sums.detach(), torch.ones(2), 1e-6)


def test_what_cannot_be_stepped_is_refused_before_anything_runs(
    tiny_model: Build, pair_and_group: list[Any], make_group: Any
) -> None:
    model = tiny_model()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))

    def step(groups: list[Any], **changed: Any) -> None:
        arguments = {"backend": "split", "beta": 0.1, "objective": "sigmoid", "branches_per_micro_batch": 2}
        two_pass_step(model, groups, **{**arguments, **changed})

    for changed, message in (
        ({"objective": "kto"}, "unknown preference objective 'kto'"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"backend": "paged"}, "unknown attention backend 'paged'"),
        ({"backend": "flex"}, "FlexAttention has no backward pass on cpu"),
        ({"branches_per_micro_batch": 0}, "branches_per_micro_batch is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            step(pair_and_group, **changed)
    with pytest.raises(ValueError, match="group 0 has no negative response: sigmoid needs one at least"):
        step([make_group((1,), ((2,),))])
    with pytest.raises(ValueError, match="no group to pack"):
        step([])
    with pytest.raises(ValueError, match=r"group 0 has the same response as positives\[0\] and as negatives\[0\]"):
        step([make_group((1,), ((2,),), ((2,),))])


# Memory.


@contextmanager
def peak_saved_bytes(model: nn.Module, peak: list[int]) -> Iterator[None]:
    """Bytes that graphs hold for the backward pass, at their most; parameters and views of them are not counted."""
    live, of_parameters = 0, {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    class Held:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal live
            self.tensor = tensor
            counted = tensor.untyped_storage().data_ptr() not in of_parameters
            self.size = tensor.numel() * tensor.element_size() if counted else 0
            live += self.size
            peak[0] = max(peak[0], live)

        def __del__(self) -> None:
            nonlocal live
            live -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        yield


def test_what_is_held_for_the_backward_pass_follows_the_micro_batch_not_the_group(
    tiny_model: Build, make_group: Any
) -> None:
    model = tiny_model()

    def group(num_responses: int) -> Any:
        responses = tuple((i + 1, 7, 9, i + 2) for i in range(num_responses))
        return make_group((1, 2, 3, 4), responses[: num_responses // 2], responses[num_responses // 2 :])

    def held(run: Callable[[], object]) -> int:
        peak = [0]
        with peak_saved_bytes(model, peak):
            run()
        return peak[0]

    def two_pass(num_responses: int) -> int:
        return held(
            lambda: two_pass_step(
                model, [group(num_responses)], backend="split", beta=0.4, objective="groupdpo-mpo",
                branches_per_micro_batch=2,
            )
        )  # fmt: skip

    def jointly(num_responses: int) -> int:
        return held(
            lambda: dpo_loss(
                model, [group(num_responses)], backend="split", beta=0.4, objective="groupdpo-mpo"
            ).loss.backward()
        )

    assert two_pass(16) <= 1.01 * jointly(2)
    assert jointly(16) > 5 * jointly(2)

"""Along optimizer steps, under gradient checkpointing and with dropout: who is wrong there only is caught there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from verify.checks.accumulation import accumulated
from verify.checks.bench import Bench, Setting
from verify.checks.cases import CheckCases
from verify.checks.catalogue import CHECKS_ONLY_IN_FULL, EXACT_CHECKS, MANY_PASSES, QUICK_CHECKS
from verify.checks.check import ExactCheckName, Finding
from verify.checks.checkpointed import checkpointed, is_checkpointed
from verify.checks.lora_weights import read_weights
from verify.checks.optimizer_steps import QUICK_OPTIMIZER_STEPS
from verify.checks.run import measure_setting, run_checks
from verify.checks.same_dropout import PROBABILITY, SameDropout, same_dropout
from verify.checks.shares import shares
from verify.checks.trajectory import batches_of
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.model_state import Baseline
from verify.models.request import ModelRequest
from verify.objective import Objective, Preference
from verify.subject import Support
from verify.subjects.packed import PackedSubject
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.tolerance import load_policy
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
Put = Callable[..., dict[str, Finding]]
HONEST = PackedSubject(backend="dense-sdpa")


@cache
def only(name: ExactCheckName) -> tuple[Any, ...]:
    return tuple(check for check in EXACT_CHECKS if check.name == name)


def tokens_of(groups: Groups) -> set[int]:
    return {token for group in groups for ids in (group.prompt_ids, *group.completions) for token in ids}


def put_to(put: Put, subject: Any, name: ExactCheckName) -> Finding:
    return put(subject, only(name))[name]


@dataclass
class Step:
    """The honest packed step, which may do something before each of its calls and to what it returns."""

    before: Callable[[Any, Groups], None] = lambda model, groups: None
    alter: Callable[[Any, Any], Any] = lambda output, model: output
    name: str = "step"
    calls: list[int] = field(default_factory=list)

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        return HONEST.per_token_logps(model, groups)

    def loss(self, model: Any, groups: Groups, objective: Objective) -> Any:
        self.before(model, groups)
        return self.alter(HONEST.loss(model, groups, objective), model)


class TestOptimizerSteps:
    def test_the_honest_step_passes(self, put: Put) -> None:
        finding = put_to(put, Step(), "optimizer-steps")
        assert finding.verdict is Verdict.PASS, finding.reason
        assert finding.ratio < 0.5

    def test_a_reference_kept_by_the_shape_of_the_batch_is_caught_in_the_second_step(self, put: Put) -> None:
        """The frozen policy's log-probs of other tokens: right whenever a shape comes with one text only."""
        kept: dict[Any, list[Tensor]] = {}

        def loss_on_kept(model: Any, groups: Groups, objective: Preference) -> Any:
            lengths = tuple(len(group.prompt_ids) + sum(map(len, group.completions)) for group in groups)
            if lengths not in kept:
                with torch.no_grad(), model.disable_adapter():
                    kept[lengths] = HONEST.per_token_logps(model, groups)
            sums = [logp.sum() for logp in HONEST.per_token_logps(model, groups)]
            refs = [logp.sum() for logp in kept[lengths]]
            rewards = [objective.beta * (logp - ref) for logp, ref in zip(sums, refs, strict=True)]
            z = torch.stack(rewards[::2]) - torch.stack(rewards[1::2])
            e, log = objective.label_smoothing, nn.functional.logsigmoid
            loss = (-(1 - e) * log(z) - e * log(-z)).mean()
            return SimpleNamespace(loss=loss, rewards=torch.stack(rewards))

        subject = Step()
        subject.loss = loss_on_kept  # type: ignore[method-assign, assignment]
        finding = put_to(put, subject, "optimizer-steps")
        assert finding.verdict is Verdict.FAIL
        assert finding.reason.startswith("after 1 step of AdamW: ")

    def test_gradients_that_the_call_itself_leaves_are_counted(self, put: Put) -> None:
        """Every gradient is there twice: once from inside, once from the loss that is returned."""

        def backward_too(output: Any, model: Any) -> Any:
            if output.loss.requires_grad:
                output.loss.backward(retain_graph=True)
            return output

        finding = put_to(put, Step(alter=backward_too), "optimizer-steps")
        assert finding.verdict is Verdict.FAIL
        assert "the gradient of" in finding.reason

    def test_a_subject_that_steps_itself_is_an_error(self, put: Put) -> None:
        def steps(model: Any, groups: Groups) -> None:
            with torch.no_grad():
                next(p for p in model.parameters() if p.requires_grad).mul_(1.001)

        subject = Step(before=steps)
        finding = put_to(put, subject, "optimizer-steps")
        assert finding.verdict is Verdict.ERROR
        assert "which is for the optimizer to do" in finding.reason

    def test_a_step_that_runs_backward_itself_is_added_up_with_the_shares_of_its_micro_batches(self, put: Put) -> None:
        def done(output: Any, model: Any) -> Any:
            if not torch.is_grad_enabled():
                return output
            output.loss.backward()
            return SimpleNamespace(loss=output.loss.detach(), rewards=output.rewards.detach(), backward_done=True)

        finding = put_to(put, Step(alter=done), "optimizer-steps")
        assert finding.verdict is Verdict.PASS, finding.reason

    def test_one_that_does_so_every_other_time_is_an_error(self, put: Put) -> None:
        subject = Step()

        def every_other_time(output: Any, model: Any) -> Any:
            subject.calls.append(1)
            if len(subject.calls) % 2:
                return output
            output.loss.backward()
            return SimpleNamespace(loss=output.loss.detach(), rewards=output.rewards.detach(), backward_done=True)

        subject.alter = every_other_time
        finding = put_to(put, subject, "optimizer-steps")
        assert finding.verdict is Verdict.ERROR
        assert "for one micro-batch and not for that before it" in finding.reason

    def test_weights_move_by_a_fifth_and_come_back_to_the_bit(
        self, put: Put, holder: ModelHolder, setting: Setting
    ) -> None:
        before = Baseline.read(holder.model)
        put_to(put, Step(), "optimizer-steps")
        assert Baseline.read(holder.model).hashes == before.hashes
        assert all(p.grad is None for p in holder.model.parameters())
        for name, trajectory in setting.training.trajectories.items():
            assert len(trajectory.steps) == 3
            assert {n: t.tolist() for n, t in trajectory.steps[0].weights.items()} == {
                n: t.tolist() for n, t in read_weights(holder.model).items()
            }
            for one, other in zip(trajectory.steps, trajectory.steps[1:], strict=False):
                moved = sum(float((other.weights[n] - w).square().sum()) for n, w in one.weights.items())
                size = sum(float(w.square().sum()) for w in one.weights.values())
                assert 0.1 < (moved / size) ** 0.5 < 0.4, name

    def test_batches_differ_from_step_to_step_and_the_first_comes_again(self, cases: CheckCases) -> None:
        for name in ("distinct-tokens", "distinct-turns", "distinct-examples"):
            case = cases.by_name[name]
            first, second, third = batches_of(case, cases.other_token[name])
            assert first == third
            assert sum(first, ()) == case.groups
            one, other = (tokens_of(sum(step, ())) for step in (first, second))
            assert one.isdisjoint(other)

            def slots(micro_batch: Groups) -> int:
                return sum(len(g.prompt_ids) + sum(map(len, g.completions)) for g in micro_batch)

            assert list(map(slots, first)) == list(map(slots, second))


def test_shares_are_those_of_what_the_loss_is_a_mean_over() -> None:
    one = (PreferenceGroup((1,), ((2, 3, 4),)),)
    two = (PreferenceGroup((1,), ((2,), (3, 4)), completion_masks=((True,), (False, True))),)
    assert shares("sft-token-mean", [one, two]) == [3 / 5, 2 / 5]
    assert shares("sft-example-mean", [one, two]) == [1 / 3, 2 / 3]
    assert shares("sigmoid", [one, one + two]) == [1 / 3, 2 / 3]


def test_accumulated_gradients_are_those_of_the_whole_batch(setting: Setting, holder: ModelHolder) -> None:
    """The micro-batches of ``distinct-tokens`` one by one against all of them at once, both unpacked."""
    case, bench = setting.cases.by_name["distinct-tokens"], Bench(WITNESS, holder.model, setting)
    objective = bench.objective_of(case)
    parts = accumulated(bench, [(group,) for group in case.groups], objective)
    whole = accumulated(bench, [case.groups], objective)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    for name, gradient in whole.gradients.items():
        assert float((parts.gradients[name] - gradient).norm() / gradient.norm()) < 1e-5


class TestGradientCheckpointing:
    @pytest.mark.parametrize("backend", ["dense-eager", "dense-sdpa", "split"])
    def test_our_own_steps_give_the_same_bits(self, backend: str, put: Put) -> None:
        finding = put_to(put, PackedSubject(backend=backend), "gradient-checkpointing")
        assert finding.verdict is Verdict.PASS, finding.reason
        assert finding.ratio == 0

    def test_attention_that_is_gone_by_then_is_caught(self, put: Put) -> None:
        """The split backend without its attention around the backward pass, its refusal circumvented."""

        class Gone(PackedSubject):
            def loss(self, model: Any, groups: Groups, objective: Any) -> Any:
                before, model.training = model.training, False  # what refuses looks there; layers stay in training mode
                try:
                    return self._loss(model, groups, objective)
                finally:
                    model.training = before

        finding = put_to(put, Gone(backend="split"), "gradient-checkpointing")
        assert finding.verdict is Verdict.FAIL
        assert "with checkpoints (reentrant): " in finding.reason

    def test_a_subject_that_refuses_is_not_applicable_with_its_words(self, put: Put) -> None:
        def refuse(model: Any, groups: Groups) -> None:
            if is_checkpointed(model):
                raise ValueError("not while layers are run again")

        finding = put_to(put, Step(before=refuse), "gradient-checkpointing")
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert "not while layers are run again" in finding.reason

    def test_so_is_one_that_says_so_before(self, put: Put) -> None:
        class Says(Step):
            def supports_gradients(self, model: Any) -> Support:
                return Support(not is_checkpointed(model), "a kernel that cannot run twice")

        finding = put_to(put, Says(), "gradient-checkpointing")
        assert (finding.verdict, finding.reason) == (Verdict.NOT_APPLICABLE, "a kernel that cannot run twice")

    def test_any_other_exception_is_an_error(self, put: Put) -> None:
        def fail(model: Any, groups: Groups) -> None:
            if is_checkpointed(model):
                raise RuntimeError("out of something")

        finding = put_to(put, Step(before=fail), "gradient-checkpointing")
        assert finding.verdict is Verdict.ERROR

    def test_evaluation_mode_runs_nothing_again_and_is_no_pass(self, put: Put) -> None:
        finding = put_to(put, Step(before=lambda model, groups: model.eval()), "gradient-checkpointing")
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert "none of 0 layers was run again" in finding.reason

    def test_dropout_of_the_model_itself_draws_the_same_masks_when_layers_run_again(self) -> None:
        """GPT-2 drops a tenth of its embeddings, attention weights and outputs, in training mode only."""
        checks = tuple(replace(check, cases=("distinct-tokens",)) for check in only("gradient-checkpointing"))
        holder = ModelHolder(ModelRequest(name="tiny-gpt2"), "float32")
        setting = measure_setting(
            checks, holder, dtype="float32", objective=Preference(), policy=load_policy(None), seed=0
        )
        findings = [*run_checks(HONEST, checks, setting, holder)]
        assert {finding.verdict for finding in findings} == {Verdict.PASS}, [finding.reason for finding in findings]

    @pytest.mark.parametrize("use_reentrant", [True, False])
    def test_the_model_is_as_before(self, use_reentrant: bool, holder: ModelHolder) -> None:
        before, modules = Baseline.read(holder.model), [dict(vars(m)) for m in holder.model.modules()]
        with checkpointed(holder.model, use_reentrant=use_reentrant):
            assert is_checkpointed(holder.model)
        assert Baseline.read(holder.model) == before
        assert [set(vars(m)) for m in holder.model.modules()] == [set(own) for own in modules]

    def test_layers_are_counted_once_going_forward_and_once_going_back(
        self, holder: ModelHolder, cases: CheckCases
    ) -> None:
        groups = cases.by_name["distinct-tokens"].groups
        with checkpointed(holder.model, use_reentrant=False) as counted:
            logps = VARIATIONS["padded-right"].per_token_logps(holder.model, groups)
            assert (counted.layers, counted.runs) == (1, 1)  # a model of one layer
            torch.autograd.backward(torch.cat(logps).sum())
            assert (counted.layers, counted.runs) == (1, 2)
        for parameter in holder.model.parameters():
            parameter.grad = None


class Drawn(nn.Module):
    """Dropout as torch draws it."""

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(hidden, PROBABILITY, self.training)


class TestDropout:
    CASE: ClassVar = "distinct-tokens"

    @pytest.mark.parametrize("backend", ["dense-eager", "dense-sdpa", "split"])
    def test_packed_steps_drop_what_the_unpacked_path_drops(self, backend: str, put: Put, setting: Setting) -> None:
        finding = put_to(put, PackedSubject(backend=backend), "dropout")
        assert finding.verdict is Verdict.PASS, finding.reason
        with_it = setting.training.under_dropout[self.CASE]
        without = setting.training.trajectories[self.CASE].steps[0].yardstick
        assert abs(with_it.loss - without.loss) > 1000 * with_it.loss_budget

    def test_masks_drawn_by_place_are_caught(self, put: Put) -> None:
        """Each copy of a prompt token loses other features."""

        def draw(model: Any, groups: Groups) -> None:
            for module in model.modules():
                if hasattr(module, "lora_dropout") and isinstance(module.lora_dropout["default"], SameDropout):
                    module.lora_dropout["default"] = Drawn()

        finding = put_to(put, Step(before=draw), "dropout")
        assert finding.verdict is Verdict.FAIL
        assert finding.reason.startswith("with dropout: ")

    def test_evaluation_mode_is_caught(self, put: Put) -> None:
        assert put_to(put, Step(before=lambda model, groups: model.eval()), "dropout").verdict is Verdict.FAIL

    def test_embeddings_made_elsewhere_cannot_be_judged(self, put: Put) -> None:
        def embed(decoder: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            embeds = decoder.embed_tokens(kwargs["input_ids"])  # type: ignore[operator]
            return args, {**kwargs, "input_ids": None, "inputs_embeds": embeds}

        class Embeds(Step):
            def loss(self, model: Any, groups: Groups, objective: Objective) -> Any:
                decoder = model.get_base_model().get_decoder()
                hook = decoder.register_forward_pre_hook(embed, with_kwargs=True, prepend=True)
                try:
                    return HONEST.loss(model, groups, objective)
                finally:
                    hook.remove()

        finding = put_to(put, Embeds(), "dropout")
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert "the decoder is called without token ids" in finding.reason

    def test_attention_dropout_of_the_model_cannot_be_judged(self, put: Put, holder: ModelHolder) -> None:
        config = holder.model.config
        before = config.attention_dropout
        config.attention_dropout = 0.1
        try:
            finding = put_to(put, HONEST, "dropout")
        finally:
            config.attention_dropout = before
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert "attention_dropout 0.1" in finding.reason

    def test_copies_of_a_token_lose_the_same_features_and_others_lose_others(self, holder: ModelHolder) -> None:
        """Two rows ``5 6 7`` and ``5 9 7``, and one ``5 6 7`` two positions later."""
        ids = torch.tensor([[5, 6, 7], [5, 9, 7], [5, 6, 7]])
        positions = torch.tensor([[0, 1, 2], [0, 1, 2], [2, 3, 4]])
        dropped: dict[str, Tensor] = {}

        def keep(name: str, module: nn.Module, args: Any, output: Tensor) -> None:
            dropped.setdefault(name, output == 0)

        model = holder.model
        with same_dropout(model, seed=0):
            hooks = [
                module.register_forward_hook(lambda m, a, o, name=name: keep(name, m, a, o))
                for name, module in model.named_modules()
                if isinstance(module, SameDropout)
            ]
            with torch.no_grad():
                model(input_ids=ids, position_ids=positions, use_cache=False)
        assert len(hooks) == len(dropped) == 7
        of_query = next(mask for name, mask in dropped.items() if "q_proj" in name)
        of_key = next(mask for name, mask in dropped.items() if "k_proj" in name)
        assert torch.equal(of_query[0, 0], of_query[1, 0])
        assert torch.equal(of_query[0, 2], of_query[1, 2])
        for other in (of_query[1, 1], of_query[2, 1], of_query[0, 0], of_key[0, 1]):
            assert not torch.equal(of_query[0, 1], other)
        rates = torch.stack([mask.double().mean() for mask in dropped.values()])
        assert float((rates - PROBABILITY).abs().max()) < 0.08

    def test_the_model_is_as_before(self, holder: ModelHolder) -> None:
        before = Baseline.read(holder.model)
        with same_dropout(holder.model, seed=0):
            assert any(isinstance(module, SameDropout) for module in holder.model.modules())
        assert Baseline.read(holder.model) == before
        assert not any(isinstance(module, SameDropout) for module in holder.model.modules())

    def test_a_model_without_adapters_has_nothing_to_drop(self) -> None:
        with pytest.raises(ValueError, match="has no LoRA module"), same_dropout(nn.Linear(1, 1), seed=0):
            pass


def test_a_quick_run_leaves_out_what_only_a_full_one_has() -> None:
    assert [check.name for check in EXACT_CHECKS if check.name not in {c.name for c in QUICK_CHECKS}] == list(
        CHECKS_ONLY_IN_FULL
    )
    (quick,) = (check for check in QUICK_CHECKS if check.name == "optimizer-steps")
    assert quick.cases == ("distinct-tokens",)
    assert set(CHECKS_ONLY_IN_FULL) < set(MANY_PASSES)


@pytest.mark.parametrize(
    ("subject", "verdict"),
    [
        (HONEST, Verdict.PASS),
        (PackedSubject(backend="split"), Verdict.PASS),
        (Step(), Verdict.PASS),
        (PackedSubject(backend="dense-eager"), Verdict.NOT_APPLICABLE),
    ],
    ids=["dense-sdpa", "split", "of others", "dense-eager"],
)
def test_optimizer_steps_of_a_quick_run_are_for_others_and_two_of_our_own(
    subject: Any, verdict: Verdict, put: Put
) -> None:
    finding = put(subject, [QUICK_OPTIMIZER_STEPS])["optimizer-steps"]
    assert finding.verdict is verdict
    assert verdict is Verdict.PASS or "left out to be quick" in finding.reason

"""Each invariant of packed supervised fine-tuning is broken by an ordinary trainer, and its own check says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from verify.checks.cases import CheckCases
from verify.checks.check import Finding
from verify.checks.run import measure_setting, run_checks
from verify.checks.supervised_packing import SAME_NUMBER_OF_TARGETS
from verify.checks.targets import expected_targets, scale_of_logits, weights_of_targets
from verify.groups import PreferenceGroup
from verify.model_holder import ModelHolder
from verify.models.request import ModelRequest
from verify.objective import Objective, Preference
from verify.subject import Support
from verify.subjects.hf_position_ids import HfPositionIdsSubject
from verify.subjects.packed import PackedSubject
from verify.tolerance import Policy
from verify.verdict import Verdict

Groups = Sequence[PreferenceGroup]
Put = Callable[..., dict[str, Finding]]
IGNORED, PAD = -100, 0


@dataclass(frozen=True)
class Example:
    """One sequence: its tokens, which of them are learned, and where the completion begins."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]
    start: int


@dataclass(frozen=True)
class Batch:
    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    attended: Tensor
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Trainer:
    """The usual packed step: two examples to a row, labels shifted by one in the row; shows no rows of its own."""

    fault: str = ""
    returns_logps: bool = False
    differentiable: bool = True
    name: str = "trainer"
    takes: tuple[str, ...] = ("examples",)

    def supports_gradients(self, model: Any) -> Support:
        return Support(self.differentiable, "" if self.differentiable else "forward only")

    def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
        examples, batch = self.examples(groups), self.batch(groups)
        logps = self.logits(model, batch).log_softmax(-1)
        found = []
        for example, (row, first) in zip(examples, batch.places, strict=True):
            predictors = slice(first + example.start - 1, first + len(example.ids) - 1)
            completion = torch.tensor(example.ids[example.start :])
            found.append(logps[row, predictors].gather(1, completion[:, None])[:, 0])
        return found

    def loss(self, model: Any, groups: Groups, objective: Objective) -> Any:
        batch = self.batch(groups)
        logits, labels = self.logits(model, batch)[:, :-1], batch.labels[:, 1:]
        losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        if self.fault == "all-tokens-in-the-denominator":
            loss = losses.sum() / (batch.input_ids != PAD).sum()
        elif self.fault == "mean-of-means":
            loss = torch.stack(
                [row.sum() / (of != IGNORED).sum() for row, of in zip(losses, labels, strict=True)]
            ).mean()
        elif (objective.name == "sft-token-mean") != (self.fault == "the-other-mean"):
            loss = losses.sum() / (labels != IGNORED).sum()
        else:
            loss = torch.stack(self.means(losses, labels, groups, batch)).mean()
        output = {"loss": loss}
        if self.returns_logps:
            output["per_token_logps"] = self.per_token_logps(model, groups)
        return SimpleNamespace(**output)

    def means(self, losses: Tensor, labels: Tensor, groups: Groups, batch: Batch) -> list[Tensor]:
        found = []
        for example, (row, first) in zip(self.examples(groups), batch.places, strict=True):
            slots = slice(max(first - 1, 0), first + len(example.ids) - 1)
            found.append(losses[row, slots].sum() / (labels[row, slots] != IGNORED).sum())
        return found

    def examples(self, groups: Groups) -> list[Example]:
        examples = []
        for group in groups:
            for k, ids in enumerate(group.completions):
                learned = [place in group.supervised[k] for place in range(len(ids))]
                if self.fault == "end-not-learned":
                    learned[group.supervised[k][-1]] = False
                if self.fault == "user-turns-learned":
                    learned = [True] * len(ids)
                if self.fault == "shared-turn-learned-once" and k:
                    learned[0] = False
                start = len(group.prompt_ids)
                examples.append(Example(group.prompt_ids + ids, (False,) * start + tuple(learned), start))
        return examples

    def batch(self, groups: Groups) -> Batch:
        examples = self.examples(groups)
        rows = [examples[first : first + 2] for first in range(0, len(examples), 2)]
        width = max(sum(len(example.ids) for example in row) for row in rows)
        ids = torch.full((len(rows), width), PAD)
        labels, positions = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
        attended, places = torch.eye(width, dtype=torch.bool).repeat(len(rows), 1, 1), []
        for b, row in enumerate(rows):
            start = 0
            for example in row:
                slots = slice(start, start + len(example.ids))
                ids[b, slots] = torch.tensor(example.ids)
                learned = torch.tensor(example.learned)
                if self.fault == "boundary-learned":
                    learned[0] = True
                labels[b, slots] = torch.where(learned, ids[b, slots], IGNORED)
                positions[b, slots] = torch.arange(len(example.ids))
                attended[b, slots, slots] = torch.ones(len(example.ids), len(example.ids), dtype=torch.bool).tril()
                places.append((b, start))
                start += len(example.ids)
            if self.fault == "padding-learned":
                labels[b, start:] = PAD
        if self.fault == "positions-run-on":
            positions = torch.arange(width).expand_as(ids)
        if self.fault == "causal-mask-only":
            attended = torch.ones(len(rows), width, width, dtype=torch.bool).tril()
        if self.fault == "padding-attended":
            attended[:, :, -1] = True
        return Batch(ids, labels, positions, attended, tuple(places))

    def logits(self, model: Any, batch: Batch) -> Tensor:
        output = model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.attended[:, None],
            use_cache=False,
        )  # fmt: skip
        logits: Tensor = output.logits
        return logits


NOT_ITS = {"row-map": "no packed_rows", "own-objective": "returns no log-probs with its loss"}


def test_an_honest_trainer_that_shows_nothing_of_itself_passes(put: Put) -> None:
    findings = {name: f for name, f in put(Trainer()).items() if "takes examples" not in f.reason}
    for name, finding in findings.items():
        if name in NOT_ITS:
            assert (finding.verdict, NOT_ITS[name] in finding.reason) == (Verdict.NOT_APPLICABLE, True)
        else:
            assert (finding.verdict, finding.reason) == (Verdict.PASS, ""), name
    assert put(Trainer(returns_logps=True))["own-objective"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("causal-mask-only", "no-cross-attention",
         "rewriting the example of group 0, chosen: group 1, positive 0, token 0 changed, though it sees none of them"),
        ("boundary-learned", "no-boundary-target",
         "group 1, prompt, token 0 is a target by the gradient of the loss at the logits"),
        ("boundary-learned", "same-number-of-targets", "group 0, chosen, token 0 counts 0.895 times"),
        ("end-not-learned", "no-boundary-target", "the last that is supervised, is no target by the gradient"),
        ("user-turns-learned", "no-boundary-target", "which nobody learns, changes the loss"),
        ("user-turns-learned", "same-number-of-targets", "group 0, chosen, token 0 counts 0.773 times"),
        ("padding-learned", "no-padding-in-loss", "slots of padding changes the loss"),
        ("padding-learned", "same-number-of-targets", "group 0, chosen, token 0 counts 0.81 times"),
        ("padding-attended", "no-padding-in-loss", "slots of padding changes the loss"),
        ("positions-run-on", "positions-as-unpacked", "group 2, chosen, token 2, predicted"),
        ("shared-turn-learned-once", "same-number-of-targets", "group 0, chosen, token 0 counts 1.06 times"),
        ("all-tokens-in-the-denominator", "same-number-of-targets", "group 0, chosen, token 0 counts 0.567 times"),
        ("all-tokens-in-the-denominator", "normalisation", "groups in turn is"),
        ("mean-of-means", "same-number-of-targets", "group 0, chosen, token 0 counts 1.06 times"),
        ("mean-of-means", "normalisation", "the loss of"),
        ("the-other-mean", "normalisation", "the loss of"),
    ],
)  # fmt: skip
def test_what_a_trainer_breaks_is_seen_by_the_check_of_that_name(fault: str, check: str, words: str, put: Put) -> None:
    finding = put(Trainer(fault))[check]
    assert finding.verdict is Verdict.FAIL
    assert words in finding.reason
    assert finding.ratio > 10


@pytest.mark.parametrize("fault", ["boundary-learned", "the-other-mean", "mean-of-means", "end-not-learned"])
def test_a_loss_with_other_terms_or_another_mean_is_not_that_of_its_own_log_probs(fault: str, put: Put) -> None:
    finding = put(Trainer(fault, returns_logps=True))["own-objective"]
    assert finding.verdict is Verdict.FAIL
    assert "but its own log-probs make it" in finding.reason


@pytest.mark.parametrize("fault", ["the-other-mean", "mean-of-means"])
@pytest.mark.parametrize("case", ["distinct-examples", "examples-weighed-alike"])
def test_one_mean_is_not_taken_for_the_other(fault: str, case: str, put: Put) -> None:
    """Like is compared with like: of two means each is right under its own name and wrong under the other."""

    @dataclass(frozen=True)
    class OnOneCase(Trainer):
        def supports(self, asked: Any) -> Support:
            return Support(asked.name == case, "another case")

    assert put(OnOneCase())["normalisation"].verdict is Verdict.PASS
    assert put(OnOneCase(fault))["normalisation"].verdict is Verdict.FAIL


def test_of_a_trainer_without_gradients_or_rows_the_targets_are_not_seen(put: Put) -> None:
    findings = put(Trainer(differentiable=False))
    for check in ("no-boundary-target", "same-number-of-targets"):
        assert findings[check].verdict is Verdict.NOT_APPLICABLE
        assert "its targets cannot be seen" in findings[check].reason
    assert findings["no-cross-attention"].verdict is Verdict.PASS
    assert put(Trainer("causal-mask-only", differentiable=False))["no-cross-attention"].verdict is Verdict.FAIL


def test_where_no_padding_was_fed_that_is_said(put: Put) -> None:
    finding = put(PackedSubject(backend="dense-sdpa", segments="block-diagonal", takes=("examples",)))
    assert finding["no-padding-in-loss"].verdict is Verdict.NOT_APPLICABLE
    assert "every slot held a token of the case" in finding["no-padding-in-loss"].reason


TINY = {"vocab_size": 97, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        (transformers.LlamaConfig(**TINY), 1.0),
        (transformers.Cohere2Config(**TINY, logit_scale=0.0625), 0.0625),
        (transformers.GraniteConfig(**TINY, logits_scaling=8.0), 0.125),
        (transformers.Gemma2Config(**TINY, head_dim=8, num_key_value_heads=2, final_logit_softcapping=0.01), None),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_scale_of_logits_is_what_the_model_multiplies_its_head_with(
    config: Any, scale: float | None, dtype: torch.dtype
) -> None:
    config.tie_word_embeddings = False
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    found = scale_of_logits(model)
    assert (found is None) == (scale is None)
    assert scale is None or found == pytest.approx(scale, rel=2 * float(torch.finfo(dtype).eps))


def test_targets_are_counted_where_logits_are_a_multiple_of_what_the_head_gives(policy: Policy) -> None:
    holder = ModelHolder(ModelRequest(name="tiny-cohere2"), "float64")
    objective = holder.with_reference(Preference())
    setting = measure_setting(
        [SAME_NUMBER_OF_TARGETS], holder, dtype="float64", objective=objective, policy=policy, seed=0
    )
    for subject, verdict in ((Trainer(), Verdict.PASS), (Trainer("user-turns-learned"), Verdict.FAIL)):
        (finding,) = run_checks(subject, [SAME_NUMBER_OF_TARGETS], setting, holder)
        assert finding.verdict is verdict, finding.reason


LEAKING = (
    HfPositionIdsSubject(cache="default"),
    HfPositionIdsSubject(mask="ones"),
    HfPositionIdsSubject(rows="several-rows", mask="padding"),
)


@pytest.mark.parametrize("subject", LEAKING, ids=lambda subject: subject.name)
def test_examples_that_transformers_does_not_isolate_are_caught(subject: HfPositionIdsSubject, put: Put) -> None:
    assert put(subject)["no-cross-attention"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("check", "alter", "words"),
    [
        ("no-boundary-target",
         lambda rows: replace(rows, supervised=torch.cat((rows.supervised, torch.tensor([[0, 0, 10, 9]])))),
         "group 1, prompt, token 0 is a target by the rows that it shows"),
        ("no-boundary-target", lambda rows: replace(rows, supervised=rows.supervised[:-1]),
         "the last that is supervised, is no target by the rows"),
        ("same-number-of-targets", lambda rows: replace(rows, supervised=rows.supervised[1:]),
         "group 0, chosen, token 0 counts 0 times by the rows that it shows; it should 1 times"),
        ("positions-as-unpacked", lambda rows: replace(rows, position_ids=rows.position_ids + 1),
         "token 0 of its path is at position 1"),
    ],
)  # fmt: skip
def test_rows_that_say_otherwise_are_caught_too(check: str, alter: Callable[[Any], Any], words: str, put: Put) -> None:
    honest = PackedSubject(backend="dense-sdpa", segments="block-diagonal", takes=("examples",))

    class Shown:
        name, takes = "shown", ("examples",)

        def per_token_logps(self, model: Any, groups: Groups) -> list[Tensor]:
            return honest.per_token_logps(model, groups)

        def packed_rows(self, groups: Groups) -> Any:
            return alter(honest.packed_rows(groups))

    finding = put(Shown())[check]
    assert finding.verdict is Verdict.FAIL
    assert words in finding.reason


def test_a_shared_turn_is_a_target_of_each_example_that_holds_it(cases: CheckCases) -> None:
    case = cases.by_name["distinct-examples"]
    rollouts = case.groups[1]
    times = expected_targets(case)
    assert [times.get(token) for token in rollouts.completions[0][:4]] == [2, 2, None, 1]
    assert sum(times.values()) == case.num_completion_tokens


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_read_off_the_gradient_of_any_weighted_sum(seed: int) -> None:
    """Three slots: none, one and two targets. The gradient is that of autograd."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 50, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
    logps = logits.log_softmax(-1)
    (-weights[0] * logps[1, 7] - weights[1] * logps[2, 3] - weights[2] * logps[2, 40]).backward()
    assert logits.grad is not None
    read = weights_of_targets(logits.detach(), logits.grad)
    assert read is not None
    assert [token for token, _ in read] == [7, 3, 40]
    assert [weight for _, weight in read] == pytest.approx(weights.tolist(), rel=1e-9)


def test_a_gradient_of_something_else_shows_no_targets() -> None:
    assert weights_of_targets(torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 1.0, -0.5]])) is None
    assert weights_of_targets(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 0.0, 0.0]])) == []

"""TRL's own loss code on given log-probs, against the oracle's and the packed implementation's objectives.

TRL's trainer is not built: its ``_compute_loss`` is called with a model that answers with our log-probs, so that what
is compared is the arithmetic of the objective alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_impl.preference import preference_terms
from verify.groups import PreferenceGroup
from verify.objective import Preference, PreferenceName
from verify.subjects.oracle import apply_objective

dpo_trainer = pytest.importorskip("trl.trainer.dpo_trainer", reason="TRL is not installed: the extra 'trl' has it")

LENGTHS = ((3, 5), (1, 7), (6, 2))
"""Tokens of chosen and rejected of each pair; the prompt has two."""
PROMPT = 2


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    counts = [count for pair in LENGTHS for count in pair]
    return [torch.randn(count, generator=generator, dtype=torch.float64) - 2 for count in counts]


def padded(values: list[Tensor], fill: float) -> Tensor:
    """One row for each completion, chosen ones first, with the places that predict the prompt in front."""
    longest = max(map(len, values))
    ordered = values[0::2] + values[1::2]
    return torch.stack(
        [
            torch.cat(
                (
                    value.new_full((PROMPT - 1,), fill),
                    value,
                    value.new_full((longest - len(value),), fill),
                )
            )
            for value in ordered
        ]
    )


def trl_loss(
    logps: list[Tensor], refs: list[Tensor], names: list[str], weights: list[float], **settings: float
) -> Tensor:
    """The loss as TRL computes it."""
    log_probs = padded(logps, 0.0)
    mask = torch.cat((torch.zeros(len(log_probs), 1), padded([torch.ones_like(v) for v in logps], 0.0)), 1).long()
    outputs = SimpleNamespace(
        log_probs=log_probs,
        entropy=torch.zeros_like(log_probs),
        mean_logits=torch.zeros_like(log_probs),
        is_top1=torch.zeros_like(log_probs, dtype=torch.bool),
    )
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather_for_metrics=lambda v: v, gather=lambda v: v)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=names,
        loss_weights=weights,
        use_weighting=False,
        _metrics={"eval": _Lists()},
        _total_train_tokens=0,
        _tp_size=1,
        **settings,
    )
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": torch.stack([ref.sum() for ref in refs[0::2]]),
        "ref_rejected_logps": torch.stack([ref.sum() for ref in refs[1::2]]),
    }
    loss: Tensor = dpo_trainer.DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    return loss


class _Lists(dict[str, list[Any]]):
    def __missing__(self, key: str) -> list[Any]:
        return self.setdefault(key, [])


def gradients(loss: Tensor, leaves: list[Tensor]) -> Tensor:
    return torch.cat(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("seed", [42, 43, 44])
@pytest.mark.parametrize("beta", [0.1, 2.0])
@pytest.mark.parametrize("name", ["sigmoid", "robust", "hinge", "ipo", "sigmoid_norm"])
def test_trl_gives_the_same_loss_and_gradient(name: PreferenceName, beta: float, seed: int) -> None:
    leaves, refs = [value.requires_grad_() for value in drawn(seed)], drawn(seed + 100)
    smoothing = 0.2 if name == "robust" else 0.0
    objective = Preference(name=name, beta=beta, label_smoothing=smoothing)
    groups = [PreferenceGroup((0,) * PROMPT, ((1,) * chosen,), ((2,) * rejected,)) for chosen, rejected in LENGTHS]

    theirs = trl_loss(leaves, refs, [name], [1.0], beta=beta, label_smoothing=smoothing)
    oracle = apply_objective(leaves, refs, groups, objective).loss
    sums, ref_sums = (torch.stack([value.sum() for value in values]) for values in (leaves, refs))
    packed = preference_terms(
        sums, ref_sums, torch.tensor([len(value) for value in leaves]), [(1, 1)] * len(groups),
        objective=name, beta=beta, label_smoothing=smoothing,
    ).loss  # fmt: skip

    expected = gradients(theirs, leaves)
    assert float(expected.norm()) > 0
    for ours in (oracle, packed):
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-12)
        torch.testing.assert_close(gradients(ours, leaves), expected, rtol=1e-10, atol=1e-14)


def test_trls_rpo_is_ours_where_chosen_responses_are_of_one_length() -> None:
    """Its likelihood term is the mean over the chosen tokens of a batch, ours the mean over responses of theirs."""
    generator = torch.Generator().manual_seed(1)
    logps, refs = (
        [torch.randn(count, generator=generator, dtype=torch.float64) - 2 for count in (4, 2, 4, 5)] for _ in range(2)
    )
    groups = [PreferenceGroup((0,) * PROMPT, ((1,) * 4,), ((2,) * rejected,)) for rejected in (2, 5)]
    theirs = trl_loss(logps, refs, ["sigmoid", "sft"], [1.0, 0.5], beta=0.1, label_smoothing=0.0)
    ours = apply_objective(logps, refs, groups, Preference(name="rpo", nll_weight=0.5)).loss
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    uneven = [PreferenceGroup((0,) * PROMPT, ((1,) * c,), ((2,) * r,)) for c, r in LENGTHS]
    theirs = trl_loss(drawn(1), drawn(2), ["sigmoid", "sft"], [1.0, 0.5], beta=0.1, label_smoothing=0.0)
    ours = apply_objective(drawn(1), drawn(2), uneven, Preference(name="rpo", nll_weight=0.5)).loss
    assert abs(float(ours - theirs)) > 1e-3

"""The frozen model of a sharded run stays frozen, or the run says that it did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from torch import nn, ones

from verify.frozen_policy import SeparateModel
from verify.sharded.models import PolicyAndFrozen

TRAINS_FROZEN = '''
import torch
from torch.nn.functional import logsigmoid
from types import SimpleNamespace


class TrainsFrozen:
    """Sends gradients through the frozen model, which is to have none; those of the policy are right."""

    name = "trains-frozen"
    layout = "unpacked"
    references = ("separate-model",)

    def per_token_logps(self, model, groups):
        rows = [(g.prompt_ids, ids) for g in groups for ids in (*g.positives, *g.negatives)]
        width = max(len(prompt) + len(ids) for prompt, ids in rows)
        padded = torch.tensor([[*prompt, *ids] + [0] * (width - len(prompt) - len(ids)) for prompt, ids in rows])
        logps = model(input_ids=padded, use_cache=False).logits.log_softmax(-1)
        return [
            of_row[len(prompt) - 1 : len(prompt) + len(ids) - 1].gather(-1, torch.tensor(ids)[:, None])[:, 0]
            for of_row, (prompt, ids) in zip(logps, rows)
        ]

    def loss(self, model, groups, objective):
        frozen = objective.reference.model
        with torch.enable_grad():
            frozen.requires_grad_(True)
            refs = self.per_token_logps(frozen, groups)
        logps = self.per_token_logps(model, groups)
        rewards = [objective.beta * (logp.sum() - ref.sum()) for logp, ref in zip(logps, refs)]
        losses = [-logsigmoid(rewards[2 * k] - rewards[2 * k + 1]) for k in range(len(groups))]
        return SimpleNamespace(
            loss=torch.stack(losses).mean(), rewards=[reward.detach() for reward in rewards],
            per_token_logps=logps, ref_per_token_logps=refs,
        )
'''


def test_a_frozen_weight_that_requires_grad_or_has_one_is_named() -> None:
    frozen = nn.Linear(2, 1).requires_grad_(False)
    models = PolicyAndFrozen(nn.Linear(2, 1), SeparateModel(frozen))
    assert models.trained_though_frozen() == ()
    frozen.bias.requires_grad_(True)
    frozen.weight.grad = ones(1, 2)
    assert models.trained_though_frozen() == ("weight", "bias")
    assert PolicyAndFrozen(frozen).trained_though_frozen() == ()


def test_a_subject_that_trains_the_frozen_model_is_no_pass(tmp_path: Path) -> None:
    """The policy's gradients are right, and so are all values."""
    (tmp_path / "subject.py").write_text(TRAINS_FROZEN, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "verify", "sharded", "--quiet", "--train", "all", "--layers", "1",
            "--case", "balanced", "--dtype", "float32", "--subject", f"{tmp_path / 'subject.py'}:TrainsFrozen",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "subject trains-frozen trains the frozen model: model.embed_tokens.weight requires grad" in done.stderr

"""Faults between logits and log-probs.

Shape letters: N targets, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from verify.cases import CASE_KINDS
from verify.faults.conditions import BRANCH_OF_TWO, MORE_THAN_64_TOKENS, RAGGED_CHUNK
from verify.faults.fault import ROUNDING_IN_BFLOAT16, Fault
from verify.faults.stages import TokenLogps

_CHUNK = 64
_IN_BFLOAT16 = "bfloat16: the model's own rounding is as large"


def in_bfloat16(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-softmax computed and kept in bfloat16."""
    low = torch.log_softmax(logits.to(torch.bfloat16), dim=-1)
    return low.gather(-1, token_ids[:, None])[:, 0].to(logits.dtype)


def forward_in_bfloat16(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """The loss sees logits in bfloat16, the backward pass those in full precision."""
    exact = honest(logits, token_ids)
    return exact + (honest(logits.to(torch.bfloat16).to(logits.dtype), token_ids) - exact).detach()


def backward_in_bfloat16(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """The loss sees logits in full precision, the backward pass recomputes probabilities from bfloat16."""
    rounded = honest(logits + (logits.to(torch.bfloat16).to(logits.dtype) - logits).detach(), token_ids)
    return rounded + (honest(logits, token_ids) - rounded).detach()


def last_bit_at_random(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """A reduction whose order differs from call to call."""
    logps = honest(logits, token_ids)
    return logps * (1 + torch.finfo(logps.dtype).eps * torch.randint(-1, 2, logps.shape).to(logps))


def temperature(value: float, honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """Logits divided by the temperature of generation."""
    return honest(logits / value, token_ids)


def soft_cap(value: float, honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """Logits capped, though the model has no cap."""
    return honest(value * torch.tanh(logits / value), token_ids)


def epsilon_in_log(value: float, honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """``log(p + epsilon)``."""
    return torch.log(honest(logits, token_ids).exp() + value)


def rolled_right(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probs rolled by one: the first entry is the last one of the row."""
    return honest(logits, token_ids).roll(1)


def labels_of_first_chunk(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """Later chunks of logits are held against the labels of the first."""
    return honest(logits, token_ids[torch.arange(len(token_ids)) % _CHUNK])


def last_chunk_lost(honest: TokenLogps, logits: Tensor, token_ids: Tensor) -> Tensor:
    """A loop over whole chunks: what is left over stays 0."""
    whole = len(token_ids) // _CHUNK * _CHUNK
    logps = honest(logits, token_ids)
    return torch.cat((logps[:whole], 0 * logps[whole:]))


FAULTS = (
    Fault(
        name="log-softmax-in-bfloat16",
        stage="token_logps",
        replacement=in_bfloat16,
        what="Log-softmax is computed and kept in bfloat16.",
        imitates=("A61", "A45"),
        signature="all tokens off by up to 0.4 %, unlikely ones most; accuracies unchanged",
        invisible_where=_IN_BFLOAT16,
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="logits-in-bfloat16-forward",
        stage="token_logps",
        replacement=forward_in_bfloat16,
        what="The loss sees logits in bfloat16, the backward pass those in full precision.",
        imitates=("A60",),
        signature="all log-probs off by rounding of logits; gradients off by the coefficient only",
        invisible_where=_IN_BFLOAT16,
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="logits-in-bfloat16-backward",
        stage="token_logps",
        replacement=backward_in_bfloat16,
        what="The loss is exact, its backward pass recomputes probabilities from bfloat16 logits.",
        imitates=("A60", "A54"),
        bites_where=BRANCH_OF_TWO,
        signature="log-probs and loss exact; all gradients off by a part in a hundred to a thousand",
        invisible_where="forward quantities; two one-token responses, whose probabilities cancel; " + _IN_BFLOAT16,
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="temperature-applied",
        stage="token_logps",
        replacement=partial(temperature, 0.9),
        what="Logits are divided by the temperature of generation, 0.9.",
        imitates=("A52",),
        signature="all tokens off by a tenth",
    ),
    Fault(
        name="logits-soft-capped",
        stage="token_logps",
        replacement=partial(soft_cap, 30.0),
        what="Logits pass a soft cap of 30 that the model does not have.",
        imitates=("A52",),
        signature="tokens with large logits off",
        invisible_where="small logits; " + _IN_BFLOAT16,
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="epsilon-inside-log",
        stage="token_logps",
        replacement=partial(epsilon_in_log, 1e-6),
        what="log(p + 1e-6) instead of log p.",
        imitates=("A61",),
        signature="unlikely tokens off: by 1e-6 / p",
        invisible_where="likely tokens; " + _IN_BFLOAT16,
        dtypes=ROUNDING_IN_BFLOAT16,
    ),
    Fault(
        name="log-probs-rolled",
        stage="token_logps",
        replacement=rolled_right,
        what="Log-probs are rolled right by one, so that the first entry wraps around.",
        imitates=("A26", "A27"),
        signature="values right as a set, moved by one; sums off by the ends",
    ),
    Fault(
        name="labels-of-first-chunk",
        stage="token_logps",
        replacement=labels_of_first_chunk,
        what=f"Logits go through in chunks of {_CHUNK}, labels stay those of the first chunk.",
        imitates=("A57",),
        kinds=CASE_KINDS,
        bites_where=MORE_THAN_64_TOKENS,
        signature="the first chunk exact, later ones off by nats",
        invisible_where="one chunk holds all tokens",
    ),
    Fault(
        name="last-chunk-lost",
        stage="token_logps",
        replacement=last_chunk_lost,
        what=f"A loop over whole chunks of {_CHUNK} leaves the rest at 0.",
        imitates=("A69",),
        kinds=CASE_KINDS,
        bites_where=RAGGED_CHUNK,
        signature="the last tokens of the batch have log-prob 0",
        invisible_where=f"multiples of {_CHUNK} tokens",
    ),
    Fault(
        name="last-bit-differs-from-call-to-call",
        stage="token_logps",
        replacement=last_bit_at_random,
        what="Log-probs are reduced in an order that differs from call to call, on a CPU, where nothing forces it.",
        signature="all values within their budgets; the same call twice differs in the last bit",
        invisible_where="values: they move by less than rounding may",
        must_kill=("repeat",),
    ),
)

"""The unpacked path as a subject: the witness, and its harmless variations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl import pairwise
from reference_impl.pairwise import Batching, RowOrder
from verify.cases import CASE_KINDS, CaseKind
from verify.groups import PreferenceGroup
from verify.router_balance import experts_per_token
from verify.subject import Support
from verify.subjects.attention import attention_set_to, gradients_under
from verify.subjects.routed import RoutedLogps, routed


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseSubject:
    """The ordinary unpacked computation on the model itself.

    Args:
        name: Name in reports.
        attention: transformers attention implementation, "sdpa" or "eager".
        batching: One row per completion, or all completions in one padded batch.
        junk_tokens_in_front: Masked-out tokens before each row.
        positions_run_on: Positions count on from what may stand before a sequence in a packed row, instead of from 0.
        extra_padding: Padding beyond the longest row.
        row_order: Order of rows in a padded batch.
    """

    name: str
    attention: str = "sdpa"
    batching: Batching = "row-per-sequence"
    junk_tokens_in_front: int = 0
    positions_run_on: bool = False
    extra_padding: int = 0
    row_order: RowOrder = "given"
    layout: str = "unpacked"
    takes: tuple[CaseKind, ...] = CASE_KINDS

    def supports_gradients(self, model: Any) -> Support:
        """Whether the attention implementation is there when layers are run again."""
        return gradients_under(model, self.attention)

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Log-probs of every completion, unpacked."""
        with attention_set_to(model, self.attention):
            return pairwise.per_token_logps(model, groups, **self._form(groups))

    def routed_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> RoutedLogps:
        """Log-probs of every completion and the loss of routers over all tokens, in one unpacked pass."""
        with attention_set_to(model, self.attention):
            found = pairwise.routed_logps(model, groups, **self._form(groups))
        return routed(found.per_token_logps, found.router_scores, experts_per_token(model))

    def rewards(self, model: Any, groups: Sequence[PreferenceGroup]) -> list[Tensor]:
        """Rewards of every completion by a reward model, unpacked."""
        with attention_set_to(model, self.attention):
            return pairwise.rewards(model, groups, **self._form(groups))

    def _form(self, groups: Sequence[PreferenceGroup]) -> pairwise.Form:
        return pairwise.Form(
            batching=self.batching,
            junk_tokens_in_front=self.junk_tokens_in_front,
            first_position=self._first_position(groups),
            extra_padding=self.extra_padding,
            row_order=self.row_order,
        )

    def _first_position(self, groups: Sequence[PreferenceGroup]) -> int:
        """The last slot at which a tree may start where all groups share a row: behind all others and the junk."""
        if not self.positions_run_on:
            return 0
        trees = [len(group.prompt_ids) + sum(map(len, group.completions)) for group in groups]
        return self.junk_tokens_in_front + sum(trees) - min(trees)


WITNESS = PairwiseSubject(name="pairwise")

VARIATIONS: dict[str, PairwiseSubject] = {
    variation.name: variation
    for variation in (
        PairwiseSubject(name="eager", attention="eager"),
        PairwiseSubject(name="padded-right", batching="padded-right", extra_padding=7),
        PairwiseSubject(name="padded-left", batching="padded-left", extra_padding=3, row_order="reversed"),
        # As in a row whose positions are slots: under rotary attention another start moves nothing but rounding.
        PairwiseSubject(name="junk-in-front", junk_tokens_in_front=50, positions_run_on=True),
        PairwiseSubject(name="repeat"),
    )
}


def default_variations(device: str) -> tuple[str, ...]:
    """The variations that run unless others are asked for.

    A repeat of the witness shows what differs from run to run: additions in another order on an accelerator. On a CPU
    two runs agree to the last bit, so there it would measure nothing.

    Args:
        device: A torch device, e.g. "cpu" or "cuda".

    Returns:
        Names of ``VARIATIONS``.
    """
    return tuple(name for name in VARIATIONS if name != "repeat" or torch.device(device).type != "cpu")

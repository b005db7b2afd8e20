"""Log-probs of completion tokens from the hidden states of their predictors only.

The model's own forward runs as it is, wrappers and hooks included (PEFT, FSDP); on the way into the output head the
hidden states are narrowed from all slots to the predictors, so the head never sees a slot whose logits nobody needs.

Shape letters: B rows, T slots of a row, C completion tokens, c those of one chunk, D model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from packed_impl.attention import causal_lm
from packed_impl.layout import PackedLayout

DEFAULT_LOGIT_CHUNK = 1024


class _HeadTap:
    """Narrows the input of the output head to the first chunk of predictors and keeps what passes by."""

    def __init__(self, rows_C: Tensor, slots_C: Tensor, chunk: int) -> None:
        self._rows_C, self._slots_C, self._chunk = rows_C, slots_C, chunk
        self.hidden_chunks: tuple[Tensor, ...] | None = None
        self.first_logits: Tensor | None = None

    def narrow(self, head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        if self.hidden_chunks is not None:
            raise ValueError("the model called its output head twice in one forward pass: expected one call")
        (hidden_BTD,) = args
        self.hidden_chunks = torch.split(hidden_BTD[self._rows_C, self._slots_C], self._chunk)
        return (self.hidden_chunks[0][None],)

    def keep(self, head: nn.Module, args: object, logits_1cV: Tensor) -> None:
        self.first_logits = logits_1cV


def completion_logps(
    model: nn.Module, layout: PackedLayout, model_kwargs: Mapping[str, object], *, logit_chunk: int
) -> Tensor:
    """Log-probs of all completion tokens of a packed layout.

    ``log softmax(logits at the predictor of y_t)[y_t]``, in float32, or float64 where the logits are float64. The
    first chunk of predictors goes through the model's forward to its end, so that a scaling or capping of the logits
    takes part. Later chunks go through the head alone and are computed again in the backward pass.

    Args:
        model: The causal LM, wrapped or not, with the attention of a backend switched on.
        layout: The packed rows.
        model_kwargs: What the backend adds to the model call.
        logit_chunk: Number of predictors whose logits exist at one time (twice that many while gradients are needed).

    Returns:
        Log-probs in the order of the layout's maps; [C].

    Raises:
        ValueError: A chunk below 1, a model without an output head, or, with several chunks, one that changes the
            logits after its head.
    """
    if logit_chunk < 1:
        raise ValueError(f"logit_chunk is {logit_chunk}: at least one predictor has to fit")
    language_model = causal_lm(model)
    head = language_model.get_output_embeddings()
    device = language_model.device
    tap = _HeadTap(layout.token_rows.to(device), layout.predictor_slots.to(device), logit_chunk)
    with ExitStack() as hooks:
        hooks.callback(head.register_forward_pre_hook(tap.narrow).remove)
        hooks.callback(head.register_forward_hook(tap.keep).remove)
        output = model(
            input_ids=layout.input_ids.to(device),
            position_ids=layout.position_ids.to(device),
            use_cache=False,
            **model_kwargs,
        )
    if tap.hidden_chunks is None or tap.first_logits is None:
        raise ValueError(f"{type(language_model).__name__} did not call its output head: log-probs need its logits")

    ids_chunks = torch.split(layout.token_ids.to(device), logit_chunk)
    first, *rest = zip(tap.hidden_chunks, ids_chunks, strict=True)
    if rest and not torch.equal(output.logits.to(tap.first_logits.dtype), tap.first_logits):
        raise ValueError(
            f"{type(language_model).__name__} changes the logits after its output head, which chunks would miss: "
            f"set logit_chunk to at least {len(layout.token_rows)}, the number of completion tokens"
        )
    logps = [_picked_logps(output.logits[0], first[1])]
    for hidden_cD, ids_c in rest:
        logps.append(checkpoint(_head_logps, head, hidden_cD, ids_c, use_reentrant=False))
    return torch.cat(logps)


def _head_logps(head: nn.Module, hidden_cD: Tensor, ids_c: Tensor) -> Tensor:
    return _picked_logps(head(hidden_cD[None])[0], ids_c)


def _picked_logps(logits_cV: Tensor, ids_c: Tensor) -> Tensor:
    dtype = torch.float64 if logits_cV.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits_cV, dim=-1, dtype=dtype).gather(-1, ids_c[:, None])[:, 0]

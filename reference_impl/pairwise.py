"""The unpacked witness: the ordinary computation on the model it is given, in that model's own dtype.

Every completion sits behind its own copy of the prompt, in a row of its own. What may vary is what nobody would
worry about: how many rows run at once, on which side they are padded and by how much, what lies in the padding, and
in which order they come. The spread over these variations is a fair measure of the noise of the unpacked path.

Legend: B rows, T columns, P predictor places, V vocabulary, L layers with experts, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from reference_impl.groups import Group, UnpackedSequence, unpack
from reference_impl.images import check_images, pixel_values
from reference_impl.logps import target_logps

_Found = TypeVar("_Found")
Batching = Literal["row-per-sequence", "padded-left", "padded-right"]
RowOrder = Literal["given", "reversed"]


class Form(TypedDict, total=False):
    """What may vary in an unpacked pass.

    Args:
        batching: One forward call per sequence, or rows padded to one width on the left or on the right.
        junk_tokens_in_front: Tokens put before each sequence, hidden by the attention mask.
        first_position: Position of each sequence's first token. Rotary attention sees differences of positions only,
            but its angles are float32 in every dtype, so that another start rounds otherwise.
        extra_padding: Columns of padding beyond what the longest row needs.
        row_order: Whether the rows run as given or last first; the result keeps the given order either way.
        max_rows: Rows per padded batch; all in one if None.
        pad_id: Token id of padding.
        junk_id: Token id of junk.
    """

    batching: Batching
    junk_tokens_in_front: int
    first_position: int
    extra_padding: int
    row_order: RowOrder
    max_rows: int | None
    pad_id: int
    junk_id: int


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows of one width, ready for a causal language model.

    Args:
        input_ids: Token ids, int64, [B, T].
        attention_mask: 1 on tokens of the sequence, 0 on padding and junk, int64, [B, T].
        position_ids: Counted on from the first token of the sequence; 0 elsewhere, int64, [B, T].
        starts: The column of each row's first token.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    starts: tuple[int, ...]


def per_token_logps(model: nn.Module, groups: Sequence[Group], **form: Unpack[Form]) -> list[Tensor]:
    """Log-probs of every completion token, supervised or not, by the model's ordinary, unpacked forward pass.

    Args:
        model: A transformers causal language model, adapted or not. Its attention implementation, its mode and
            its adapters are the caller's business.
        groups: The groups, of any kind.
        **form: What may vary.

    Returns:
        One differentiable 1-D tensor per completion, group by group, positives before negatives; float32, or
        float64 if the model computes in it.

    Raises:
        ValueError: An option that is unknown, negative or without meaning for the batching, or images that do not fit
            their prompt or the model.
    """
    return _by_batches(_batch_logps, model, groups, **form)


@dataclass(frozen=True, slots=True)
class Routed:
    """What one unpacked pass through a mixture of experts gives.

    Args:
        per_token_logps: As :func:`per_token_logps`.
        router_scores: What the routers make of each token before the softmax, prompt first: one [L, T, E] for each
            completion, differentiable, as the model gives them.
    """

    per_token_logps: list[Tensor]
    router_scores: list[Tensor]


def routed_logps(model: nn.Module, groups: Sequence[Group], **form: Unpack[Form]) -> Routed:
    """Log-probs of every completion token, and the scores of the routers in the same pass.

    Args:
        model: As in :func:`per_token_logps`, with routers that transformers knows (``output_router_logits``).
        groups: The groups, of any kind.
        **form: What may vary.

    Returns:
        Both, group by group, positives before negatives.

    Raises:
        ValueError: As :func:`per_token_logps`, or the model gives no scores of routers.
    """
    found = _by_batches(_batch_routed, model, groups, **form)
    return Routed([logps for logps, _ in found], [scores for _, scores in found])


def rewards(model: nn.Module, groups: Sequence[Group], **form: Unpack[Form]) -> list[Tensor]:
    """Rewards of every completion by a reward model's ordinary, unpacked forward pass.

    Args:
        model: A sequence classifier of transformers with one label and no padding token, adapted or not; its settings
            are the caller's business.
        groups: The groups, of any kind.
        **form: What may vary.

    Returns:
        One differentiable scalar per completion, group by group, positives before negatives; float32, or float64 if the
        model computes in it.

    Raises:
        ValueError: As :func:`per_token_logps`.
    """
    return _by_batches(_batch_rewards, model, groups, **form)


def _by_batches(
    of_batch: Callable[[nn.Module, Sequence[UnpackedSequence], PaddedBatch], list[_Found]],
    model: nn.Module,
    groups: Sequence[Group],
    *,
    batching: Batching = "row-per-sequence",
    junk_tokens_in_front: int = 0,
    first_position: int = 0,
    extra_padding: int = 0,
    row_order: RowOrder = "given",
    max_rows: int | None = None,
    pad_id: int = 0,
    junk_id: int = 1,
) -> list[_Found]:
    _check_options(batching, junk_tokens_in_front, first_position, extra_padding, row_order, max_rows)
    sequences = unpack(groups)
    config = getattr(model, "config", None)  # a wrapper may have none
    for index, sequence in enumerate(sequences):
        check_images(sequence.images, sequence.prompt_ids, sequence.completion_ids, config, f"sequence {index}")
    order = list(range(len(sequences)))
    if row_order == "reversed":
        order.reverse()
    rows_per_call = 1 if batching == "row-per-sequence" else max_rows or len(sequences)
    found: dict[int, _Found] = {}
    for first in range(0, len(order), rows_per_call):
        places = order[first : first + rows_per_call]
        rows = [sequences[place] for place in places]
        batch = padded_batch(
            rows,
            side="left" if batching == "padded-left" else "right",
            junk_tokens_in_front=junk_tokens_in_front,
            first_position=first_position,
            extra_padding=extra_padding,
            pad_id=pad_id,
            junk_id=junk_id,
        )
        found.update(zip(places, of_batch(model, rows, batch), strict=True))
    return [found[place] for place in range(len(sequences))]


def padded_batch(
    rows: Sequence[UnpackedSequence],
    *,
    side: Literal["left", "right"],
    junk_tokens_in_front: int = 0,
    first_position: int = 0,
    extra_padding: int = 0,
    pad_id: int = 0,
    junk_id: int = 1,
) -> PaddedBatch:
    """Lay sequences out in rows: padding left gives ``pad junk tokens``, padding right ``junk tokens pad``.

    Args:
        rows: The sequences, at least one.
        side: Where the padding goes.
        junk_tokens_in_front: Junk before each sequence.
        first_position: Position of each sequence's first token.
        extra_padding: Columns beyond the longest row.
        pad_id: Token id of padding.
        junk_id: Token id of junk.

    Returns:
        The batch, on the CPU.
    """
    width = max(len(row.ids) for row in rows) + junk_tokens_in_front + extra_padding
    input_ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    attention_mask, position_ids = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    starts = []
    for index, row in enumerate(rows):
        length = len(row.ids)
        start = width - length if side == "left" else junk_tokens_in_front
        input_ids[index, start - junk_tokens_in_front : start] = junk_id
        input_ids[index, start : start + length] = torch.tensor(row.ids)
        attention_mask[index, start : start + length] = 1
        position_ids[index, start : start + length] = first_position + torch.arange(length)
        starts.append(start)
    return PaddedBatch(input_ids, attention_mask, position_ids, tuple(starts))


def _batch_logps(model: nn.Module, rows: Sequence[UnpackedSequence], batch: PaddedBatch) -> list[Tensor]:
    return _logps_and_output(model, rows, batch, {})[0]


def _batch_routed(
    model: nn.Module, rows: Sequence[UnpackedSequence], batch: PaddedBatch
) -> list[tuple[Tensor, Tensor]]:
    logps, output = _logps_and_output(model, rows, batch, {"output_router_logits": True})
    of_layers = getattr(output, "router_logits", None)
    if not of_layers:
        raise ValueError("the model gives no scores of routers: it has to honour output_router_logits")
    shape = (len(of_layers), *batch.input_ids.shape, -1)
    scores_LBTE = torch.stack([scores.to(of_layers[0].device) for scores in of_layers]).reshape(shape)
    spans = zip(scores_LBTE.unbind(1), batch.starts, rows, strict=True)
    return list(zip(logps, [scores[:, start : start + len(row.ids)] for scores, start, row in spans], strict=True))


def _logps_and_output(
    model: nn.Module, rows: Sequence[UnpackedSequence], batch: PaddedBatch, asked: Mapping[str, object]
) -> tuple[list[Tensor], Any]:
    device = next(model.parameters()).device
    predictors = [[start + place for place in row.predictors] for row, start in zip(rows, batch.starts, strict=True)]
    # The head is applied to the same columns of every row, so those that any row needs.
    columns = sorted(set().union(*predictors))
    # Without a masked token this is the ordinary call on one sequence, in which no mask is passed at all.
    masked = bool((batch.attention_mask == 0).any())
    # Every row has its own copies of its images, one row after another, as the placeholders are found.
    images = [image for row in rows for image in row.images]
    seen = {"pixel_values": pixel_values(images, model)} if images else {}
    output = model(
        input_ids=batch.input_ids.to(device),
        attention_mask=batch.attention_mask.to(device) if masked else None,
        position_ids=batch.position_ids.to(device),
        use_cache=False,
        logits_to_keep=torch.tensor(columns, device=device),
        **seen,
        **asked,
    )
    logits_BPV: Tensor = output.logits
    if logits_BPV.shape[:2] != (len(rows), len(columns)):
        raise ValueError(
            f"the model returned logits of shape {tuple(logits_BPV.shape)} for {len(rows)} rows and "
            f"{len(columns)} columns to keep: it has to honour logits_to_keep"
        )
    kept = {column: index for index, column in enumerate(columns)}
    logps = []
    for index, (row, places) in enumerate(zip(rows, predictors, strict=True)):
        logits_PV = logits_BPV[index, torch.tensor([kept[place] for place in places], device=device)]
        # bfloat16 has three digits: the log-softmax needs at least float32.
        wide_PV = logits_PV if logits_PV.dtype == torch.float64 else logits_PV.to(torch.float32)
        logps.append(target_logps(wide_PV, row.completion_ids))
    return logps, output


def _batch_rewards(model: nn.Module, rows: Sequence[UnpackedSequence], batch: PaddedBatch) -> list[Tensor]:
    """The model's own output where a row is alone and ends with its completion, as transformers reads it.

    Of padded rows it would look for the last token that is not the padding token, and there is none that no completion
    may end in: there its head is given the last tokens.
    """
    device = next(model.parameters()).device
    masked = bool((batch.attention_mask == 0).any())
    inputs = {
        "input_ids": batch.input_ids.to(device),
        "attention_mask": batch.attention_mask.to(device) if masked else None,
        "position_ids": batch.position_ids.to(device),
        "use_cache": False,
    }
    last = torch.tensor([start + len(row.ids) - 1 for row, start in zip(rows, batch.starts, strict=True)])
    if last.tolist() == [batch.input_ids.shape[1] - 1]:
        scores_B = model(**inputs).logits[:, 0]
    else:
        unwrap = getattr(model, "get_base_model", None)
        classifier: Any = model if unwrap is None else unwrap()
        hidden_BTD = getattr(classifier, classifier.base_model_prefix)(**inputs).last_hidden_state
        scores_B = classifier.score(hidden_BTD[torch.arange(len(rows)), last.to(device)])[:, 0]
    return list((scores_B if scores_B.dtype == torch.float64 else scores_B.to(torch.float32)).unbind())


def _check_options(
    batching: str,
    junk_tokens_in_front: int,
    first_position: int,
    extra_padding: int,
    row_order: str,
    max_rows: int | None,
) -> None:
    batchings, orders = ("row-per-sequence", "padded-left", "padded-right"), ("given", "reversed")
    if batching not in batchings:
        raise ValueError(f"batching {batching!r}: expected one of {', '.join(batchings)}")
    if row_order not in orders:
        raise ValueError(f"row_order {row_order!r}: expected one of {', '.join(orders)}")
    if junk_tokens_in_front < 0 or first_position < 0 or extra_padding < 0:
        raise ValueError(
            f"{junk_tokens_in_front} junk tokens, first position {first_position} and {extra_padding} columns of "
            "padding: expected 0 or more"
        )
    if batching == "row-per-sequence" and (extra_padding or max_rows is not None):
        raise ValueError("extra_padding and max_rows belong to a padded batch: row-per-sequence has none")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}: expected 1 or more")

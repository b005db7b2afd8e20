"""Faults with images in prompts, and changes of them that are harmless; planted in a model that sees images.

Shape letters: B rows, T slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verify.cases import CASE_KINDS, Case
from verify.faults.conditions import Condition
from verify.faults.fault import PREFERENCES, EquivalentMutant, Fault
from verify.faults.rows import Rows
from verify.faults.stages import Forward, Layout, Mask, Reference
from verify.groups import PreferenceGroup, TokenIds
from verify.images import Image


def _images(case: Case) -> list[Image]:
    return [image for group in case.groups for image in group.images]


def _has_images(case: Case) -> bool:
    return bool(_images(case))


def _has_different_images(case: Case) -> bool:
    return len(set(_images(case))) > 1


def _equal_text(case: Case) -> bool:
    prompts = {(group.prompt_ids, group.images) for group in case.groups}
    return len({ids for ids, _ in prompts}) < len(prompts)


def _equal_text_and_response(case: Case) -> bool:
    sequences = {(group.prompt_ids, group.images, ids) for group in case.groups for ids in group.completions}
    return len({(prompt, ids) for prompt, _, ids in sequences}) < len(sequences)


HAS_IMAGES = Condition("a prompt has an image", _has_images)
DIFFERENT_IMAGES = Condition("a case has two different images", _has_different_images)
EQUAL_TEXT = Condition("prompts of equal tokens have different images", _equal_text)

EQUAL_TEXT_AND_RESPONSE = Condition(
    "a response stands behind prompts of equal tokens with different images", _equal_text_and_response
)


def _renumbered(rows: Rows, number: Callable[[int], int]) -> Rows:
    """Rows whose slots hold other features."""
    return replace(
        rows,
        rows=tuple(
            tuple(replace(p, features=tuple(f if f < 0 else number(f) for f in p.features)) for p in row)
            for row in rows.rows
        ),
    )


def features_of_next_image(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Features of all images are one batch that is handed out one image too late."""
    rows = honest(groups)
    num_features = len(rows.images) * rows.per_image
    return _renumbered(rows, lambda feature: (feature + rows.per_image) % num_features)


def last_image_for_all(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Of a row's images one is kept: the last."""
    rows = honest(groups)
    first_of_last = (len(rows.images) - 1) * rows.per_image
    return _renumbered(rows, lambda feature: first_of_last + feature % rows.per_image)


def image_found_by_text(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Features are kept by the tokens of the prompt."""
    kept: dict[TokenIds, tuple[Image, ...]] = {}
    return honest([replace(g, images=kept.setdefault(g.prompt_ids, g.images)) for g in groups])


def images_left_out(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Pixel values are lost on the way: placeholders are embedded as the tokens that they are."""
    rows = honest(groups)
    without = tuple(tuple(replace(piece, features=()) for piece in row) for row in rows.rows)
    return replace(rows, rows=without, images=())


def images_hidden_from_branches(honest: Mask, rows: Rows) -> Tensor:
    """Responses see the text of their prompt only; [B, T, T]."""
    in_branch = torch.tensor([[p.completion is not None for p in row for _ in p.ids] for row in rows.rows])
    return honest(rows) & ~(in_branch[:, :, None] & (rows.features >= 0)[:, None, :])


def reference_found_by_text(honest: Reference, model: Any, forward: Forward, rows: Rows) -> Tensor:
    """Of each sequence of tokens the values that were kept when it was first seen, whatever its image; [N]."""
    logps, branches = honest(model, forward, rows), rows.branches()
    kept: dict[tuple[TokenIds, ...], Tensor] = {}
    values = torch.split(logps, [len(branch.tokens) for branch in branches])
    pieces = [(*(place.piece.ids for place in rows.ancestors_of(branch)), branch.piece.ids) for branch in branches]
    return torch.cat([kept.setdefault(key, found) for key, found in zip(pieces, values, strict=True)])


# Harmless changes.


def images_reversed(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """The last image of the batch passes the tower first, and its features are taken where it stands now."""
    rows = honest(groups)
    last = len(rows.images) - 1

    def number(feature: int) -> int:
        image, within = divmod(feature, rows.per_image)
        return (last - image) * rows.per_image + within

    return replace(_renumbered(rows, number), images=rows.images[::-1])


def second_copies(honest: Layout, groups: Sequence[PreferenceGroup]) -> Rows:
    """Every image passes the tower twice, and the features of its second copy are taken."""
    rows = honest(groups)
    num_features = len(rows.images) * rows.per_image
    return replace(_renumbered(rows, lambda feature: feature + num_features), images=(*rows.images, *rows.images))


FAULTS = (
    Fault(
        name="features-of-next-image",
        stage="layout",
        replacement=features_of_next_image,
        what="The features of all images are one batch, and each prompt gets those of the image after its own.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=DIFFERENT_IMAGES,
        signature="all tokens of groups with images off by tenths of a nat and more, those of others exact",
        invisible_where="one image; images that all are equal",
    ),
    Fault(
        name="last-image-for-all",
        stage="layout",
        replacement=last_image_for_all,
        what="One image stands for all images of the batch.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=DIFFERENT_IMAGES,
        signature="all tokens of groups with another image than the last one off",
        invisible_where="one image; images that all are equal",
    ),
    Fault(
        name="image-found-by-text",
        stage="layout",
        replacement=image_found_by_text,
        what="Features are kept by the tokens of the prompt, so that the first image stands for all of equal text.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=EQUAL_TEXT,
        signature="a group whose tokens came before with another image is off, all others exact",
        invisible_where="no two prompts have the same tokens",
    ),
    Fault(
        name="reference-found-by-text",
        stage="reference",
        replacement=reference_found_by_text,
        what="Log-probs of the frozen policy are kept by the tokens of prompt and response, without the image.",
        kinds=PREFERENCES,
        with_images=True,
        bites_where=EQUAL_TEXT_AND_RESPONSE,
        signature="policy exact; reference log-probs of a response that came before behind the same text and another "
        "image are those behind that one",
        invisible_where="no response stands behind two prompts of the same tokens",
    ),
    Fault(
        name="images-left-out",
        stage="layout",
        replacement=images_left_out,
        what="Pixel values do not reach the model, which embeds the placeholders as they are.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=HAS_IMAGES,
        signature="all tokens of groups with images off",
        invisible_where="text alone",
    ),
    Fault(
        name="images-hidden-from-branches",
        stage="mask",
        replacement=images_hidden_from_branches,
        what="The slots of image features are masked from the responses.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=HAS_IMAGES,
        signature="all tokens of responses to images off but the first ones, which the prompt predicts",
        invisible_where="text alone; responses of one token",
    ),
)

MUTANTS = (
    EquivalentMutant(
        name="images-reversed",
        stage="layout",
        replacement=images_reversed,
        what="The images of a batch pass the tower in reverse order, and slots take their features from there.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=DIFFERENT_IMAGES,
        why_equal="the tower sees each image on its own, and a slot takes the features of the same image",
    ),
    EquivalentMutant(
        name="images-twice-through-the-tower",
        stage="layout",
        replacement=second_copies,
        what="Every image passes the tower twice, and the features of the second time are taken.",
        kinds=CASE_KINDS,
        with_images=True,
        bites_where=HAS_IMAGES,
        why_equal="the features of an image are the same however often it is looked at",
    ),
)

"""A causal LM as a reward model: transformers' sequence classifier over the very same blocks, with a seeded head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from verify.models.lora import rounded_normal

SCORE_HEAD = "score"


def with_score_head(model: Any, *, seed: int) -> Any:
    """The sequence classifier with one label over the blocks of a causal LM.

    The head is drawn from N(0, 1 / D) and rounded to bfloat16: final hidden states have an RMS of about 1, so rewards
    have too. There is no padding token: a classifier of transformers that has one reads its head at the last token that
    is another, which is an earlier one where a completion ends in it.

    Args:
        model: A transformers causal LM without adapters. It is used up: its blocks and its config are the classifier's.
        seed: Seed of the head.

    Returns:
        The classifier in eval mode, nothing requiring grad.

    Raises:
        ValueError: transformers has no classifier of this model type with a head named ``score``.
    """
    config = model.config
    config.num_labels, config.pad_token_id = 1, None
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ValueError(f"model type {config.model_type}: transformers has no sequence classifier of it")
    with torch.device("meta"):
        classifier = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)](config)
    prefix = classifier.base_model_prefix
    if not isinstance(getattr(classifier, SCORE_HEAD, None), nn.Linear) or not hasattr(model, prefix):
        raise ValueError(
            f"model type {config.model_type}: its sequence classifier has no linear head named {SCORE_HEAD}"
        )
    setattr(classifier, prefix, getattr(model, prefix))
    width = classifier.score.in_features
    head = rounded_normal(torch.Size((1, width)), 1 / math.sqrt(width), torch.Generator().manual_seed(seed))
    classifier.score = nn.Linear(width, 1, bias=False, dtype=model.dtype)
    with torch.no_grad():
        classifier.score.weight.copy_(head)
    return classifier.eval().requires_grad_(False)


def train_score_head(model: Any) -> None:
    """Let the head of a wrapped classifier be trained: PEFT has frozen all but its adapters."""
    model.get_base_model().score.weight.requires_grad_(True)

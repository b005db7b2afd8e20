"""Fields of a transformers config that no decoder can have, found before a module is built of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def check_fields(config: Any, where: str) -> None:
    """Refuse sizes that are none, key heads that cannot be shared evenly, and a base of rotations that is no number.

    Args:
        config: The config of a decoder over text.
        where: The file or folder, for the message.

    Raises:
        ValueError: With the field, its value and what would be right.
    """
    fields = config.to_dict()  # as written: attributes raise where a family has a value for each layer
    for name in _SIZES:
        value = fields.get(name)
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{where}: {name} is {value}: give a whole number from 1 on")
    heads, key_heads = (fields.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(key_heads, int) and heads % key_heads:
        raise ValueError(
            f"{where}: num_key_value_heads is {key_heads}, num_attention_heads {heads}: give a divisor of the latter"
        )
    for theta in _bases(fields.get("rope_parameters")):
        if not isinstance(theta, int | float) or not math.isfinite(theta) or theta <= 0:
            raise ValueError(f"{where}: rope_theta is {theta!r}: give a finite number above 0")


def _bases(parameters: object) -> Iterator[object]:
    """Those of all kinds of layers: some families have rotations of their own for each kind."""
    if isinstance(parameters, Mapping):
        if parameters.get("rope_theta") is not None:
            yield parameters["rope_theta"]
        for inner in parameters.values():
            yield from _bases(inner)

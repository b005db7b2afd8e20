"""What is not forecast, said before anything is loaded."""

from __future__ import annotations

NO_FLEX_ON_CPU = "path sparse: FlexAttention has no backward pass on a CPU; forecast it for a GPU (--device gb10)"
MOST_PAIRS = 256
"""Of a rank in one step: split attention has a call for each part of each pair."""
MOST_TOKENS = 2**18
"""Of all prompts and responses of a rank: rows are laid out token by token."""


def check_batch(*, prompt: int, response: int, pairs: int) -> None:
    """Refuse a batch that would take minutes to lay out.

    Raises:
        ValueError: With how many pairs there may be.
    """
    of_pair = prompt + 2 * response
    if pairs > 1 and pairs * of_pair > MOST_TOKENS:
        raise ValueError(
            f"--pairs {pairs} of {prompt}/{response} tokens: {pairs * of_pair:,} tokens on each rank of a step, and a "
            f"forecast follows at most {MOST_TOKENS:,}: give --pairs {max(1, MOST_TOKENS // of_pair)} or fewer"
        )

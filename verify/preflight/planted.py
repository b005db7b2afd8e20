"""Two faults planted beside the honest steps: a parity that does not notice them proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from reports.preflight_consistency import PLANTED, WOULD_NOTICE
from reports.words import number
from verify.groups import PreferenceGroup
from verify.judgement import Judgement
from verify.preflight.finding import Finding, abstains, go
from verify.subject import Subject
from verify.subjects.sharded import HONEST, ShardedStages
from verify.verdict import Verdict

LEAK, NO_WORLD_SIZE = PLANTED
_WHAT = {
    LEAK: "rejected responses that see the chosen one",
    NO_WORLD_SIZE: "gradients averaged over ranks where a sum is meant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaking:
    """A subject fed in such a way that rejected responses see the last chosen one, as under a causal mask alone.

    Args:
        subject: The honest subject.
    """

    subject: Subject
    name: str = f"planted {LEAK}"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
        """Log-probs of every completion, those of rejected ones wrong; as many calls as the honest subject makes."""
        fed = [
            PreferenceGroup(group.prompt_ids + front, (completion,), ())
            for group in groups
            for front, completions in (((), group.positives), (group.positives[-1], group.negatives))
            for completion in completions
        ]
        return self.subject.per_token_logps(model, fed)


def without_world_size(stages: ShardedStages = HONEST) -> ShardedStages:
    """The honest stages, but for a loss that FSDP's average over ranks divides once more."""
    return replace(stages, share=lambda units: units.micro_batch / units.batch)


def noticed(part: str, verdict: Verdict, judgements: Sequence[tuple[str, Judgement]], dtype: str) -> Finding:
    """Whether a planted fault was noticed.

    Args:
        part: One of ``PLANTED``.
        verdict: What it came to.
        judgements: What was held against what.
        dtype: What was computed in.

    Returns:
        GO where it is a FAIL; else it abstains, since nothing is known to be wrong but nothing is proven either.
    """
    if verdict is not Verdict.FAIL:
        hint = "run it in float32 as well: the rounding of bfloat16 may hide it"
        return abstains(
            WOULD_NOTICE, f"planted {_WHAT[part]} came out as {verdict.value} in {dtype}", part=part, hint=hint
        )
    margin = max((judgement.ratio for _, judgement in judgements if judgement.measured is not None), default=0.0)
    seen = f"planted {_WHAT[part]}: caught, at {number(margin)} times its budget"
    return go(WOULD_NOTICE, seen, part=part, measures={"measured_over_budget": margin})

"""From judgements to a finding: the verdict, the worst of what was measured over its budget, and against what."""

from __future__ import annotations

from collections.abc import Sequence

from reports.words import count, number
from verify.judgement import Judgement
from verify.preflight.finding import Finding, abstains, go, no_go
from verify.verdict import Verdict, fold

HINT_WRONG = "do not train: run packparity sharded and packparity check --device cuda, which say which stage is wrong"


def finding_of(
    probe: str,
    part: str,
    verdicts: Sequence[tuple[Verdict, Sequence[str]]],
    judgements: Sequence[tuple[str, Judgement]],
    said: str,
) -> Finding:
    """What verdicts come to.

    Args:
        probe: Name of the probe.
        part: What of it.
        verdicts: Of each case, with the reasons why it is no PASS.
        judgements: What was held against what.
        said: On what, in words.

    Returns:
        GO for PASS, NO-GO for FAIL and ERROR; what proves nothing abstains.
    """
    verdict = fold(verdict for verdict, _ in verdicts)
    reasons = "; ".join(dict.fromkeys(reason for _, of_case in verdicts for reason in of_case))
    if verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE):
        return abstains(probe, f"{verdict.value}: {reasons or 'nothing was judged'} ({said})", part=part)
    measures: dict[str, float] = {}
    for against, judgement in judgements:
        if judgement.measured is not None:
            name = f"{against.replace(' ', '_')}_{judgement.quantity}_{judgement.statistic}_over_budget"
            measures[name] = max(judgement.ratio, measures.get(name, 0.0))  # of all cases and tensors
    if verdict is not Verdict.PASS:
        return no_go(probe, f"{verdict.value}: {reasons} ({said})", HINT_WRONG, part=part, measures=measures)
    compared = sum(judgement.num_compared for _, judgement in judgements)
    against, worst = max(
        ((against, j) for against, j in judgements if j.measured is not None), key=lambda pair: pair[1].ratio
    )
    seen = (
        f"{count(compared)} values compared, {said}; worst measured / budget {number(worst.ratio)} "
        f"({worst.quantity}, {worst.statistic}, against {against})"
    )
    return go(probe, seen, part=part, measures=measures)

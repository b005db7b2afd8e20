"""Which of unpacked, dense, sparse, split and the subject is the odd one out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from verify.diagnosis.study import CaseStudy
from verify.subject import Subject, SubjectError, Support
from verify.subjects.selection import BUILT_IN

_PATHS: Mapping[str, str] = {"dense": "dense-sdpa", "sparse": "flex", "split": "split"}


def independent_logps(study: CaseStudy) -> dict[str, Tensor]:
    """Policy log-probs of the unpacked path and of three packed ones, flat.

    Args:
        study: The case.

    Returns:
        By "unpacked", "dense", "sparse", "split"; a path that cannot be run is left out.
    """
    logps = {"unpacked": torch.cat(study.witness.per_token_logps)}
    for name, subject in _PATHS.items():
        try:
            logps[name] = torch.cat(study.bench.observe(_ForwardOnly(BUILT_IN[subject]), study.case).per_token_logps)
        except SubjectError:
            continue
    return logps


class _ForwardOnly:
    """A built-in subject without its loss and its gradients."""

    def __init__(self, subject: Subject) -> None:
        self.name = subject.name
        self.per_token_logps = subject.per_token_logps

    def supports_gradients(self, model: object) -> Support:
        """None."""
        return Support(False, "only log-probs are asked for")


def clusters(logps: Mapping[str, Tensor], tolerance: float) -> list[tuple[str, ...]]:
    """Paths that agree, largest cluster first.

    Args:
        logps: Flat log-probs by path.
        tolerance: Largest difference of two values that agree. NaN agrees with nothing.

    Returns:
        Clusters, linked where any two of their members agree.
    """
    found: list[list[str]] = []
    for name, values in logps.items():
        near = [c for c in found if any(bool((values - logps[other]).abs().max() <= tolerance) for other in c)]
        merged = [member for c in near for member in c] + [name]
        found = [c for c in found if c not in near] + [merged]
    return sorted((tuple(cluster) for cluster in found), key=len, reverse=True)


def odd_one_out(logps: Mapping[str, Tensor], tolerance: float) -> str:
    """One sentence on who disagrees with whom.

    Args:
        logps: Flat log-probs by path; two or more.
        tolerance: As for :func:`clusters`.

    Returns:
        The sentence.

    Raises:
        ValueError: Fewer than two paths.
    """
    if len(logps) < 2:
        raise ValueError(f"{len(logps)} paths: two are needed to disagree")
    groups = clusters(logps, tolerance)
    if len(groups) == 1:
        return f"log-probs of {_listed(groups[0])} agree"
    largest, *others = groups
    if len(largest) == 1:
        return f"no two of {_listed(list(logps))} agree"
    odd = "; ".join(
        f"{_listed(group)} {_verb(group)} by up to {_apart(group, largest, logps):.3g} nats" for group in others
    )
    return f"{_listed(largest)} agree; {odd}"


def _verb(group: Sequence[str]) -> str:
    return "differs" if len(group) == 1 else "differ"


def _apart(group: Sequence[str], largest: Sequence[str], logps: Mapping[str, Tensor]) -> float:
    return max(float((logps[a] - logps[b]).abs().max()) for a in group for b in largest)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""Suspects where log-probs of the policy are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from verify.diagnosis.layers import first_differing
from verify.diagnosis.sight import NOT_OF_THE_CASE, Sight
from verify.diagnosis.sources import responses_exchanged
from verify.diagnosis.stages.evidence import Evidence
from verify.diagnosis.stages.suspect import INFERRED, MEASURED, POSSIBLE, Suspect
from verify.diagnosis.tokens import CaseToken, describe
from verify.faults.stages import StageName
from verify.groups import PreferenceGroup


def log_prob_suspects(evidence: Evidence) -> Iterator[Suspect]:
    """What was fed, seen and where; else the modules of the model; else what was read off them."""
    first = first_differing(evidence.hidden)
    if first is not None or not evidence.hidden:
        by_sight = list(_sight(evidence))
        yield from by_sight
        if by_sight or first is None:
            return
        tokens = describe([evidence.tokens[token] for token in first.differing], evidence.groups)
        if evidence.sight is not None and evidence.sight.num_queries:
            yield Suspect(
                "activations", INFERRED,
                f"ids, positions and visibility are right, but hidden states differ from {first.place} on, at {tokens}",
            )  # fmt: skip
            if first.place == "layer 0 attention" and _some_not_followed(evidence):
                yield Suspect("mask", INFERRED, "tokens that occur more than once were not followed: one may be hidden")
        else:
            where = f"hidden states differ from {first.place} on, at {tokens}"
            attention = first.place.endswith("attention")
            yield Suspect(
                "mask", INFERRED if attention else POSSIBLE, f"{where}; what attends to what was not measured"
            )
            yield Suspect("activations", POSSIBLE if attention else INFERRED, where)
        return
    yield from _after_the_decoder(evidence)


def _some_not_followed(evidence: Evidence) -> bool:
    """Whether the case holds tokens whose slots are not known by their ids."""
    held = {t for group in evidence.groups for ids in (group.prompt_ids, *group.completions) for t in ids}
    return not held <= evidence.tokens.keys()


def _sight(evidence: Evidence) -> Iterator[Suspect]:
    sight = evidence.sight
    if sight is None:
        return
    if sight.never_fed:
        lost = describe([evidence.tokens[token] for token in sight.never_fed], evidence.groups)
        yield Suspect("layout", MEASURED, f"never fed to the model: {lost}")
        return
    queries = sorted(sight.foreign.keys() | sight.hidden.keys())
    if queries and sight.misplaced and sight.positions_fit_sight:
        moved = describe([evidence.tokens[token] for token in sight.misplaced], evidence.groups)
        yield Suspect("layout", MEASURED, f"positions and visibility follow one and the same wrong path, at {moved}")
        yield Suspect("mask", POSSIBLE, describe_sight(sight, evidence.tokens, evidence.groups))
        yield Suspect("positions", POSSIBLE, describe_positions(sight, evidence.tokens, evidence.groups))
        return
    if queries:
        stage: StageName = "window" if sight.out_of_window else "mask"
        yield Suspect(stage, MEASURED, describe_sight(sight, evidence.tokens, evidence.groups))
    if sight.misplaced:
        yield Suspect(
            "positions", INFERRED if queries else MEASURED,
            describe_positions(sight, evidence.tokens, evidence.groups),
        )  # fmt: skip


def describe_sight(sight: Sight, tokens: Mapping[int, CaseToken], groups: Sequence[PreferenceGroup]) -> str:
    """Who sees what it should not, and who misses what; "" where all is right."""
    parts = []
    for verb, wrong in (("attend to", sight.foreign), ("do not attend to", sight.hidden)):
        if not wrong:
            continue
        keys = {key for of_query in wrong.values() for key in of_query}
        named = describe([tokens[key] for key in keys - {NOT_OF_THE_CASE}], groups) if keys - {NOT_OF_THE_CASE} else ""
        if NOT_OF_THE_CASE in keys:
            named += (" and " if named else "") + "slots that hold no token of the case"
        parts.append(f"{describe([tokens[query] for query in wrong], groups)} {verb} {named}")
    if sight.out_of_window:
        parts.append("which stand on their own path, out of reach of the unpacked path there: a window of the model")
    return "; ".join(parts)


def describe_positions(sight: Sight, tokens: Mapping[int, CaseToken], groups: Sequence[PreferenceGroup]) -> str:
    """Who stands at a wrong position; "" where all is right."""
    if not sight.misplaced:
        return ""
    offs = sorted(set(sight.misplaced.values()))
    by = f"by {offs[0]:+g}" if len(offs) == 1 else f"by {offs[0]:+g} to {offs[-1]:+g}"
    return f"positions are off {by} at {describe([tokens[token] for token in sight.misplaced], groups)}"


def _after_the_decoder(evidence: Evidence) -> Iterator[Suspect]:
    """Hidden states are right to the end: the wrong value was read, or computed wrongly from the right logits."""
    right, sources = "all hidden states are right", evidence.sources
    if sources is None or sources.kind is None:
        yield Suspect("token_logps", INFERRED, f"{right}, and no other slot or label has the values that came out")
        return
    share = f"{len(sources.found)} of {sources.num_wrong} wrong values are"
    example = sources.found[0]
    here = describe([example.token], evidence.groups)
    there = describe([example.found], evidence.groups) if example.found is not None else "another slot"
    if sources.kind == "other predictor":
        yield Suspect("predictors", MEASURED, f"{share} those predicted from another slot: {here} from {there}")
    elif sources.kind == "other label":
        yield Suspect(
            "token_logps", MEASURED, f"{share} log-probs of another label at the right predictor, first {here}"
        )
    elif responses_exchanged(sources):
        yield Suspect("layout", MEASURED, f"{share} those of another response: {here} has the value of {there}")
        yield Suspect("predictors", POSSIBLE, "the map from targets to slots may not follow the layout")
    else:
        what = f"{share} right for another token: {here} has the value of {there}"
        yield Suspect("supervision", MEASURED, what)
        yield Suspect("token_logps", INFERRED, what)

"""Is the path that was measured the path that was judged? A parity record is cited only where nothing differs.

A fast path that computes something else has no cost worth knowing, so a result without such a record says "unverified".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from reports.cost_record import CitedParityRecord
from reports.record import Record
from reports.record_names import DtypeName
from reports.record_setting import Environment, ModelRecord
from reports.store import RECORD_FILE, read_record

_DETERMINING = ("packparity", "torch", "transformers", "peft")
_NOT_OF_THE_COMPUTATION = frozenset({"dtype", "torch_dtype", "transformers_version", "_name_or_path"})
"""Of a model's config: the dtype is compared by itself, as are versions."""


class EvidenceError(ValueError):
    """A parity record says nothing about what is measured; the message names the field that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSubject:
    """What a record has to be about.

    Args:
        environment: Versions and device of the measurement.
        model: The measured model.
        dtype: Of weights and passes.
        objective: Name of the objective.
    """

    environment: Environment
    model: ModelRecord
    dtype: str
    objective: str


@dataclass(frozen=True, slots=True)
class ParityFile:
    """A parity record, and the digest of its bytes."""

    path: Path
    record: Record
    sha256: str


def read_parity(path: Path) -> ParityFile:
    """Read the record of ``packparity check --out DIR``.

    Raises:
        RecordError: There is none, or it is not valid.
    """
    record = read_record(path)
    file = path / RECORD_FILE if path.is_dir() else path
    return ParityFile(file, record, hashlib.sha256(file.read_bytes()).hexdigest())


def cite(parity: ParityFile, measured: MeasuredSubject, subjects: Sequence[str]) -> dict[str, CitedParityRecord]:
    """The record as evidence for subjects.

    Args:
        parity: The record.
        measured: What is measured.
        subjects: Names of the packed subjects that are measured.

    Returns:
        What is cited for each subject.

    Raises:
        EvidenceError: The record is of something else, is not PASS, or did not judge one of the subjects.
    """
    record = parity.record
    difference = next(_differences(record, measured), None)
    if difference is not None:
        field, there, here = difference
        raise EvidenceError(
            f"--parity {parity.path}: its {field} is {there}, that of this run is {here}: it says nothing about this "
            f"run; {_how_to_get_one(measured, subjects)}"
        )
    cited = {}
    for subject in subjects:
        found = [s for s in record.summaries if (s.subject, s.dtype) == (subject, measured.dtype)]
        verdict = found[0].verdict if found else "not in it"
        if verdict != "PASS":
            raise EvidenceError(
                f"--parity {parity.path}: subject {subject} in {measured.dtype} is {verdict}: it is no evidence for "
                f"that path; {_how_to_get_one(measured, subjects)}"
            )
        results = [r for r in record.results if (r.subject, r.dtype) == (subject, measured.dtype)]
        cited[subject] = CitedParityRecord(
            record_sha256=parity.sha256,
            created_utc=record.created_utc,
            tool_version=record.tool_version,
            subject=subject,
            dtype=cast(DtypeName, measured.dtype),
            num_compared=sum(result.num_compared for result in results),
            cases=sum(result.verdict == "PASS" for result in results),
        )
    return cited


def _differences(record: Record, measured: MeasuredSubject) -> Iterator[tuple[str, Any, Any]]:
    """What differs between what was judged and what is measured: name, there, here."""
    if record.verdict != "PASS":
        yield "verdict", record.verdict, "to rest on a PASS"
    for package in _DETERMINING:
        there, here = (e.packages.get(package, "unknown") for e in (record.environment, measured.environment))
        if there != here:
            yield f"version of {package}", there, here
    there, here = (_without_index(e.device) for e in (record.environment, measured.environment))
    if there != here:
        yield "device", there, here
    if record.model.num_layers != measured.model.num_layers:
        yield "number of layers", record.model.num_layers, measured.model.num_layers
    yield from _differing("model config", record.model.config, measured.model.config, _NOT_OF_THE_COMPUTATION)
    yield from _differing("LoRA config", record.model.lora, measured.model.lora, frozenset())
    if (objective := record.objective.get("name")) != measured.objective:
        yield "objective", objective, measured.objective


def _differing(
    what: str, there: Mapping[str, Any], here: Mapping[str, Any], left_out: frozenset[str]
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted((there.keys() | here.keys()) - left_out):
        if there.get(key) != here.get(key):
            yield f"{what}, {key}", there.get(key), here.get(key)


def _without_index(device: str) -> str:
    return re.sub(r"^cuda:\d+", "cuda", device)


def _how_to_get_one(measured: MeasuredSubject, subjects: Sequence[str]) -> str:
    named = " ".join(f"--subject {subject}" for subject in subjects)
    device = "" if measured.environment.device == "cpu" else " --device cuda"
    layers = (
        ""
        if measured.model.num_layers == measured.model.num_layers_published
        else f" --layers {measured.model.num_layers}"
    )
    return (
        f"make one with: packparity check --model {measured.model.name}{layers} --dtype {measured.dtype}{device} "
        f"{named} --out DIR"
    )

"""Is the path that was measured the path that was judged? A parity record is cited only where nothing differs.

A fast path that computes something else has no cost worth knowing, so a result without such a record says "unverified".
What one process computes is judged by ``packparity check``, what a model that is sharded over ranks computes by
``packparity sharded``: neither record says anything about the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from reports.cost_record import CitedParityRecord
from reports.record import Record
from reports.record_names import NOT_A_PASS, DtypeName
from reports.record_setting import Environment, ModelRecord
from reports.sharded_record import ParityRecord, ShardedRecord
from reports.sharded_store import SHARDED_FILE, read_sharded
from reports.store import RECORD_FILE, RecordError, parse_json, read_record

_DETERMINING = ("packparity", "torch", "transformers", "peft")
_NOT_OF_THE_COMPUTATION = frozenset({"dtype", "torch_dtype", "transformers_version", "_name_or_path"})
"""Of a model's config: the dtype is compared by itself, as are versions."""
_OF_ANOTHER_LOSS = ("label_smoothing", "nll_weight", "reference")
"""Settings of an objective that make the loss another one; beta is a number in the same one."""
_OF_THE_WEIGHTS = frozenset({"strength"})
"""Of adapters: how far they have moved the model, which each optimizer step changes."""


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
        settings: Its settings, the frozen policy among them; those that it does not name are not compared.
        num_ranks: Ranks that the model is sharded over; 1 where it is whole.
    """

    environment: Environment
    model: ModelRecord
    dtype: str
    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    num_ranks: int = 1


@dataclass(frozen=True, slots=True)
class ParityFile:
    """A parity record, and the digest of its bytes."""

    path: Path
    record: Record | ShardedRecord
    sha256: str


def read_parity(path: Path) -> ParityFile:
    """Read the record of ``packparity check --out DIR``, or of ``packparity sharded --out DIR``.

    Raises:
        RecordError: There is none, or two, or it is not valid.
    """
    file = _file_in(path) if path.is_dir() else path
    is_sharded = parse_json(file).get("kind") == "sharded"
    record = read_sharded(file) if is_sharded else read_record(file)
    return ParityFile(file, record, hashlib.sha256(file.read_bytes()).hexdigest())


def _file_in(folder: Path) -> Path:
    found = [folder / name for name in (RECORD_FILE, SHARDED_FILE) if (folder / name).exists()]
    if len(found) == 2:
        raise RecordError(f"{folder} holds {RECORD_FILE} and {SHARDED_FILE}: name the file")
    if not found:
        raise RecordError(f"{folder} holds no {RECORD_FILE} and no {SHARDED_FILE}: no run was finished there")
    return found[0]


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
        judged = _judged(record, subject, measured)
        if judged.verdict != "PASS":
            raise EvidenceError(
                f"--parity {parity.path}: subject {subject} in {measured.dtype} is {judged.verdict}: it is no evidence "
                f"for that path; {_how_to_get_one(measured, subjects)}"
            )
        cited[subject] = CitedParityRecord(
            record_sha256=parity.sha256,
            created_utc=record.created_utc,
            tool_version=record.tool_version,
            subject=subject,
            dtype=cast(DtypeName, measured.dtype),
            world_size=_world_size(record),
            num_compared=judged.num_compared,
            cases=judged.cases,
        )
    return cited


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a record says about a subject in a dtype; ``cases`` are those that passed."""

    verdict: str
    num_compared: int
    cases: int


def _judged(record: Record | ShardedRecord, subject: str, measured: MeasuredSubject) -> _Judged:
    if isinstance(record, ShardedRecord):
        ran = [r for r in _under(record, measured.objective) if (r.subject, r.precision) == (subject, measured.dtype)]
        verdicts = {r.verdict for r in ran}
        bad = next((verdict for verdict in NOT_A_PASS if verdict in verdicts), None)
        verdict = bad or ("PASS" if "PASS" in verdicts else "NOT_APPLICABLE" if ran else "not in it")
        passed = sum(r.verdict == "PASS" for r in ran)
        return _Judged(verdict, sum(r.num_compared for r in ran), passed)
    summary = next((s for s in record.summaries if (s.subject, s.dtype) == (subject, measured.dtype)), None)
    results = [r for r in record.results if (r.subject, r.dtype) == (subject, measured.dtype)]
    passed = sum(r.verdict == "PASS" for r in results)
    verdict = summary.verdict if summary is not None else "not in it"
    return _Judged(verdict, sum(r.num_compared for r in results), passed)


def _under(record: ShardedRecord, objective: str) -> list[ParityRecord]:
    """The results in scenarios whose case is under an objective."""
    cases = {case.name for case in record.cases if case.objective == objective}
    scenarios = {scenario.name for scenario in record.scenarios if scenario.case in cases}
    return [result for result in record.parity if result.scenario in scenarios]


def _objectives(record: Record | ShardedRecord) -> list[str]:
    if isinstance(record, ShardedRecord):
        return sorted({case.objective for case in record.cases})
    return [str(record.objective.get("name"))]


def _settings(record: Record | ShardedRecord) -> Mapping[str, Any]:
    """Of the objective of a run. A sharded record that has none is of the sigmoid loss with its defaults."""
    if record.objective or isinstance(record, Record):
        return record.objective
    frozen = next((scenario.reference for scenario in record.scenarios if scenario.reference != "cached"), "cached")
    return {"label_smoothing": 0.0, "nll_weight": 0.0, "reference": frozen}


def _world_size(record: Record | ShardedRecord) -> int:
    return record.world_size if isinstance(record, ShardedRecord) else 1


def _sharding(num_ranks: int) -> str:
    return f"FSDP2 over {num_ranks} ranks" if num_ranks > 1 else "none"


def _differences(record: Record | ShardedRecord, measured: MeasuredSubject) -> Iterator[tuple[str, Any, Any]]:
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
    yield from _differing("LoRA config", record.model.lora, measured.model.lora, _OF_THE_WEIGHTS)
    if measured.objective not in (objectives := _objectives(record)):
        yield "objective", ", ".join(objectives), measured.objective
    settings = _settings(record)
    for name in _OF_ANOTHER_LOSS:
        if name in settings and name in measured.settings and settings[name] != measured.settings[name]:
            yield "frozen policy" if name == "reference" else name, settings[name], measured.settings[name]
    world_size = _world_size(record)
    if (world_size > 1) != (measured.num_ranks > 1):  # any number of ranks stands for any other
        yield "sharding", _sharding(world_size), _sharding(measured.num_ranks)


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
    on_cpu = measured.environment.device == "cpu"
    device = "" if on_cpu else " --device cuda"
    layers = (
        ""
        if measured.model.num_layers == measured.model.num_layers_published
        else f" --layers {measured.model.num_layers}"
    )
    command = "packparity check"
    if measured.num_ranks > 1:
        ranks = measured.num_ranks
        command = f"packparity sharded --ranks {ranks}" if on_cpu else "torchrun ... -m verify sharded"
    return (
        f"make one with: {command} --model {measured.model.name}{layers} --dtype {measured.dtype}{device} "
        f"{named} --out DIR"
    )

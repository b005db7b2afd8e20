"""What surrounded the run, as pairs of a name and a text: model, environment, data, time."""

from __future__ import annotations

import shlex

from reports.record import Record
from reports.record_setting import CaseRecord, DataRecord, GroupRecord, ModelRecord
from reports.words import NONE, count, depth, plural, seconds, setting, size


def model_facts(record: Record) -> dict[str, str]:
    """The model, what is trained of it, and the objective."""
    model, other = record.model, record.model_with_images
    return {
        "model": model.name,
        "depth": depth(model),
        "parameters": count(model.num_parameters),
        "weights": model.weights,
        "weights SHA-256": model.weights_sha256 or NONE,
        "config": setting(model.config),
        "trained": "LoRA adapters" if model.train == "lora" else "every weight; there are no adapters",
        **({"LoRA": setting(model.lora)} if model.train == "lora" else {}),
        "expected by": _expected_by(model),
        "objective": setting(record.objective),
        **({} if other is None else {"of images": f"{other.name}, {other.weights}; expected by {_expected_by(other)}"}),
    }


def _expected_by(model: ModelRecord) -> str:
    return "the oracle" if model.expected_by == "oracle" else "the unpacked path in float64: no oracle"


def environment_facts(record: Record) -> dict[str, str]:
    """Where and how the run took place; with this it can be repeated."""
    environment = record.environment
    return {
        "command": shlex.join(record.command),
        "created": record.created_utc,
        "packparity": record.tool_version,
        "Python": environment.python,
        "platform": environment.platform,
        "processor": f"{environment.processor}, {plural(environment.num_threads, 'thread')}",
        "device": environment.device,
        **({"float32 products": environment.float32_products} if environment.float32_products else {}),
        "packages": ", ".join(f"{name} {version}" for name, version in environment.packages.items()) or NONE,
        "seeds": ", ".join(f"{name} {seed}" for name, seed in record.seeds.items()) or NONE,
    }


def data_facts(data: DataRecord) -> dict[str, str]:
    """Where real pairs came from, and how many of them could be used."""
    return {
        "file": data.file,
        "SHA-256": data.sha256,
        "shape": data.shape,
        "rows": f"{count(data.rows_read)} read, {count(data.usable_rows)} usable",
        "pairs used": count(data.num_pairs),
        "tokenizer": data.tokenizer,
        "tokenizer SHA-256": data.tokenizer_sha256 or NONE,
    }


def timing_facts(record: Record) -> dict[str, str]:
    """Wall time by stage, and memory."""
    timing = record.timing
    return {
        "total": seconds(timing.total_s),
        "imports": seconds(timing.import_s),
        "model passes": seconds(timing.model_passes_s),
        "processes": count(timing.num_processes),
        "peak host memory": size(timing.peak_host_bytes),
    }


def subject_facts(record: Record) -> dict[str, str]:
    """What each subject claims to be."""
    loss = {True: "computes its own loss", False: "the runner applies the objective to its log-probs"}
    return {subject.name: f"{subject.layout}; {loss[subject.owns_loss]}" for subject in record.subjects}


def objective_of(case: CaseRecord) -> str:
    """The objective of a case, and its frozen policy where it has one of its own."""
    return f"{case.objective} over {case.reference}" if case.reference else case.objective


def group_lengths(case: CaseRecord) -> list[str]:
    """The lengths of each group of a case in tokens, e.g. "24 → 16 / 14": prompt, positives, negatives.

    Where not all tokens of the responses are supervised, how many of each are: "9 → 17 (13) / -".
    """
    return [_group_lengths(group) for group in case.groups]


def _group_lengths(group: GroupRecord) -> str:
    lengths = [*group.positives, *group.negatives]
    shown = [
        f"{length}" if supervised == length else f"{length} ({supervised})"
        for length, supervised in zip(lengths, group.supervised or lengths, strict=True)
    ]
    positives, negatives = shown[: len(group.positives)], shown[len(group.positives) :]
    return f"{group.prompt} → {' '.join(positives)} / {' '.join(negatives) or NONE}"

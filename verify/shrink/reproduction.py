"""The files of a reproduction folder: everything that is needed to see one failure again, anywhere."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verify.case_files import cases_text
from verify.gate import GateRequest
from verify.models.request import ModelRequest
from verify.models.shape_file import Shape, shape_text
from verify.objective import Preference, objective_named, preference_beside, published_nll_weight
from verify.shrink.candidate import Candidate
from verify.shrink.failure import Failure
from verify.shrink.subject_file import subject_file, with_what_it_imports
from verify.strict_json import json_text
from verify.subjects.selection import FAULT_PREFIX
from verify.tool_version import tool_version

REPRODUCTION_FILE = "reproduction.json"
"""Its presence says that a folder is a reproduction, and whole."""

_CASES, _MODEL, _POLICY = "cases.json", "model.json", "policy.toml"
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A failure made small.

    Args:
        subject: Name of the subject.
        named: The subject as it is named on the command line.
        dtype: Name of the dtype.
        before: A failing case as it was, on the model of the run.
        after: The smallest that still fails.
        failure: How ``after`` fails.
        notes: What was done, and what was not.
    """

    subject: str
    named: str
    dtype: str
    before: Candidate
    after: Candidate
    failure: Failure
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all reproductions of a run have in common.

    Args:
        request: The run.
        policy_file: The user's policy, or None for the default one.
        threads: Threads of torch during the passes.
        versions: Exact version of each package that took part.
    """

    request: GateRequest
    policy_file: Path | None
    threads: int
    versions: Mapping[str, str]


def folder_name(subject: str, dtype: str) -> str:
    """A name that every file system takes."""
    safe = re.sub(r"[^A-Za-z0-9._]+", "-", subject).strip("-.")[:_LONGEST_NAME]
    return f"{safe or 'subject'}-{dtype}"


def reproduction_files(shrunk: Shrunk, setting: Setting) -> dict[str, bytes]:
    """The files of a reproduction folder.

    Args:
        shrunk: The failure.
        setting: Of the run.

    Returns:
        Name to content; equal input gives equal content. ``reproduction.json`` comes last.

    Raises:
        OSError: The policy or the subject's file cannot be read any more.
    """
    case = shrunk.after.case
    texts = {_CASES: cases_text([replace(case, why=f"shrunk from case {case.name}: {case.why}")])}
    model = shrunk.after.model
    if model.config is not None:
        texts[_MODEL] = shape_text(Shape(model.config, model.lora))
    files = {name: text.encode() for name, text in texts.items()}
    if setting.policy_file is not None:
        files[_POLICY] = setting.policy_file.read_bytes()
    for path in with_what_it_imports(shrunk.named):
        files[path.name] = path.read_bytes()
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files["run.sh"] = _script(shrunk, setting).encode()
    files["README.md"] = _readme(shrunk, setting, sha256).encode()
    files[REPRODUCTION_FILE] = json_text(_facts(shrunk, setting, sha256)).encode()
    return files


def _named(model: ModelRequest) -> str:
    return str(Path(model.name).resolve()) if model.is_checkpoint else model.name


def command(shrunk: Shrunk, setting: Setting) -> list[tuple[str, str]]:
    """Options of ``packparity check`` and their values as a POSIX shell takes them; ``$here`` is the folder."""
    request, model = setting.request, shrunk.after.model
    options = [("--model", _here(_MODEL) if model.config is not None else shlex.quote(_named(model)))]
    if model.num_layers is not None:
        options.append(("--layers", str(model.num_layers)))
    options += [("--cases-file", _here(_CASES)), ("--subject", _subject(shrunk.named)), ("--dtype", shrunk.dtype)]
    options += [("--variation", name) for name in request.variations]
    if model.train != "lora":
        options.append(("--train", model.train))
    preference = preference_beside(request.objective)
    options += [
        ("--beta", repr(preference.beta)),
        ("--label-smoothing", repr(preference.label_smoothing)),
        ("--seed", str(model.seed)),
        ("--device", model.device),
        ("--threads", str(setting.threads)),
        *_of_objective(preference),
    ]
    if setting.policy_file is not None:
        options.append(("--policy", _here(_POLICY)))
    return options


def _of_objective(preference: Preference) -> Iterator[tuple[str, str]]:
    """What a case does not say by its objective's name: the likelihood's weight where it is not the published one."""
    if preference.nll_weight != published_nll_weight(preference.name):
        yield "--objective", preference.name
        yield "--nll-weight", repr(preference.nll_weight)
    if preference.router_aux_loss_coef:
        yield "--router-loss", repr(preference.router_aux_loss_coef)


def _subject(named: str) -> str:
    file = subject_file(named)
    if file is None:
        return shlex.quote(named)
    prefix = FAULT_PREFIX if named.startswith(FAULT_PREFIX) else ""
    return prefix + _here(f"{file.name}:{named.rpartition(':')[2]}")


def _here(name: str) -> str:
    return f'"$here"/{shlex.quote(name)}'


def _script(shrunk: Shrunk, setting: Setting) -> str:
    options = " \\\n".join(f"  {option} {value}" for option, value in command(shrunk, setting))
    return (
        "#!/bin/sh\n"
        f"# Shows that {_one_line(shrunk.subject)} is FAIL in {shrunk.dtype}: exit status 1. See README.md.\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f'exec ${{PACKPARITY:-packparity}} check \\\n{options} \\\n  "$@"\n'
    )


def _facts(shrunk: Shrunk, setting: Setting, sha256: Mapping[str, str]) -> dict[str, Any]:
    request, failure = setting.request, shrunk.failure
    objective = objective_named(shrunk.after.case.objective_name, request.objective)
    return {
        "schema_version": 1,
        "tool_version": tool_version(),
        "subject": shrunk.subject,
        "dtype": shrunk.dtype,
        "case": shrunk.after.case.name,
        "verdict": "FAIL",
        "failure": {name: _plain(value) for name, value in asdict(failure).items()},
        "size_before": shrunk.before.size,
        "size_after": shrunk.after.size,
        "seed": shrunk.after.model.seed,
        "objective": objective.settings,
        "variations": list(request.variations),
        "threads": setting.threads,
        "versions": dict(setting.versions),
        "sha256": dict(sha256),
        "notes": list(shrunk.notes),
    }


def _plain(value: str | float) -> str | float:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _readme(shrunk: Shrunk, setting: Setting, sha256: Mapping[str, str]) -> str:
    failure = shrunk.failure
    seen = [("what is off", failure.kind), ("in the gate's words", failure.reason)]
    if failure.place:
        seen += [
            ("worst place", failure.place),
            ("actual", f"{failure.actual:.9g}"),
            ("expected", f"{failure.expected:.9g}"),
            ("measured", f"{failure.measured:.4g}"),
            ("budget", f"{failure.budget:.4g}"),
        ]
    before, after = shrunk.before.size, shrunk.after.size
    sizes = [(name, str(before.get(name, "-")), str(number)) for name, number in after.items()]
    lines = [
        f"# {_one_line(shrunk.subject)} in {shrunk.dtype}: FAIL",
        "",
        "    sh run.sh",
        "",
        "ends with exit status 1 and names the place below.",
        f'It needs packparity {tool_version()}; if that is not on the path: `PACKPARITY="python -m verify" sh run.sh`.',
        "",
        "## What is seen",
        "",
        *_table(("", ""), seen),
        "",
        "## Made smaller",
        "",
        *_table(("", f"case {shrunk.before.case.name} of the run", "here"), sizes),
        "",
        *(f"- {note}" for note in shrunk.notes),
        "",
        "## Files",
        "",
        *_table(("file", "SHA-256"), sha256.items()),
        "",
        "## Versions",
        "",
        *_table(("package", "version"), setting.versions.items()),
    ]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows),
    ]


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""From the failures of a run to their reproductions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reports.words import plural
from verify.cases import CASE_KINDS, Case
from verify.gate import Progress, Result
from verify.model_holder import LeftBehindError
from verify.models.configs import named_config
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.shrink.candidate import Candidate, mapped, renumbered, seeded
from verify.shrink.failure import CLEARLY, Failure, failure_of
from verify.shrink.folder import write_folder
from verify.shrink.reproduction import Setting, Shrunk, folder_name, reproduction_files
from verify.shrink.search import Limits, Search, minimise
from verify.shrink.subject_file import packages_beside, subject_file
from verify.shrink.trial import Trials
from verify.subject import Subject, said_by
from verify.subjects.selection import FAULT_PREFIX, select_subject
from verify.verdict import Verdict

MAX_TRIALS = 200
"""Trials for each failure at most; on the tiny model 15 to 80 are needed."""

_STARTS = 3
"""So many failing cases are tried on their own before the failure is left as it is."""
_SMALL = 4_000_000
"""Weights up to which a trial takes a second or two."""
_TINY = "tiny"
_TINY_LORA = LoraSpec(strength=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What became of one failure.

    Args:
        subject: Name of the subject.
        dtype: Name of the dtype.
        folder: The reproduction, relative to the folder of results; "" where there is none.
        note: What was done, in a line.
    """

    subject: str
    dtype: str
    folder: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much time shrinking may take.

    Args:
        seconds: Over all failures of the run; no trial begins later.
        trial_s: What one trial on the model of the run is expected to take at most.
    """

    seconds: float
    trial_s: float


class NotShrunkError(Exception):
    """A failure could not be shown again on a case of its own; the message says why."""


def shrink_failures(
    setting: Setting,
    results: Sequence[Result],
    *,
    named: Mapping[str, str],
    out_dir: Path,
    effort: Effort,
    progress: Progress,
) -> tuple[Reproduction, ...]:
    """Shrink every failure of a run, then write a folder for each.

    Args:
        setting: What the reproductions have in common.
        results: Of the run.
        named: Name of a subject to what it is called on the command line.
        out_dir: Folder of the run's results.
        effort: Time that may be taken.
        progress: Called before each trial.

    Returns:
        One for each subject and dtype that is FAIL, in the order of the results; nothing if there are none.
    """
    failed = list(dict.fromkeys((r.subject, r.dtype) for r in results if r.verdict is Verdict.FAIL))
    end = time.monotonic() + effort.seconds
    shrunk: dict[tuple[str, str], Shrunk | str] = {}
    for number, (subject, dtype) in enumerate(failed):
        share = (end - time.monotonic()) / (len(failed) - number)
        own = [r for r in results if (r.subject, r.dtype) == (subject, dtype)]
        task = _Task(setting, own, named[subject], time.monotonic() + share, effort, progress)
        try:
            shrunk[subject, dtype] = task.shrink()
        except NotShrunkError as error:
            shrunk[subject, dtype] = str(error)
        except LeftBehindError as error:
            shrunk |= dict.fromkeys(failed[number:], f"not shrunk: {error}")
            break
        except Exception as error:  # the verdict of the run is worth more than its reproduction
            shrunk[subject, dtype] = f"not shrunk: {said_by(error)}"
    return tuple(_written(subject, dtype, shrunk[subject, dtype], setting, out_dir) for subject, dtype in failed)


def _written(subject: str, dtype: str, shrunk: Shrunk | str, setting: Setting, out_dir: Path) -> Reproduction:
    if isinstance(shrunk, str):
        return Reproduction(subject=subject, dtype=dtype, folder="", note=shrunk)
    try:
        folder = write_folder(reproduction_files(shrunk, setting), out_dir, folder_name(subject, dtype))
    except Exception as error:  # as above: a full disk, a subject's file that is gone
        return Reproduction(subject=subject, dtype=dtype, folder="", note=f"the reproduction was not written: {error}")
    before, after = shrunk.before.size, shrunk.after.size
    smaller = [f"{name} {before[name]} to {n}" for name, n in after.items() if name in before and before[name] != n]
    return Reproduction(
        subject=subject,
        dtype=dtype,
        folder=folder.as_posix(),
        note="; ".join([f"case {shrunk.before.case.name}: {', '.join(smaller) or 'nothing smaller'}", *shrunk.notes]),
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """One failure: a subject in a dtype."""

    setting: Setting
    results: Sequence[Result]
    named: str
    until: float
    effort: Effort
    progress: Progress

    @property
    def subject(self) -> Subject:
        return next(s for s in self.setting.request.subjects if s.name == self.results[0].subject)

    @property
    def dtype(self) -> str:
        return self.results[0].dtype

    def shrink(self) -> Shrunk:
        """The smallest candidate.

        Raises:
            NotShrunkError: No failing case fails on its own as it did in the run.
            LeftBehindError: The subject changed what every model computes.
        """
        clear = {r.case: failure for r in self.results if (failure := failure_of(r)) is not None}
        faint = {r.case: failure for r in self.results if (failure := failure_of(r, at_least=1.0)) is not None}
        failures = clear or faint
        cases = sorted(
            (case for case in self.setting.request.cases if case.name in failures),
            # What can be made smaller, then pairs: they say most to whoever reads them.
            key=lambda case: (case.has_images, CASE_KINDS.index(case.kind), case.pairwise_slots, case.name),
        )
        if cases[0].has_images:
            return self._with_images(cases[0], failures[cases[0].name])
        if not clear:
            return self._as_it_is(cases[0], faint, f"not shrunk: less than {CLEARLY:g} budgets may be rounding")
        for number, case in enumerate(cases[:_STARTS]):
            if number and time.monotonic() >= self.until:
                break
            start = self._start(case, clear[case.name])
            if start is not None:
                return self._minimised(start, case)
        if not self._has_own_trials:
            takes = f"a trial takes about {self.effort.trial_s:.0f} s"
            note = f"not shrunk: {takes}, shrinking may take {self.effort.seconds:g} s"
            return self._as_it_is(cases[0], clear, note)
        raise NotShrunkError(
            f"not shrunk: alone, case {cases[0].name} does not fail by {CLEARLY:g} budgets as it did in the run "
            "(does the subject depend on what ran before?)"
        )

    @property
    def _has_own_trials(self) -> bool:
        return self.effort.trial_s <= self.effort.seconds

    def _start(self, case: Case, failure: Failure) -> _Start | None:
        """Where to begin: on the tiny model if the own one is large or has weights of its own."""
        trials = Trials(self.setting.request, self.subject, self.dtype)
        own = Candidate(case, self.setting.request.model)
        attempts: list[tuple[Candidate, list[str]]] = []
        if _is_large(own.model):
            attempts.append(
                (_on_the_tiny_model(own), ["shrunk on the tiny model, where the subject fails in the same way"])
            )
        if self._has_own_trials:
            notes = ["on the tiny model the subject does not fail in the same way"] if attempts else []
            attempts.append((own if own.model.is_given_whole else seeded(own), notes))
        for candidate, notes in attempts:
            self.progress(0, MAX_TRIALS, f"shrinking {self.subject.name} in {self.dtype}: case {case.name} alone")
            found = trials.failure(candidate)
            if found is not None and found.kind == failure.kind:
                return _Start(candidate, found, trials, notes)
        return None

    def _minimised(self, start: _Start, case: Case) -> Shrunk:
        failures = {start.candidate: start.failure}

        def still_fails(candidate: Candidate) -> bool:
            self.progress(search.trials, MAX_TRIALS, f"shrinking {self.subject.name} in {self.dtype}")
            found = None if _responses_are_equal(candidate) else start.trials.failure(candidate)
            if found is None or found.kind != start.failure.kind:
                return False
            failures[candidate] = found
            return True

        search = Search(start.candidate, still_fails, Limits(MAX_TRIALS, self.until))
        minimise(search)
        notes = [*start.notes, plural(search.trials, "trial")]
        if search.stopped_by:
            notes.append(f"stopped by {search.stopped_by}: a smaller case may exist")
        again = Trials(self.setting.request, select_subject(self.named), self.dtype).failure(search.best)
        found = failures[search.best]
        if again is None or (again.kind, again.place, again.reason) != (found.kind, found.place, found.reason):
            notes.append("made anew, the subject fails differently: it depends on what it was called with before")
        return self._shrunk(case, search.best, found, notes)

    def _with_images(self, case: Case, failure: Failure) -> Shrunk:
        """A case of which no token can be taken without another image: as it is, if it fails alone.

        Raises:
            NotShrunkError: It does not.
        """
        candidate = Candidate(case, self.setting.request.model_of(case))
        found = Trials(self.setting.request, self.subject, self.dtype).failure(candidate, at_least=1.0)
        if found is None or found.kind != failure.kind:
            raise NotShrunkError(f"not shrunk: alone, case {case.name} does not fail as it did in the run")
        notes = ["not shrunk: it fails on cases with images only, which are left as they are"]
        return replace(self._shrunk(case, candidate, found, notes), before=candidate)

    def _as_it_is(self, case: Case, failures: Mapping[str, Failure], note: str) -> Shrunk:
        own = Candidate(case, self.setting.request.model)
        candidate = own if own.model.is_given_whole else seeded(own)
        return self._shrunk(case, candidate, failures[case.name], [note, "not tried alone"])

    def _shrunk(self, case: Case, after: Candidate, failure: Failure, notes: list[str]) -> Shrunk:
        return Shrunk(
            subject=self.subject.name,
            named=self.named,
            dtype=self.dtype,
            before=Candidate(case, self.setting.request.model),
            after=after,
            failure=failure,
            notes=(*notes, *_what_is_not_in_the_folder(self.named, after.model)),
        )


@dataclass(frozen=True, slots=True)
class _Start:
    candidate: Candidate
    failure: Failure
    trials: Trials
    notes: list[str]


def _is_large(model: ModelRequest) -> bool:
    if model.is_given_whole:
        return model.is_checkpoint
    config = model.seeded_config
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
    return 2 * config.vocab_size * config.hidden_size + (model.num_layers or config.num_hidden_layers) * layer > _SMALL


def _on_the_tiny_model(candidate: Candidate) -> Candidate:
    model = replace(candidate.model, name=_TINY, num_layers=None, lora=_TINY_LORA, config=named_config(_TINY))
    small = renumbered(candidate)
    vocab_size = named_config(_TINY).vocab_size
    if small.size["largest token id"] >= vocab_size:
        small = mapped(small, small.segments, lambda token: token % vocab_size)
    return Candidate(small.case, model)


def _responses_are_equal(candidate: Candidate) -> bool:
    """Then all margins are zero whatever a mask does, and the case proves nothing."""
    return any(len(set(group.completions)) == 1 and bool(group.negatives) for group in candidate.case.groups)


def _what_is_not_in_the_folder(named: str, model: ModelRequest) -> Iterator[str]:
    if model.is_checkpoint:
        yield f"the weights are not in this folder: run.sh names {model.name} where it was"
    if packages := packages_beside(named):
        yield f"the subject imports {', '.join(packages)} from beside its file: put them on PYTHONPATH"
    origin = named.removeprefix(FAULT_PREFIX).rpartition(":")[0]
    if origin and subject_file(named) is None:
        yield f"{origin} is not in this folder: it must be importable where run.sh is called"

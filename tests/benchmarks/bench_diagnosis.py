"""How often the diagnosis names the right stage first, and what it costs.

Run with ``python tests/benchmarks/bench_diagnosis.py [float32|float64] [faults|subjects]``; some minutes on an idle
core. ``faults`` takes each planted fault out of the catalogue and diagnoses it (leave-one-out), on each kind of case
that it is planted on; ``subjects`` diagnoses the wrong trainers of tests/verify/diagnosis/wrong_subjects.py and
wrong_tree_trainers.py, on each kind that they take, with the catalogue and then with the evidence alone.
"""

import importlib.util
import sys
import time
from pathlib import Path

from verify.cases import CASE_KINDS
from verify.default_cases.objectives import objective_cases
from verify.default_cases.tiny import tiny_cases
from verify.diagnosis.diagnose import Diagnostician
from verify.diagnosis.measurement import Attribution, leave_one_out
from verify.diagnosis.study import Workbench
from verify.fault_grounds import OBJECTIVE
from verify.faults.catalogue import ALL_FAULTS, FAULTS_OF_OBJECTIVES
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.threads import torch_threads
from verify.tolerance import load_policy

SUBJECTS = Path(__file__).parents[1] / "verify" / "diagnosis"


def diagnostician(dtype, faults=ALL_FAULTS):
    """The tiny model with the objective of ``packparity faults``."""
    model = ModelRequest(name="tiny", lora=LoraSpec(strength=0.3))
    return Diagnostician(Workbench(model, dtype, OBJECTIVE, load_policy(None), 0, faults=faults))


def over_faults(judge, kind):
    """Leave-one-out over the faults that are planted on a kind of case."""
    return leave_one_out(judge, tiny_cases(257, 0), kinds=(kind,))


def over_faults_of_objectives(judge):
    """The same over those of other objectives, each on the first case that shows it."""
    return leave_one_out(judge, objective_cases(257, 0), faults=FAULTS_OF_OBJECTIVES, kinds=("groups",))


def over_subjects(judge, kind):
    """Subjects that others might have written, as if they took one kind of case only."""
    for file in ("wrong_subjects", "wrong_tree_trainers"):
        spec = importlib.util.spec_from_file_location(file, SUBJECTS / f"{file}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for of_any_kind in module.WRONG:
            if kind in getattr(of_any_kind, "takes", ("pairs",)):
                subject = type(of_any_kind.__name__, (of_any_kind,), {"takes": (kind,)})()
                yield Attribution(subject.name, subject.stage, judge.diagnose(subject, []))


def report(what, attributions):
    """Print what was named wrongly, and the share that was right."""
    start, done = time.perf_counter(), []
    for attribution in attributions:
        done.append(attribution)
        if not attribution.right:
            named = attribution.named or "nothing"
            print(
                f"  {attribution.name}: {attribution.stage}, but {named} was named first (right at {attribution.place})"
            )
    right = sum(attribution.right for attribution in done)
    elapsed = time.perf_counter() - start
    print(
        f"{what}: right stage first for {right} of {len(done)} ({right / len(done):.1%}), {elapsed:.0f} s", flush=True
    )


def main(dtype="float32", what=""):
    with torch_threads(1):
        for faults, words in ((ALL_FAULTS, "catalogue and evidence"), ((), "evidence alone")):
            judge = diagnostician(dtype, faults)
            if what in ("", "faults"):
                report(f"{dtype}, other objectives, planted faults, {words}", over_faults_of_objectives(judge))
            for kind in CASE_KINDS:
                if what in ("", "subjects"):
                    report(f"{dtype}, {kind}, subjects, {words}", over_subjects(judge, kind))
                if what in ("", "faults"):
                    report(f"{dtype}, {kind}, planted faults, {words}", over_faults(judge, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])

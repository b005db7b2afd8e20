"""How often the diagnosis names the right stage first, and what it costs.

Run with ``python tests/benchmarks/bench_diagnosis.py [float32|float64] [faults|subjects]``; a few minutes on an idle
core. ``faults`` takes each planted fault out of the catalogue and diagnoses it (leave-one-out); ``subjects`` diagnoses
the wrong trainers of tests/verify/diagnosis/wrong_subjects.py, with the catalogue and then with the evidence alone.
"""

import importlib.util
import sys
import time
from pathlib import Path

from verify.cases import tiny_cases
from verify.diagnosis.diagnose import Diagnostician
from verify.diagnosis.measurement import Attribution, leave_one_out
from verify.diagnosis.study import Workbench
from verify.fault_request import OBJECTIVE
from verify.faults.catalogue import FAULTS
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest
from verify.threads import torch_threads
from verify.tolerance import load_policy

SUBJECTS = Path(__file__).parents[1] / "verify" / "diagnosis" / "wrong_subjects.py"


def diagnostician(dtype, faults=FAULTS):
    """The tiny model with the objective of ``packparity faults``."""
    model = ModelRequest(name="tiny", lora=LoraSpec(strength=0.3))
    return Diagnostician(Workbench(model, dtype, OBJECTIVE, load_policy(None), 0, faults=faults))


def over_faults(dtype):
    """Leave-one-out over the catalogue."""
    return leave_one_out(diagnostician(dtype), tiny_cases(257, 0))


def over_subjects(dtype, faults=FAULTS):
    """Subjects that others might have written."""
    spec = importlib.util.spec_from_file_location("wrong_subjects", SUBJECTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    judge = diagnostician(dtype, faults)
    for kind in module.WRONG:
        yield Attribution(kind.name, kind.stage, judge.diagnose(kind(), []))


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
        if what in ("", "subjects"):
            report(f"{dtype}, subjects, catalogue and evidence", over_subjects(dtype))
            report(f"{dtype}, subjects, evidence alone", over_subjects(dtype, faults=()))
        if what in ("", "faults"):
            report(f"{dtype}, planted faults, leave-one-out", over_faults(dtype))


if __name__ == "__main__":
    main(*sys.argv[1:])

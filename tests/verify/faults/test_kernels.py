"""A noisy kernel is noise where all passes go through it, and a fault where the packed pass alone does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from verify.cases import Case
from verify.faults.catalogue import mutation_named
from verify.faults.kernels import JITTER, NOISY_KERNELS, jitter_query_gradients
from verify.gate import GateOutcome
from verify.groups import PreferenceGroup
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, ModelUnderTest, build_model
from verify.objective import Preference
from verify.observation import Observation, observe
from verify.subject import Subject
from verify.subjects.faulty import FaultySubject
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.subjects.selection import select_subject
from verify.verdict import Verdict

TWO_LAYERS = ModelRequest(name="tiny", num_layers=2, lora=LoraSpec(strength=0.3))
PACKED = [select_subject(name) for name in ("dense-sdpa", "split")]


def verdicts(outcome: GateOutcome) -> list[Verdict]:
    return [result.verdict for result in outcome.results]


@dataclass(frozen=True)
class JittersAlone:
    """The honest packed step, but its own passes go through the noisy kernel."""

    name: str = "jitters-alone"

    def per_token_logps(self, model: Any, groups: Sequence[PreferenceGroup]) -> Sequence[Tensor]:
        jitter_query_gradients(model)
        return select_subject("dense-sdpa").per_token_logps(model, groups)


def test_honest_subjects_pass_where_all_passes_jitter(gate: Callable[..., GateOutcome], two_pairs_case: Case) -> None:
    outcome = gate(PACKED, [two_pairs_case], model=TWO_LAYERS, prepare_model=jitter_query_gradients)
    assert verdicts(outcome) == [Verdict.PASS, Verdict.PASS]


def test_jitter_of_the_packed_pass_alone_is_a_difference(
    gate: Callable[..., GateOutcome], two_pairs_case: Case
) -> None:
    outcome = gate([JittersAlone(), *PACKED], [two_pairs_case], model=TWO_LAYERS)
    assert verdicts(outcome) == [Verdict.FAIL, Verdict.PASS, Verdict.PASS]
    assert all(reason.startswith("gradients") for reason in outcome.results[0].reasons)


@pytest.mark.parametrize("name", ["causal-mask-only", "prompt-gradient-averaged", "gradient-slice-stale"])
def test_a_fault_is_caught_in_spite_of_jitter(
    gate: Callable[..., GateOutcome], two_pairs_case: Case, name: str
) -> None:
    subject = FaultySubject(mutation=mutation_named(name))
    outcome = gate([subject], [two_pairs_case], model=TWO_LAYERS, prepare_model=jitter_query_gradients)
    assert verdicts(outcome) == [Verdict.FAIL]


def _observed(built: ModelUnderTest, subject: Subject, case: Case) -> Observation:
    return observe(
        subject, built.model, case.groups, Preference(beta=0.3), apply_objective=apply_objective, seed=0
    )  # fmt: skip


def test_two_runs_differ_by_the_jitter_in_gradients_and_in_nothing_else(two_pairs_case: Case) -> None:
    """And the repeat of the witness is what shows it: without the noisy kernel it agrees to the last bit."""
    plain, noisy = (build_model(TWO_LAYERS, "float64") for _ in range(2))
    jitter_query_gradients(noisy.model)
    for built, is_noisy in ((plain, False), (noisy, True)):
        one, other = (_observed(built, subject, two_pairs_case) for subject in (WITNESS, VARIATIONS["repeat"]))
        assert all(a.equal(b) for a, b in zip(one.per_token_logps, other.per_token_logps, strict=True))
        assert one.gradients is not None
        assert other.gradients is not None
        differing = {
            name: float((one.gradients[name] - other.gradients[name]).norm() / one.gradients[name].norm())
            for name in one.gradients
        }
        if not is_noisy:
            assert set(differing.values()) == {0.0}
            continue
        of_queries = {name: value for name, value in differing.items() if ".q_proj." in name}
        assert all(0.1 * JITTER < value < 10 * JITTER for value in of_queries.values()), of_queries
        # Nothing behind the last attention sees it.
        assert differing["model.layers.1.mlp.down_proj.lora_A"] == 0.0
        assert differing["model.layers.0.mlp.down_proj.lora_A"] > 0.0


def test_every_noisy_kernel_is_run_with_controls_and_with_faults() -> None:
    for kernel in NOISY_KERNELS:
        kinds = {type(mutation_named(name)).__name__ for name in kernel.planted}
        assert kinds == {"Fault", "EquivalentMutant"}

"""One case with everything that is known about it, measured once and used for every subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case
from verify.comparison import StructureError, compare_observations
from verify.diagnosis.alignment import Tokens, hidden_states
from verify.diagnosis.coefficients import Basis, gradient_basis
from verify.diagnosis.differences import Differences, measure_differences
from verify.diagnosis.examples import Example, read_examples
from verify.diagnosis.flow import Decoder, ForwardCall, find_decoder, policy_pass, record_flow
from verify.diagnosis.layers import Yardstick
from verify.diagnosis.sight import Probe, Sight, keys_seen, look, probing
from verify.diagnosis.signature import Signature, signature_of
from verify.diagnosis.tokens import on_all_tokens, tracked_tokens
from verify.faults.catalogue import ALL_FAULTS
from verify.faults.fault import Fault
from verify.frozen_policy import FrozenPolicy
from verify.judgement import JudgingContext
from verify.model_holder import ModelHolder
from verify.model_state import Baseline, restored_model
from verify.models.dtypes import DTYPES
from verify.models.request import ModelRequest
from verify.models.sliding_window import sliding_window
from verify.noise import NoiseSample, measure_noise
from verify.objective import Objective, Preference, objective_named
from verify.observation import Observation, observe
from verify.subject import Subject, SubjectError, gradient_support, said_by
from verify.subjects.faulty import FaultySubject
from verify.subjects.forward_cache import ForwardCache
from verify.subjects.oracle import apply_objective
from verify.subjects.pairwise import VARIATIONS, WITNESS
from verify.subjects.within_window import shows_within
from verify.tolerance import Policy
from verify.training import TrainName

_MOST_ELEMENTS = 50_000_000
"""Of a basis, float64: 400 MB."""


@dataclass(slots=True)
class Workbench:
    """The model that subjects are run on again, and what it was when it was built.

    Args:
        request: The model request.
        dtype: Name of the dtype.
        objective: beta and label smoothing of cases with a preference objective.
        policy: Factors of the budgets.
        seed: Seed of torch's generator during passes.
        variations: Harmless variations of the unpacked path, which set the noise.
        faults: The catalogue that is planted.
        is_reward_model: Build a reward model, of which there are rewards and no log-probs.
    """

    request: ModelRequest
    dtype: str
    objective: Preference
    policy: Policy
    seed: int
    variations: tuple[str, ...] = tuple(VARIATIONS)
    faults: tuple[Fault, ...] = ALL_FAULTS
    is_reward_model: bool = False
    model: Any = field(init=False)
    baseline: Baseline = field(init=False)
    decoder: Decoder | None = field(init=False)
    frozen: FrozenPolicy = field(init=False)
    window: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.rebuild()

    def rebuild(self) -> None:
        """Build the model anew, as after a subject that changed its weights."""
        holder = ModelHolder(self.request, self.dtype, is_reward_model=self.is_reward_model)
        self.model, self.baseline, self.frozen = holder.model, holder.baseline, holder.reference
        self.decoder = None if self.is_reward_model else find_decoder(self.model)
        self.window = sliding_window(self.model.config)

    def observe(self, subject: Subject, case: Case) -> Observation:
        """Run a subject as the gate does.

        Raises:
            SubjectError: It raised, or returned what cannot be compared.
            WeightsChangedError: It changed the model.
        """
        return observe(
            subject, self.model, case.groups, self.objective_of(case),
            apply_objective=apply_objective, seed=self.seed, baseline=self.baseline,
        )  # fmt: skip

    def objective_of(self, case: Case) -> Objective:
        """The objective of a case."""
        return objective_named(case.objective_name, replace(self.objective, reference=self.frozen))

    def observe_with_flow(self, subject: Subject, case: Case) -> tuple[Observation, list[ForwardCall]]:
        """The same, with what passes through the model in the policy pass; raises alike."""
        if self.decoder is None:
            return self.observe(subject, case), []
        differentiable = gradient_support(subject, self.model).supported
        with record_flow(self.decoder, policy_pass(self.model, differentiable=differentiable)) as calls:
            # The hooks of this recording are part of the model for as long as it runs.
            observation = observe(
                subject, self.model, case.groups, self.objective_of(case),
                apply_objective=apply_objective, seed=self.seed,
            )  # fmt: skip
        return observation, calls


@dataclass(slots=True)
class CaseStudy:
    """A case under one dtype.

    Args:
        bench: The model.
        case: The case.
        context: Budgets of this case, from noise measured on it alone.
        witness: What the unpacked path computed.
        witness_flow: What passed through the model meanwhile.
        yardstick: The same with its harmless variations, to hold a subject's against.
        tokens: Tokens that are known by their id.
    """

    bench: Workbench
    case: Case
    context: JudgingContext
    witness: Observation
    witness_flow: Sequence[ForwardCall]
    yardstick: Yardstick
    tokens: Tokens
    _planted: dict[str, Signature] | None = None
    _bases: dict[bool, Basis] = field(default_factory=dict)
    _logits: dict[int, Tensor] | None = None
    _examples: tuple[Example, ...] | None = None
    _seen_unpacked: dict[int, set[int]] | None = None

    @staticmethod
    def of(bench: Workbench, case: Case) -> CaseStudy:
        """Run the unpacked path and its variations on a case.

        Raises:
            SubjectError: The unpacked path cannot be run.
            StructureError: Its forms cannot be compared with each other.
        """
        subjects = (WITNESS, *(VARIATIONS[name] for name in bench.variations))
        runs = {s.name: bench.observe_with_flow(s, case) for s in subjects}
        forms = {name: observation for name, (observation, _) in runs.items()}
        names = list(forms)
        between = {
            f"{one} against {other}": compare_observations(forms[one], forms[other], case.groups)
            for number, other in enumerate(names)
            for one in names[number + 1 :]
        }
        noise = measure_noise([NoiseSample(case.name, to_oracle=between, between=between)])
        context = JudgingContext(
            case=case.name,
            groups=case.groups,
            dtype_name=bench.dtype,
            objective=bench.objective_of(case),
            policy=bench.policy,
            noise=noise,
        )
        tokens, witness_flow = tracked_tokens(case.groups), runs[WITNESS.name][1]
        of_variations = [flow for name, (_, flow) in runs.items() if name != WITNESS.name]
        epsilon = float(torch.finfo(DTYPES[bench.dtype]).eps)
        return CaseStudy(
            bench=bench,
            case=case,
            context=context,
            witness=forms[WITNESS.name],
            witness_flow=witness_flow,
            yardstick=Yardstick(witness_flow, of_variations, tokens, epsilon),
            tokens=tokens,
        )

    def differences(self, actual: Observation) -> Differences:
        """How a subject differs from the unpacked path.

        Raises:
            StructureError: It holds other things.
        """
        return measure_differences(actual, self.witness, self.case, self.context)

    def signature(self, actual: Observation) -> Signature:
        """The signature of a subject's observation; raises as :meth:`differences`."""
        return signature_of(self.differences(actual), actual, self.witness)

    @property
    def logp_budget(self) -> float:
        """Largest difference of a log-prob that rounding explains."""
        return self.differences(self.witness).logp_budget

    @property
    def logp_tolerance(self) -> float:
        """How near two equal log-probs are."""
        return 2 * self.context.noise.by_case[self.case.name, "differential", "per_token_logps", ""].max + 1e-9

    @property
    def group_losses(self) -> Tensor:
        """Right loss of each group on its own, float64 [G]."""
        logps, refs = self._on_all_tokens
        losses, start = [], 0
        for group in self.case.groups:
            part = slice(start, start + len(group.completions))
            start = part.stop
            losses.append(apply_objective(logps[part], refs[part], [group], self.context.objective).loss)
        return torch.stack(losses)

    @property
    def _on_all_tokens(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Log-probs of the unpacked path with zeros at tokens that are not supervised, which no objective looks at."""
        logps, refs = self.witness.per_token_logps, self.witness.ref_per_token_logps
        groups = self.case.groups
        return on_all_tokens(logps, groups), on_all_tokens(refs, groups) if refs else ()

    @property
    def examples(self) -> tuple[Example, ...]:
        """The unpacked path's log-probs of every token of every sequence; computed when first asked for."""
        if self._examples is None:
            self._examples = read_examples(WITNESS, self.bench.model, self.case.groups, self.bench.baseline)
        return self._examples

    def planted(self) -> Mapping[str, Signature]:
        """Signatures of the catalogue's faults on this case, by name; planted when first asked for."""
        if self._planted is None:
            self._planted = {}
            forwards = ForwardCache(self.bench.model)
            for fault in plantable(
                self.bench.faults, self.case, trains=self.bench.request.train, window=self.bench.window
            ):
                try:
                    observation = self.bench.observe(FaultySubject(mutation=fault, forwards=forwards), self.case)
                    signature = self.signature(observation)
                except (SubjectError, StructureError):
                    continue  # a fault that cannot even be compared here is nobody's neighbour
                self._planted[fault.name] = signature
        return self._planted

    @property
    def fits_token_basis(self) -> bool:
        """Whether gradients of all tokens fit into memory."""
        trained = sum(int(p.numel()) for p in self.bench.model.parameters() if p.requires_grad)
        num_tokens = sum(len(ids) for group in self.case.groups for ids in group.completions)
        return trained * num_tokens <= _MOST_ELEMENTS

    def gradient_basis(self, *, per_token: bool) -> Basis:
        """Gradients of the unpacked path's log-probs, by response or by token; computed when first asked for."""
        if per_token not in self._bases:
            self._bases[per_token] = gradient_basis(
                VARIATIONS["eager"],
                self.bench.model,
                self.case.groups,
                self.context.objective,
                per_token=per_token,
                apply_objective=apply_objective,
                ref_logps=self._on_all_tokens[1],
                baseline=self.bench.baseline,
            )
        return self._bases[per_token]

    def logits(self) -> Mapping[int, Tensor]:
        """The unpacked path's logits at each tracked token, float64 [V]; computed when first asked for."""
        if self._logits is None:
            self._logits = {}
            states = hidden_states(self.witness_flow, self.tokens, "final norm")
            decoder = self.bench.decoder
            if decoder is not None and states is not None:
                first = states.first_copies()
                with torch.no_grad():
                    values = decoder.head(first.vectors.to(self.bench.model.device, self.bench.model.dtype))
                self._logits = dict(zip(first.ids.tolist(), values.cpu().double(), strict=True))
        return self._logits

    def look_through(self, subject: Subject) -> Sight | None:
        """Run a subject once more to see what attends to what.

        Returns:
            The sight, or None where the model's modules are not known.

        Raises:
            SubjectError: The subject raised.
            WeightsChangedError: It changed the model.
        """
        seen = self._seen_by(subject)
        if seen is None:
            return None
        if self._seen_unpacked is None:
            unpacked = self._seen_by(WITNESS)
            self._seen_unpacked = keys_seen(*unpacked, self.tokens) if unpacked is not None else {}
        return look(*seen, self.tokens, self.case.groups, self._seen_unpacked)

    def _seen_by(self, subject: Subject) -> tuple[list[ForwardCall], dict[int, Tensor]] | None:
        """Passes of a subject, and by their numbers which slot sees which; None where the modules are not known."""
        decoder, model = self.bench.decoder, self.bench.model
        if decoder is None:
            return None
        probe = Probe.of(decoder, model.config)
        calls, seen = self._pass(subject, decoder, probe, 0)
        longest = max((call.input_ids.shape[1] for call in calls), default=0)
        parts = [seen]
        for first_key in range(probe.keys_per_pass, longest, probe.keys_per_pass) if probe is not None else ():
            again, seen = self._pass(subject, decoder, probe, first_key)
            if [call.input_ids.tolist() for call in again] != [call.input_ids.tolist() for call in calls]:
                parts = [{}]  # fed otherwise than before: what was seen does not belong together
                break
            parts.append(seen)
        return calls, {
            number: torch.cat([part[number] for part in parts], dim=-1)[..., : calls[number].input_ids.shape[1]]
            for number in set(parts[0]).intersection(*parts)
        }

    def _pass(
        self, subject: Subject, decoder: Decoder, probe: Probe | None, first_key: int
    ) -> tuple[list[ForwardCall], Mapping[int, Tensor]]:
        """One pass of the policy, with values replaced by ones for some keys."""
        model = self.bench.model
        differentiable = gradient_support(subject, model).supported
        with (
            record_flow(decoder, lambda: True) as calls,
            probing(probe, calls, first_key) as seen,
            restored_model(model, subject.name, seed=self.bench.seed),
            torch.set_grad_enabled(differentiable),
        ):
            try:
                subject.per_token_logps(model, self.case.groups)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise SubjectError(f"subject {subject.name} raised {said_by(error)}") from error
        return calls, seen


def plantable(
    faults: Sequence[Fault], case: Case, *, trains: TrainName = "lora", window: int | None = None
) -> tuple[Fault, ...]:
    """Those faults that change a value on a case, in a step that trains this, of a model with this sliding window."""
    planted = (fault for fault in faults if trains in fault.trains and not (fault.of_windows and window is None))
    biting = (fault for fault in planted if "parity" in fault.must_kill and fault.bites(case))
    return tuple(fault for fault in biting if window is None or shows_within(window, fault, case))


def with_zeros(actual: Observation, expected: Observation) -> Observation:
    """An observation in which trained tensors without gradient have one of zeros, and no others are there."""
    if actual.gradients is None or expected.gradients is None:
        return actual
    gradients = {n: actual.gradients.get(n, torch.zeros_like(g)) for n, g in expected.gradients.items()}
    return replace(actual, gradients=gradients)

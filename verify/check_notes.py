"""Notes of a run of the gate: what was chosen, cut or left out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verify.case_files import file_sha256
from verify.checks.catalogue import CHECKS_ONLY_IN_FULL, FEW_PASSES
from verify.checks.optimizer_steps import QUICK_SUBJECTS
from verify.models.configs import NAMED_CONFIGS
from verify.models.request import has_rotary_positions, requested_config
from verify.router_balance import experts_per_token
from verify.subjects.oracle import unknown_to_oracle
from verify.subjects.packed import PACKED_SUBJECTS
from verify.subjects.selection import ONLY_IN_FULL

_REFERENCES = {
    "frozen-adapter": "a second, frozen adapter of the same model",
    "separate-model": "another frozen model, whose matrices are a tenth off those of the policy",
    "cached": "per-token log-probs that another frozen model computed before, unpacked, looked up by tokens",
}

if TYPE_CHECKING:
    from verify.check_request import PreparedCheck


def notes_of(prepared: PreparedCheck, published: int) -> list[str]:
    """What a reader must know of a request beside the verdict.

    Args:
        prepared: The request and the options that it came from.
        published: Number of layers of the model before its depth was cut.

    Returns:
        One line each.
    """
    options, request, notes = prepared.options, prepared.request, []
    if prepared.loaded is not None:
        notes.append(prepared.loaded.describe())
    if options.cases_file is not None:
        notes.append(f"cases are those of {options.cases_file.name} (sha256 {file_sha256(options.cases_file)})")
    if options.layers is not None and options.layers < published:
        notes.append(f"the depth was cut: {options.layers} of {published} layers")
    if options.model.lower() in NAMED_CONFIGS and not options.is_tiny:
        notes.append("weights are seeded random numbers on the published config, not the published weights")
    if request.model.config is not None:
        notes.append(f"weights are seeded random numbers on the shape of {Path(options.model).name}")
    if request.model.family:
        notes.append("weights are seeded random numbers on a tiny config of the family")
    if options.full and not options.cases and options.cases_file is None and prepared.loaded is None:
        config = requested_config(request.model)
        if not prepared.reduced and request.objective.name == "sigmoid" and unknown_to_oracle(config):
            notes.append(
                "the case objective-reward-model was left out: reward models are judged where there is an oracle"
            )
    if request.model_with_images is not None:
        notes.append(
            f"cases with images were run on {request.model_with_images.name}, whose noise was measured apart, and held "
            "against its own unpacked path in float64"
        )
    if not options.variations and not has_rotary_positions(requested_config(request.model)):
        notes.append("positions are not rotary: the variation junk-in-front would change values, and was left out")
    if request.model.train == "all":
        notes.append("every weight was trained: embedding, norms, projections and head; there are no adapters")
    if request.model.reference != "adapters-off":
        notes.append(f"reference policy: {_REFERENCES[request.model.reference]}")
    notes += _of_routers(prepared)
    if prepared.reduced:
        reduced = {
            "cases": not options.cases and options.cases_file is None and prepared.loaded is None,
            "subjects": not options.subjects and not options.backends,
            "variations": not options.variations,
        }
        which = [name for name, is_reduced in reduced.items() if is_reduced]
        if which:
            notes.append(
                f"a large model: fewer {', '.join(which)} than for the tiny one ran by default; "
                "--case, --subject and --variation ask for more, --full for all"
            )
        names = ", ".join(check.name for check in FEW_PASSES)
        notes.append(f"a large model: of the exact checks only {names}, which take few passes of it")
    elif not options.full and not options.subjects and not options.backends:
        notes.append(f"left out to be quick, and judged with --full: {', '.join(ONLY_IN_FULL)}")
    if not prepared.reduced and not options.full:
        left_out = any(s in PACKED_SUBJECTS and s.name not in QUICK_SUBJECTS for s in request.subjects)
        of_ours = f", of our own packed subjects on {' and '.join(QUICK_SUBJECTS)} alone" if left_out else ""
        notes.append(
            f"of the exact checks optimizer-steps ran on pairs alone{of_ours}, and left out were "
            f"{', '.join(CHECKS_ONLY_IN_FULL)}; --full runs all of them on every kind of case"
        )
    if options.policy is not None:
        notes.append(f"tolerances are those of {options.policy.name}, not the default policy")
    if options.device == "cpu" and any(getattr(subject, "backend", "") == "flex" for subject in request.subjects):
        notes.append("flex ran unfused and forward only: FlexAttention has no backward pass on a CPU")
    return notes


def _of_routers(prepared: PreparedCheck) -> list[str]:
    config, coefficient = requested_config(prepared.request.model), prepared.options.router_loss
    if not experts_per_token(config):
        return []
    if coefficient is None:
        published = config.get_text_config().router_aux_loss_coef
        return [
            "the load balancing loss of the routers is no part of the objective; trainers that add it (TRL does, with "
            f"the config's router_aux_loss_coef, {published:g}) are judged with --router-loss {published or 0.001:g}"
        ]
    return [
        f"router loss: {coefficient:g} times the load balancing loss over all sequences of a case as one padded batch, "
        "prompts once for each completion, no padding, the policy's pass alone; the exact checks leave it out"
    ]

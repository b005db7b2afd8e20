"""Notes of a run of the gate: what was chosen, cut or left out."""

from __future__ import annotations

from collections.abc import Iterator
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
    return [
        *_of_cases(prepared),
        *_of_weights(prepared, published),
        *_of_cases_elsewhere(prepared),
        *_of_training(prepared),
        *_of_routers(prepared),
        *_of_what_is_left_out(prepared),
        *_of_settings(prepared),
    ]


def _of_cases(prepared: PreparedCheck) -> Iterator[str]:
    options = prepared.options
    if prepared.loaded is not None:
        yield prepared.loaded.describe()
    if options.cases_file is not None:
        yield f"cases are those of {options.cases_file.name} (sha256 {file_sha256(options.cases_file)})"


def _of_weights(prepared: PreparedCheck, published: int) -> Iterator[str]:
    options, model = prepared.options, prepared.request.model
    if options.layers is not None and options.layers < published:
        yield f"the depth was cut: {options.layers} of {published} layers"
    if options.model.lower() in NAMED_CONFIGS and not options.is_tiny:
        yield "weights are seeded random numbers on the published config, not the published weights"
    if model.config is not None:
        yield f"weights are seeded random numbers on the shape of {Path(options.model).name}"
    if model.family:
        yield "weights are seeded random numbers on a tiny config of the family"


def _of_cases_elsewhere(prepared: PreparedCheck) -> Iterator[str]:
    """Cases and variations that the model cannot have, and cases that are run on another one."""
    options, request = prepared.options, prepared.request
    config = requested_config(request.model)
    all_of_ours = options.full and not options.cases and options.cases_file is None and prepared.loaded is None
    if all_of_ours and not prepared.reduced and request.objective.name == "sigmoid" and unknown_to_oracle(config):
        yield "the case objective-reward-model was left out: reward models are judged where there is an oracle"
    if request.model_with_images is not None:
        yield (
            f"cases with images were run on {request.model_with_images.name}, whose noise was measured apart, and held "
            "against its own unpacked path in float64"
        )
    if not options.variations and not has_rotary_positions(config):
        yield "positions are not rotary: the variation junk-in-front would change values, and was left out"


def _of_training(prepared: PreparedCheck) -> Iterator[str]:
    model = prepared.request.model
    if model.train == "all":
        yield "every weight was trained: embedding, norms, projections and head; there are no adapters"
    if model.reference != "adapters-off":
        yield f"reference policy: {_REFERENCES[model.reference]}"


def _of_what_is_left_out(prepared: PreparedCheck) -> Iterator[str]:
    """What ``--full`` would have run as well."""
    options = prepared.options
    if prepared.reduced:
        yield from _of_a_large_model(prepared)
        return
    if options.full:
        return
    if not options.subjects and not options.backends:
        yield f"left out to be quick, and judged with --full: {', '.join(ONLY_IN_FULL)}"
    left_out = any(s in PACKED_SUBJECTS and s.name not in QUICK_SUBJECTS for s in prepared.request.subjects)
    of_ours = f", of our own packed subjects on {' and '.join(QUICK_SUBJECTS)} alone" if left_out else ""
    yield (
        f"of the exact checks optimizer-steps ran on pairs alone{of_ours}, and left out were "
        f"{', '.join(CHECKS_ONLY_IN_FULL)}; --full runs all of them on every kind of case"
    )


def _of_a_large_model(prepared: PreparedCheck) -> Iterator[str]:
    options = prepared.options
    reduced = {
        "cases": not options.cases and options.cases_file is None and prepared.loaded is None,
        "subjects": not options.subjects and not options.backends,
        "variations": not options.variations,
    }
    which = [name for name, is_reduced in reduced.items() if is_reduced]
    if which:
        yield (
            f"a large model: fewer {', '.join(which)} than for the tiny one ran by default; "
            "--case, --subject and --variation ask for more, --full for all"
        )
    names = ", ".join(check.name for check in FEW_PASSES)
    yield f"a large model: of the exact checks only {names}, which take few passes of it"


def _of_settings(prepared: PreparedCheck) -> Iterator[str]:
    options = prepared.options
    if options.policy is not None:
        yield f"tolerances are those of {options.policy.name}, not the default policy"
    of_flex = any(getattr(subject, "backend", "") == "flex" for subject in prepared.request.subjects)
    if options.device == "cpu" and of_flex:
        yield "flex ran unfused and forward only: FlexAttention has no backward pass on a CPU"


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

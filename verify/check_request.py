"""From options of ``packparity check`` to a request whose every part was found good."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from verify.check_cases import choose_cases
from verify.check_refusals import check_cases_fit, check_planted_fit, check_routers, refuse_what_does_not_go_together
from verify.checks.catalogue import EXACT_CHECKS, FEW_PASSES, QUICK_CHECKS
from verify.checks.check import ExactCheck
from verify.frozen_policy import ReferenceName
from verify.gate import GateRequest
from verify.gate_pieces import pieces_of
from verify.jobs import choose_num_processes, why_one_process
from verify.models.configs import TINY_CONFIGS, TINY_PREFIX
from verify.models.dtypes import DTYPES
from verify.models.family import module_names
from verify.models.lora import LoraSpec
from verify.models.memory import check_memory
from verify.models.request import ModelRequest, has_rotary_positions, requested_config, vocabulary_size
from verify.models.shape_file import is_shape_file, read_shape
from verify.models.sliding_window import sliding_window
from verify.models.vision import TINY_WITH_IMAGES, image_format
from verify.objective import REWARD_MODEL, run_objective
from verify.precision import PRECISIONS
from verify.proof_of_life.planting import Plantings, choose_plantings
from verify.subject import Subject
from verify.subjects.oracle import unknown_to_oracle
from verify.subjects.pairwise import VARIATIONS, default_variations
from verify.subjects.selection import default_subjects, select_subject
from verify.tolerance import load_policy
from verify.training import TrainName, default_reference

if TYPE_CHECKING:
    from verify.data.load import LoadedPairs

_TINY = "tiny"
_LARGE = 8_000_000
"""Weights that multiply each token, from which on a model is large; one layer of Qwen3-0.6B and its head have 171 M."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of the command line, as given; and whether torch was loaded for this run alone (``heavy_imports``)."""

    model: str = _TINY
    layers: int | None = None
    data: Path | None = None
    tokenizer: Path | None = None
    pairs: int | None = None
    max_tokens: int | None = None
    cases_file: Path | None = None
    cases: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    full: bool = False
    variations: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int | None = None
    jobs: int | None = None
    fresh: bool = False
    seed: int = 0
    objective: str = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    nll_weight: float | None = None
    router_loss: float | None = None
    train: TrainName = "lora"
    reference: ReferenceName | None = None
    policy: Path | None = None
    out: Path | None = None
    shrink: bool = False
    shrink_seconds: float = 60.0

    @property
    def frozen_policy(self) -> ReferenceName:
        """The frozen policy that is asked for, or that goes with what is trained."""
        return default_reference(self.train) if self.reference is None else self.reference

    @property
    def is_tiny(self) -> bool:
        """Whether an embedded tiny model, or a tiny one of a family, is asked for: everything is cheap there."""
        return self.model.lower() in TINY_CONFIGS or self.model.lower().startswith(TINY_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCheck:
    """A request whose every option and input file was found good.

    Args:
        request: What the gate will be asked.
        plantings: The faults that are planted beside the subjects.
        options: The options it came from.
        loaded: The real pairs, or None.
        large: A single pass of the model takes seconds.
        reduced: Fewer cases, subjects, variations and exact checks run for that; with ``--full`` they do not.
        num_threads: Threads of torch; None for its own choice.
        num_processes: Processes that the run is shared among.
    """

    request: GateRequest
    plantings: Plantings
    options: CheckOptions
    loaded: LoadedPairs | None
    large: bool
    reduced: bool
    num_threads: int | None
    num_processes: int

    @property
    def gate_request(self) -> GateRequest:
        """The request with the planted faults as subjects."""
        return _with_planted(self.request, self.plantings)

    @property
    def checks(self) -> tuple[ExactCheck, ...]:
        """The exact checks."""
        return _checks(self.options, self.reduced)


def _with_planted(request: GateRequest, plantings: Plantings) -> GateRequest:
    return replace(request, subjects=(*request.subjects, *plantings.subjects))


def _checks(options: CheckOptions, reduced: bool) -> tuple[ExactCheck, ...]:
    if reduced:
        return FEW_PASSES
    return EXACT_CHECKS if options.full else QUICK_CHECKS


def prepare_check(options: CheckOptions) -> PreparedCheck:
    """Turn options into a request; everything that can be wrong with them is found here, before any work.

    Args:
        options: The options.

    Returns:
        The request and what it came from.

    Raises:
        ValueError: An option or an input is wrong; the message says which and what would be right.
    """
    refuse_what_does_not_go_together(options)
    model = _model_request(options)
    config = requested_config(model)
    vocab_size, large = vocabulary_size(model), not model.family and _is_large(config, options.layers)
    reduced = large and not options.full
    subjects = _subjects(options, reduced)
    window = sliding_window(config, options.layers)
    check_planted_fit(subjects, options.train, router_loss=options.router_loss is not None, window=window)
    objective = run_objective(
        options.objective,
        beta=options.beta,
        label_smoothing=options.label_smoothing,
        nll_weight=options.nll_weight,
        router_loss=options.router_loss,
    )
    images, no_oracle = image_format(config), unknown_to_oracle(config)
    with_images = None if images is not None else _model_with_images(options, model)
    config_with_images = config if with_images is None else requested_config(with_images)
    cases, loaded = choose_cases(
        options,
        vocab_size=vocab_size,
        reduced=reduced,
        objective=objective.name,
        reward_models=not no_oracle,
        images=image_format(config_with_images),
    )
    check_routers(options, config, cases)
    check_cases_fit([case for case in cases if not case.has_images], config, no_oracle, options.train)
    check_cases_fit([case for case in cases if case.has_images], config_with_images, no_oracle, options.train)
    request = GateRequest(
        model=model,
        dtypes=_dtypes(options),
        subjects=subjects,
        cases=cases,
        objective=objective,
        policy=load_policy(options.policy),
        variations=_variations(options, reduced, config),
        seed=options.seed,
        model_with_images=with_images if any(case.has_images for case in cases) else None,
    )
    check_memory(
        model,
        request.dtypes,
        num_forms=1 + len(request.variations),
        num_cases=len(cases),
        held_in_float64=bool(no_oracle),
    )
    plantings = _plantings(request, options, config, vocab_size, by_oracle=not no_oracle)
    threads = options.threads or (1 if options.is_tiny else None)
    num_processes = choose_num_processes(
        options.jobs,
        num_pieces=len(pieces_of(_with_planted(request, plantings), _checks(options, reduced))),
        num_threads=threads or torch.get_num_threads(),
        obstacle=why_one_process(subjects, device=options.device, large=large, fresh=options.fresh),
    )
    return PreparedCheck(
        request=request,
        plantings=plantings,
        options=options,
        loaded=loaded,
        large=large,
        reduced=reduced,
        num_threads=threads,
        num_processes=num_processes,
    )


def _plantings(
    request: GateRequest, options: CheckOptions, config: Any, vocab_size: int, *, by_oracle: bool
) -> Plantings:
    """Faults that this model shows."""
    text = config.get_text_config()
    return choose_plantings(
        request,
        vocab_size=vocab_size,
        num_layers=options.layers or int(text.num_hidden_layers),
        is_tiny=options.is_tiny,
        window=sliding_window(config, options.layers),
        module_names=None if by_oracle else module_names(config),
        is_tied=bool(getattr(text, "tie_word_embeddings", False)),
    )


def _model_with_images(options: CheckOptions, model: ModelRequest) -> ModelRequest | None:
    """What cases with images are run on where the tiny model is judged on all of our own cases."""
    if not options.full or options.model.lower() != _TINY or options.objective == REWARD_MODEL:
        return None
    return None if options.cases_file or options.data else replace(model, name=TINY_WITH_IMAGES)


def _model_request(options: CheckOptions) -> ModelRequest:
    shape = read_shape(Path(options.model)) if is_shape_file(options.model) else None
    return ModelRequest(
        name=options.model,
        num_layers=options.layers,
        device=options.device,
        seed=options.seed,
        lora=shape.lora if shape else LoraSpec(strength=0.3 if options.is_tiny else 0.1),
        config=shape.config if shape else None,
        reference=options.frozen_policy,
        train=options.train,
    )


def _is_large(config: Any, num_layers: int | None) -> bool:
    """Whether a single pass takes seconds rather than milliseconds: then fewer things run unless they are asked for."""
    config = config.get_text_config()
    hidden, layers = int(config.hidden_size), num_layers or int(config.num_hidden_layers)
    of_a_layer = 4 * hidden**2 + 3 * hidden * int(getattr(config, "intermediate_size", None) or 4 * hidden)
    return layers * of_a_layer + hidden * int(config.vocab_size) >= _LARGE


def _subjects(options: CheckOptions, reduced: bool) -> tuple[Subject, ...]:
    if options.subjects and options.backends:
        raise ValueError("give --subject or --backend, not both: --backend chooses among the built-in subjects")
    if options.subjects:
        return tuple(select_subject(name) for name in options.subjects)
    subjects = default_subjects(options.backends, full=options.full)
    if options.backends or not reduced:
        return subjects
    # One dense path, and one that computes nothing a mask would throw away, stand for the rest.
    return tuple(s for s in subjects if s.name in ("dense-sdpa", "split"))


def _variations(options: CheckOptions, reduced: bool, config: Any) -> tuple[str, ...]:
    if options.variations:
        return options.variations
    default = default_variations(options.device)
    if not has_rotary_positions(config):
        default = tuple(name for name in default if not VARIATIONS[name].positions_run_on)
    # The two that differ most stand for the rest of those that rearrange.
    return tuple(name for name in default if name in ("eager", "padded-left", "repeat")) if reduced else default


def _dtypes(options: CheckOptions) -> tuple[str, ...]:
    for dtype in options.dtypes:
        if dtype not in PRECISIONS:
            raise ValueError(f"unknown dtype {dtype!r}: give {', '.join(PRECISIONS)}")
    return options.dtypes or (tuple(DTYPES) if options.full else ("float32",))

"""What faults are planted in: models, the cases that are run on them, and their objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from verify.cases import Case
from verify.default_cases.images import image_cases
from verify.default_cases.objectives import objective_cases
from verify.default_cases.references import reference_cases
from verify.default_cases.tiny import tiny_cases
from verify.faults.fault import Fault, Mutation
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, requested_config, vocabulary_size
from verify.models.sliding_window import sliding_window
from verify.models.vision import TINY_WITH_IMAGES, image_format
from verify.objective import Preference
from verify.subjects.within_window import shows_within

OBJECTIVE = Preference(beta=0.1, label_smoothing=0.1)
"""No option at the value that hides its absence: beta is not 1, label smoothing not 0."""
MODEL, MODEL_WITH_IMAGES, MODEL_WITH_ROUTERS, MODEL_WITH_WINDOWS = (
    "tiny",
    TINY_WITH_IMAGES,
    "tiny-qwen3-moe",
    "tiny-mistral",
)
COEFFICIENT_OF_ROUTERS = 0.01
"""Small, as in training: the loss of routers is then a hundredth of the loss."""
_CASES_OF_ROUTERS = 4

GroundName = Literal["text", "images", "every weight", "routers", "windows"]
GROUND_NAMES: tuple[GroundName, ...] = get_args(GroundName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where faults are planted.

    Args:
        model: The model.
        cases: Cases that are run on it.
        objective: beta and label smoothing of cases with a preference objective.
        only_cases_of_faults: Cases that show no fault that is planted are left out, and with them their noise.
        dtypes_left_out: In which rounding hides the faults.
        exact_checks: Which faults are put to the exact checks; "named": those that one of them must catch.
        window: Sliding window of the model's layers; None for none.
    """

    model: ModelRequest
    cases: tuple[Case, ...]
    objective: Preference = OBJECTIVE
    only_cases_of_faults: bool = False
    dtypes_left_out: tuple[str, ...] = ()
    exact_checks: Literal["all", "named", "none"] = "all"
    window: int | None = None

    def is_asked(self, mutation: Mutation) -> bool:
        """Whether a mutation is put to the exact checks."""
        if self.exact_checks == "named":
            return isinstance(mutation, Fault) and not {"parity", "packed-ran"} & set(mutation.must_kill)
        return self.exact_checks == "all"

    def shows(self, mutation: Mutation, case: Case) -> bool:
        """Whether the window, if there is one, leaves anything of a fault to be seen."""
        if self.window is None or not isinstance(mutation, Fault) or not mutation.bites(case):
            return True
        try:
            return shows_within(self.window, mutation, case)
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever a user's replacement raises: the gate, which runs it, says so
            return True


def ground_of(mutation: Mutation) -> GroundName:
    """Where a mutation is planted."""
    if mutation.of_routers:
        return "routers"
    if mutation.of_windows:
        return "windows"
    if "lora" not in mutation.trains:
        return "every weight"
    return "images" if mutation.with_images else "text"


def fault_grounds(seed: int, case_names: Sequence[str]) -> Mapping[GroundName, Ground]:
    """What mutations are planted in.

    Args:
        seed: Seed of weights and cases.
        case_names: Cases that are run; all of them if there are none.

    Returns:
        The grounds by name.

    Raises:
        ValueError: There is no case of some name.
    """
    text, with_images, with_routers, with_windows = (
        ModelRequest(name=name, seed=seed, lora=LoraSpec(strength=0.3))
        for name in (MODEL, MODEL_WITH_IMAGES, MODEL_WITH_ROUTERS, MODEL_WITH_WINDOWS)
    )
    images = image_format(requested_config(with_images))
    assert images is not None
    vocab_size = vocabulary_size(text)
    of_text = tiny_cases(vocab_size, seed)
    cases = (*of_text, *objective_cases(vocab_size, seed), *reference_cases(vocab_size, seed))
    of_images = image_cases(vocabulary_size(with_images), seed, images)
    names = [case.name for case in (*cases, *of_images)]
    for name in case_names:
        if name not in names:
            raise ValueError(f"unknown case {name!r}: give some of {', '.join(names)}")

    def named(cases: Sequence[Case]) -> tuple[Case, ...]:
        return tuple(case for case in cases if not case_names or case.name in case_names)

    several_pairs = [case for case in of_text if case.kind == "pairs" and len(case.groups) > 1]
    return {
        "text": Ground(model=text, cases=named(cases)),
        "images": Ground(model=with_images, cases=named(of_images)),
        "every weight": Ground(
            model=replace(text, train="all", reference="separate-model"),
            cases=named([case for case in cases if case.reference is None]),
            only_cases_of_faults=True,
            exact_checks="named",
        ),
        "routers": Ground(
            model=with_routers,
            cases=named(sorted(several_pairs, key=lambda case: case.pairwise_slots)[:_CASES_OF_ROUTERS]),
            objective=replace(OBJECTIVE, router_aux_loss_coef=COEFFICIENT_OF_ROUTERS),
            dtypes_left_out=("bfloat16",),  # rounding turns expert choices, and then nothing is proven
            exact_checks="none",
        ),
        "windows": Ground(
            model=with_windows,
            cases=named(of_text),
            only_cases_of_faults=True,
            window=sliding_window(requested_config(with_windows)),
        ),
    }

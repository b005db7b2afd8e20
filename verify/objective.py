"""The objective of a run, as a value that subjects receive."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from verify.frozen_policy import ADAPTERS_OFF, FrozenPolicy

PreferenceName = Literal[
    "sigmoid",
    "robust",
    "hinge",
    "ipo",
    "sigmoid_norm",
    "rpo",
    "groupdpo-margin",
    "groupdpo-mpo",
    "groupdpo-softmax",
    "groupdpo-all-pairs",
]
SftName = Literal["sft-token-mean", "sft-example-mean"]
RewardModelName = Literal["reward-model"]
ComparingName = PreferenceName | RewardModelName
ObjectiveName = ComparingName | SftName
PREFERENCE_NAMES: tuple[PreferenceName, ...] = get_args(PreferenceName)
SFT_NAMES: tuple[SftName, ...] = get_args(SftName)
REWARD_MODEL: RewardModelName = "reward-model"
COMPARING_NAMES: tuple[ComparingName, ...] = (*PREFERENCE_NAMES, REWARD_MODEL)
OBJECTIVE_NAMES: tuple[ObjectiveName, ...] = (*COMPARING_NAMES, *SFT_NAMES)

SMOOTHED: tuple[PreferenceName, ...] = ("sigmoid", "robust", "sigmoid_norm", "rpo")
"""Objectives that label smoothing is a part of."""
_SUMMED = ("sigmoid", "robust", "hinge", "rpo")
_WITH_NLL = ("rpo", "groupdpo-margin", "groupdpo-mpo", "groupdpo-softmax", "groupdpo-all-pairs")

_SMALLEST_BETA, _LARGEST_BETA = 1e-4, 100.0
_LARGEST_SMOOTHING = 0.45
_ROBUST_SMOOTHING = 0.1
_LARGEST_COEFFICIENT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """An objective that prefers some responses of a prompt to others, over a frozen policy.

    A response scores s, the sum of its supervised log-probs or their mean; its reward is u = beta (s - s_ref). The loss
    of a batch is the mean over its groups of phi(u) + nll_weight * (mean over the group's preferred responses of minus
    the mean log-prob). Of a group with m preferred and n rejected responses phi is, in the DPO family, the mean over
    its m n pairs (derived: the published loss at 1+1). docs/objectives.md has every formula and its source.

    Args:
        name: "sigmoid" (Rafailov et al. 2023, eq. 7; label smoothing: Mitchell 2023) or another of
            ``PREFERENCE_NAMES``.
        beta: Strength of the pull towards the reference policy; above 0.
        label_smoothing: Probability that a preference label is flipped, in [0, 0.45]; 0 where the objective has none.
        nll_weight: Weight of the likelihood of preferred responses, at least 0. What is published as "rpo" and as
            GroupDPO has some (:func:`published_nll_weight`).
        reference: The frozen policy.
        router_aux_loss_coef: Weight of the load balancing loss of the policy's routers, which is added to that of the
            batch (:mod:`verify.router_balance`); 0 where it is no part of the objective.

    Raises:
        ValueError: An unknown name, or a value outside its range.
    """

    name: PreferenceName = "sigmoid"
    beta: float = 0.1
    label_smoothing: float = 0.0
    nll_weight: float = 0.0
    reference: FrozenPolicy = ADAPTERS_OFF
    router_aux_loss_coef: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in PREFERENCE_NAMES:
            raise ValueError(f"unknown objective {self.name!r}: give one of {', '.join(PREFERENCE_NAMES)}")
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta is {self.beta}: it must be a positive number")
        if not _SMALLEST_BETA <= self.beta <= _LARGEST_BETA:
            raise ValueError(
                f"beta is {self.beta}: outside [{_SMALLEST_BETA}, {_LARGEST_BETA}] float32 cannot tell rewards or "
                "coefficients from zero"
            )
        if not 0 <= self.label_smoothing <= _LARGEST_SMOOTHING:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}: it must lie in [0, {_LARGEST_SMOOTHING}] (nearer to 0.5 "
                "both labels pull alike, and what is left of the coefficient of a gradient is rounding)"
            )
        if self.label_smoothing and self.name not in SMOOTHED:
            raise ValueError(
                f"label_smoothing is {self.label_smoothing}: {self.name} has none; it is part of {', '.join(SMOOTHED)}"
            )
        if not 0 <= self.nll_weight < math.inf:
            raise ValueError(f"nll_weight is {self.nll_weight}: it must be a number of at least 0")
        _check_coefficient(self.router_aux_loss_coef)

    @property
    def settings(self) -> dict[str, str | float]:
        """Everything by name, for a record; of the frozen policy its kind."""
        return {
            "name": self.name,
            "beta": self.beta,
            "label_smoothing": self.label_smoothing,
            "nll_weight": self.nll_weight,
            "reference": self.reference.name,
            **_settings_of_routers(self.router_aux_loss_coef),
        }

    @property
    def sums_tokens(self) -> bool:
        """Whether a response scores the sum of its log-probs; else their mean."""
        return self.name in _SUMMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Supervised fine-tuning: the mean of -log p over supervised tokens. It has no frozen policy, rewards or margins.

    The two means weight examples differently. Two completions of one and of three supervised tokens with losses ``a``
    and ``b b b``: the token mean is (a + 3b) / 4, the example mean (a + b) / 2.

    Args:
        mean: "token": over all supervised tokens of the batch. "example": over the completions, of each one's own mean.
        router_aux_loss_coef: As in :class:`Preference`.

    Raises:
        ValueError: A value outside its range.
    """

    mean: Literal["token", "example"] = "token"
    router_aux_loss_coef: float = 0.0

    def __post_init__(self) -> None:
        _check_coefficient(self.router_aux_loss_coef)

    @property
    def name(self) -> SftName:
        """The name of the objective."""
        return "sft-token-mean" if self.mean == "token" else "sft-example-mean"

    @property
    def settings(self) -> dict[str, str | float]:
        """Everything by name, for a record."""
        return {"name": self.name, "mean": self.mean, **_settings_of_routers(self.router_aux_loss_coef)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """A reward model learns which responses of a prompt are preferred: Bradley-Terry, ``-log sigma(r_p - r_n)``.

    ``r`` is the value of a scalar head on the final hidden state of a completion's last token. The loss of a batch is
    the mean over its groups of the mean over a group's pairs. It has no frozen policy, no log-probs and no parameters;
    adapters and head are trained (Ouyang et al. 2022, eq. 1).
    """

    name: RewardModelName = REWARD_MODEL
    router_aux_loss_coef: ClassVar[float] = 0.0
    """transformers' classifiers have no load balancing loss."""

    @property
    def settings(self) -> dict[str, str | float]:
        """Everything by name, for a record."""
        return {"name": self.name}


Objective = Preference | Sft | RewardModel
RunObjective = Preference | RewardModel
"""What the cases of a run are under that compare responses."""


def _check_coefficient(router_aux_loss_coef: float) -> None:
    if not 0 <= router_aux_loss_coef < math.inf:
        raise ValueError(
            f"router_aux_loss_coef is {router_aux_loss_coef}: it must be a positive number, or 0 for no router loss"
        )
    _check_not_too_large("router_aux_loss_coef", router_aux_loss_coef)


def _check_not_too_large(name: str, coefficient: float) -> None:
    if coefficient > _LARGEST_COEFFICIENT:
        raise ValueError(
            f"{name} is {coefficient:g}: above {_LARGEST_COEFFICIENT:g} float32 cannot tell the rest of the loss from "
            "rounding"
        )


def _settings_of_routers(router_aux_loss_coef: float) -> dict[str, str | float]:
    """Said only of a run with routers, so that the records of all others stay as they were."""
    return {"router_aux_loss_coef": router_aux_loss_coef} if router_aux_loss_coef else {}


def published_nll_weight(name: ObjectiveName) -> float:
    """Weight of the NLL term in an objective as it is published: 1 or none."""
    return float(name in _WITH_NLL)


def compares(name: ObjectiveName) -> bool:
    """Whether an objective compares responses."""
    return name in COMPARING_NAMES


def run_objective(
    name: str, *, beta: float, label_smoothing: float, nll_weight: float | None, router_loss: float | None = None
) -> RunObjective:
    """The objective of a run, as options ask for it.

    Args:
        name: Its name.
        beta: As in :func:`preference_of`.
        label_smoothing: As in :func:`preference_of`.
        nll_weight: As in :func:`preference_of`.
        router_loss: Weight of the load balancing loss of routers; None for none.

    Returns:
        The objective.

    Raises:
        ValueError: As :func:`preference_of`, a weight that is not positive, or a parameter of a preference objective
            for a reward model.
    """
    if router_loss is not None and not 0 < router_loss < math.inf:
        raise ValueError(f"router_loss is {router_loss}: it must be a positive number; leave it out for none")
    _check_not_too_large("router_loss", router_loss or 0.0)
    if name not in COMPARING_NAMES:
        raise ValueError(f"unknown objective {name!r}: give one of {', '.join(COMPARING_NAMES)}")
    if name != REWARD_MODEL:
        of_options = preference_of(name, beta=beta, label_smoothing=label_smoothing, nll_weight=nll_weight)
        return replace(of_options, router_aux_loss_coef=router_loss or 0.0)
    usual = Preference()
    for option, value, default in (
        ("beta", beta, usual.beta),
        ("label_smoothing", label_smoothing, usual.label_smoothing),
        ("nll_weight", nll_weight, None),
        ("router_loss", router_loss, None),
    ):
        if value != default:
            raise ValueError(f"{option} is {value}: {REWARD_MODEL} has none, it is a parameter of other objectives")
    return RewardModel()


def preference_of(name: str, *, beta: float, label_smoothing: float, nll_weight: float | None) -> Preference:
    """The preference objective that options ask for.

    Args:
        name: Its name.
        beta: Strength of the pull towards the reference policy.
        label_smoothing: As in :class:`Preference`.
        nll_weight: As in :class:`Preference`; None for what is published.

    Returns:
        The objective.

    Raises:
        ValueError: An unknown name, a value outside its range, or "robust" without smoothing, which is "sigmoid".
    """
    if name not in PREFERENCE_NAMES:
        raise ValueError(f"unknown objective {name!r}: give one of {', '.join(PREFERENCE_NAMES)}")
    known: PreferenceName = name
    if known == "robust" and not label_smoothing:
        raise ValueError("label smoothing is 0: robust without any is sigmoid; try --label-smoothing 0.1")
    return Preference(
        name=known,
        beta=beta,
        label_smoothing=label_smoothing,
        nll_weight=published_nll_weight(known) if nll_weight is None else nll_weight,
    )


def objective_named(name: ObjectiveName, run: RunObjective) -> Objective:
    """The objective of a case.

    Args:
        name: Name of the objective.
        run: The objective of the run: taken as it is where it has that name. Other objectives but that of a reward
            model have its router loss, other preference objectives its beta and frozen policy, and its label smoothing
            where they have one ("robust" without any is "sigmoid", so it gets 0.1 then); beside a reward model, the
            default beta.

    Returns:
        The objective.

    Raises:
        ValueError: An unknown name.
    """
    if name == run.name:
        return run
    if name == REWARD_MODEL:
        return RewardModel()
    if name in SFT_NAMES:
        mean: Literal["token", "example"] = "token" if name == "sft-token-mean" else "example"
        return Sft(mean=mean, router_aux_loss_coef=run.router_aux_loss_coef)
    if name not in PREFERENCE_NAMES:
        raise ValueError(f"unknown objective {name!r}: give one of {', '.join(OBJECTIVE_NAMES)}")
    run = preference_beside(run)
    smoothing = run.label_smoothing if name in SMOOTHED else 0.0
    if name == "robust":
        smoothing = smoothing or _ROBUST_SMOOTHING
    return Preference(
        name=name,
        beta=run.beta,
        label_smoothing=smoothing,
        nll_weight=published_nll_weight(name),
        reference=run.reference,
        router_aux_loss_coef=run.router_aux_loss_coef,
    )


def without_router_loss(run: RunObjective) -> RunObjective:
    """The objective for the exact checks, many of which rest on losses of parts of a batch that add up."""
    return run if isinstance(run, RewardModel) else replace(run, router_aux_loss_coef=0.0)


def preference_beside(run: RunObjective) -> Preference:
    """The preference objective whose parameters other ones take over; the default beside a reward model."""
    return run if isinstance(run, Preference) else Preference()

"""The tolerance policy: a file that users can read and override."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verify.precision import rounds_in

PositiveFloat = Annotated[float, Field(gt=0, le=20, allow_inf_nan=False)]
Rationale = Annotated[str, Field(min_length=20)]


class PolicyError(ValueError):
    """A policy file that cannot be used; the message names the file, the key and what would be right."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FactorPolicy(_Section):
    """How often the measured noise a subject may be away."""

    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]
    rationale: Rationale


class SmallSamplePolicy(_Section):
    """How noise over all cases stands in where a case has few values."""

    standard_errors: PositiveFloat
    max_sigmas: PositiveFloat
    coefficient_sigmas: PositiveFloat
    rationale: Rationale


class FloorPolicy(_Section):
    """Machine epsilons added to every budget."""

    epsilons: Annotated[float, Field(ge=0, le=64, allow_inf_nan=False)]
    rationale: Rationale


class PlausibleErrors(_Section):
    """Largest error of the unpacked witness that the dtype explains."""

    per_token_logps_rms: PositiveFloat
    """In nats."""
    gradients_rms: PositiveFloat
    """Relative L2 of any LoRA tensor."""


class PlausiblePolicy(_Section):
    """Bounds on the witness by dtype."""

    float64: PlausibleErrors
    float32: PlausibleErrors
    bfloat16: PlausibleErrors
    rationale: Rationale

    def for_dtype(self, dtype_name: str) -> PlausibleErrors:
        """The bounds of what a run computes in."""
        bounds: PlausibleErrors = getattr(self, rounds_in(dtype_name))
        return bounds


class Policy(_Section):
    """Every number that a verdict depends on, with its reason."""

    schema_version: Literal[1]
    oracle: FactorPolicy
    differential: FactorPolicy
    small_sample: SmallSamplePolicy
    floor: FloorPolicy
    plausible: PlausiblePolicy


def load_policy(path: Path | None) -> Policy:
    """Read a policy file, or the one that ships with the project.

    Args:
        path: A TOML file, or None for the default policy.

    Returns:
        The validated policy.

    Raises:
        PolicyError: Unreadable, not TOML, an unknown or missing key, or a value out of range.
    """
    if path is None:
        text, name = resources.files("verify").joinpath("policy.toml").read_text(encoding="utf-8"), "policy.toml"
    else:
        name = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"policy {name}: cannot be read: {error}") from error
    try:
        return Policy.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"policy {name}: not TOML: {error}") from error
    except ValidationError as error:
        raise PolicyError(f"policy {name}: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    messages = []
    for problem in error.errors():
        key = ".".join(map(str, problem["loc"]))
        messages.append(
            {
                "extra_forbidden": f"unknown key {key!r}",
                "missing": f"key {key!r} is missing",
            }.get(problem["type"], f"{key} = {problem['input']!r}: {problem['msg']}")
        )
    return "; ".join(messages)

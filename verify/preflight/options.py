"""What a preflight is asked for, as given; of nothing that takes long to load."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """Options of the command line, as given."""

    model: str = "tiny"
    layers: int | None = None
    oracle_layers: int | None = None
    dtype: str = "float32"
    backends: tuple[str, ...] = ()
    device: str = "cpu"
    data: Path | None = None
    tokenizer: Path | None = None
    max_tokens: int | None = None
    prompt: int = 512
    response: int = 512
    pairs: int = 1
    profile: str = "none"
    seed: int = 0
    timeout_s: float = 600.0
    silence_s: float = 30.0
    out: Path | None = None

    def as_values(self) -> dict[str, str]:
        """By name, for holding ranks against each other."""
        return {name: str(value) for name, value in asdict(self).items()}


def looks_like_a_path(model: str) -> bool:
    """Whether a model is given by a folder or a file; whether it is there each rank has to see for itself."""
    return "/" in model or model.endswith(".json")

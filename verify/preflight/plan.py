"""What a preflight is asked for, with defaults filled in: values only, the same on every rank."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reports.preflight_consistency import ALWAYS_REQUIRED, PLANTED, WOULD_NOTICE
from verify.models.configs import TINY_CONFIGS, TINY_PREFIX, NamedConfig
from verify.models.dtypes import DTYPES
from verify.models.lora import LoraSpec
from verify.models.request import ModelRequest, requested_config
from verify.models.shape_file import is_shape_file, read_shape
from verify.preflight.attention import AttentionSizes
from verify.preflight.options import PreflightOptions, looks_like_a_path
from verify.preflight.profiles import PROFILES, Profile
from verify.preflight.signs import Limits
from verify.preflight.step_memory import PlannedBatch, cut_config
from verify.sharded.scenarios import PRECISIONS
from verify.subjects.kernel_attention import KERNEL_BACKENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightPlan:
    """A request whose options were found good.

    Args:
        options: The options.
        model: The model request of the parity probes; its device is left open.
        profile: The profile.
        backends: What is to be shown to run.
        heads: Of the model's attention.
        num_layers: Depth that training has: published, or as cut by ``--layers``.
        vocab_size: Rows of the embedding that are tokens.
        config: The transformers config, at that depth.
        sizes: Sizes of the model, where the oracle's memory can be told from them.
    """

    options: PreflightOptions
    model: ModelRequest
    profile: Profile
    backends: tuple[str, ...]
    heads: AttentionSizes
    num_layers: int
    vocab_size: int
    config: Any
    sizes: NamedConfig | None

    @property
    def is_tiny(self) -> bool:
        """Whether a pass takes milliseconds."""
        return is_tiny(self.options.model)

    @property
    def computes(self) -> str:
        """Name of the dtype of passes."""
        return PRECISIONS[self.options.dtype].computes

    @property
    def weights(self) -> torch.dtype:
        """Of the shards."""
        return DTYPES[PRECISIONS[self.options.dtype].weights]

    @property
    def itemsize(self) -> int:
        """Bytes of a weight in passes."""
        return DTYPES[self.computes].itemsize

    @property
    def can_be_cut(self) -> bool:
        """Whether the depth can be chosen."""
        return not self.model.family

    def depth_in_words(self, num_layers: int) -> str:
        """E.g. "4 of 36 layers"."""
        all_layers = num_layers == self.num_layers
        return f"all {num_layers} layers" if all_layers else f"{num_layers} of {self.num_layers} layers at full width"

    @property
    def limits(self) -> Limits:
        """Of the watch."""
        return Limits(stage_s=self.options.timeout_s, answer_s=self.options.silence_s)

    @property
    def batch(self) -> PlannedBatch:
        """The batch whose memory is asked for."""
        options = self.options
        return PlannedBatch(
            prompt=options.prompt,
            response=options.response,
            pairs=options.pairs,
        )

    @property
    def required(self) -> list[str]:
        """Probes without which there is no GO."""
        named = [f"{probe} {backend}" for probe in ("attention", "parity") for backend in self.options.backends]
        given = {
            "profile": self.profile != PROFILES["none"],
            "checkpoint": self.model.is_checkpoint,
            "data": self.options.data is not None,
        }
        if self.computes != "bfloat16":  # whose rounding may hide a planted fault
            named += [f"{WOULD_NOTICE} {part}" for part in PLANTED]
        return [*ALWAYS_REQUIRED, *named, *(name for name, asked in given.items() if asked)]


def make_plan(options: PreflightOptions) -> PreflightPlan:
    """Turn options into a plan.

    Args:
        options: The options.

    Returns:
        The plan.

    Raises:
        ValueError: An option that cannot be meant; the message says which and what would be right.
    """
    if looks_like_a_path(options.model) and not Path(options.model).exists():
        raise ValueError(f"--model {options.model}: there is no such folder or file on {socket.gethostname()}")
    shape = read_shape(Path(options.model)) if is_shape_file(options.model) else None
    model = ModelRequest(
        name=options.model,
        num_layers=options.layers,
        seed=options.seed,
        lora=shape.lora if shape else LoraSpec(strength=0.3 if is_tiny(options.model) else 0.1),
        config=shape.config if shape else None,
    )
    whole = requested_config(model)
    config = whole.get_text_config()
    published = int(config.num_hidden_layers)
    num_layers = options.layers or published
    if not 1 <= num_layers <= published:
        raise ValueError(f"--layers {num_layers}: {options.model} has {published} layers")
    if options.oracle_layers is not None and not 1 <= options.oracle_layers <= num_layers:
        raise ValueError(f"--oracle-layers {options.oracle_layers}: {num_layers} layers are run")
    num_heads = int(config.num_attention_heads)
    return PreflightPlan(
        options=options,
        model=model,
        profile=PROFILES[options.profile],
        backends=options.backends or KERNEL_BACKENDS,
        heads=AttentionSizes(
            num_heads=num_heads,
            num_key_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
        ),
        num_layers=num_layers,
        vocab_size=int(config.vocab_size),
        config=cut_config(whole, num_layers),
        sizes=_sizes(model, config),
    )


def is_tiny(model: str) -> bool:
    """Whether an embedded tiny model, or a tiny one of a family, is asked for."""
    return model.lower() in TINY_CONFIGS or model.lower().startswith(TINY_PREFIX)


def _sizes(model: ModelRequest, config: Any) -> NamedConfig | None:
    """Sizes by which memory is told; None for a family whose layers are not known to be attention and a gated MLP."""
    if not model.is_given_whole:
        return model.seeded_config
    model_type = str(config.model_type)
    if model_type not in ("qwen3", "qwen2", "llama", "mistral"):
        return None
    return NamedConfig(
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        intermediate_size=int(config.intermediate_size),
        num_hidden_layers=int(config.num_hidden_layers),
        num_attention_heads=int(config.num_attention_heads),
        num_key_value_heads=int(config.num_key_value_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads),
        tie_word_embeddings=bool(config.tie_word_embeddings),
        weight_std=0.02,
        model_type=model_type,  # type: ignore[arg-type]
    )

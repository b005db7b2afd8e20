"""Which model to put under comparison, and building it in a dtype."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from reports.words import plural
from verify.frozen_policy import ReferenceName
from verify.models.checkpoint import load_checkpoint, read_config
from verify.models.configs import NAMED_CONFIGS, NamedConfig, named_config
from verify.models.dtypes import dtype_of_weights
from verify.models.every_weight import train_every_weight
from verify.models.family import WEIGHT_STD, build_family, family_config, tiny_family
from verify.models.lora import LoraSpec, add_frozen_adapter, add_lora
from verify.models.random_weights import build_random, hf_config, moved_copy
from verify.models.reward_model import train_score_head, with_score_head
from verify.models.vision import num_text_tokens
from verify.router_balance import experts_per_token
from verify.training import TrainName, check_reference

FROZEN_ADAPTER = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What the user asked for.

    Args:
        name: A named config, "tiny-TYPE" with a model type of transformers, or the folder of a checkpoint; with
            ``config`` any name.
        num_layers: Cut the depth to this, or None for the published depth.
        device: A torch device, e.g. "cpu" or "cuda".
        seed: Seed of random weights and of the adapters.
        lora: The adapters, where they are what is trained.
        config: A config with seeded weights instead of the one that is named.
        reference: The kind of frozen policy that is built with it.
        train: What is trained.

    Raises:
        ValueError: An unknown name, a depth the config does not have, a device that is not there, or a frozen policy
            whose weights would be trained.
    """

    name: str
    num_layers: int | None = None
    device: str = "cpu"
    seed: int = 0
    lora: LoraSpec = field(default_factory=LoraSpec)
    config: NamedConfig | None = None
    reference: ReferenceName = "adapters-off"
    train: TrainName = "lora"

    def __post_init__(self) -> None:
        if self.family:
            if self.num_layers is not None:
                raise ValueError(
                    f"--layers {self.num_layers}: {self.name} is built as shallow as shows every kind of its layers"
                )
        elif not self.is_checkpoint:
            published = self.seeded_config.num_hidden_layers
            if self.num_layers is not None and not 1 <= self.num_layers <= published:
                raise ValueError(f"--layers {self.num_layers}: {self.name} has {plural(published, 'layer')}")
        check_device(self.device)
        check_reference(self.train, self.reference)

    @property
    def is_checkpoint(self) -> bool:
        """Whether ``name`` is a folder rather than a named config."""
        return self.config is None and self.name.lower() not in NAMED_CONFIGS and Path(self.name).exists()

    @property
    def family(self) -> str:
        """The model type that ``name`` asks for tiny, or ""."""
        return "" if self.config is not None or self.is_checkpoint else tiny_family(self.name)

    @property
    def is_given_whole(self) -> bool:
        """Whether the model comes as it is, with no config of ours whose sizes could be changed."""
        return self.is_checkpoint or bool(self.family)

    @property
    def has_other_model(self) -> bool:
        """Whether another model is built beside it: it is the frozen policy, or computes what is cached of one."""
        return self.reference in ("separate-model", "cached")

    @property
    def seeded_config(self) -> NamedConfig:
        """The config whose weights are seeded; published depth.

        Raises:
            ValueError: A checkpoint has weights of its own; an unknown name.
        """
        return self.config if self.config is not None else named_config(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUnderTest:
    """A causal LM or reward model, PEFT-wrapped unless every weight is trained, and what it was built from.

    Args:
        model: The model on its device, in eval mode; what is trained requires grad, and nothing else: LoRA tensors and
            the head of a reward model, or every weight.
        weights: Where the weights come from, in words.
        num_layers_published: Depth of the config before a cut.
        exact_in_bfloat16: Whether bfloat16 represents every weight, so that all dtypes run the same values.
        other: A model of the same kind and without adapters, where the frozen policy is one or was computed by one.
    """

    model: Any
    weights: str
    num_layers_published: int
    exact_in_bfloat16: bool
    other: Any = None


def build_model(request: ModelRequest, dtype_name: str) -> ModelUnderTest:
    """Build the requested model in one dtype.

    Args:
        request: The request.
        dtype_name: One of ``verify.precision.PRECISIONS``.

    Returns:
        The model with adapters, or with every weight trained, on its device.

    Raises:
        ValueError: A checkpoint that cannot be used (CheckpointError).
    """
    built, other = _without_adapters(request, dtype_of_weights(dtype_name)), None
    if request.has_other_model:
        other = moved_copy(built.model, seed=request.seed + 2).to(request.device)
    if request.train == "all":
        return replace(built, model=train_every_weight(built.model).to(request.device), other=other)
    model = add_lora(built.model, request.lora, seed=request.seed + 1)
    if request.reference == "frozen-adapter":
        add_frozen_adapter(model, FROZEN_ADAPTER, request.lora, seed=request.seed + 2)
    return replace(built, model=model.to(request.device), other=other)


def build_reward_model(request: ModelRequest, dtype_name: str) -> ModelUnderTest:
    """Build a reward model of the requested model in one dtype: its blocks, and adapters, under a seeded score head.

    Args:
        request: The request.
        dtype_name: One of ``verify.precision.PRECISIONS``.

    Returns:
        The sequence classifier with the weights and adapters of :func:`build_model`, and its head trained too.

    Raises:
        ValueError: As :func:`build_model`, or transformers has no such classifier.
    """
    built = _without_adapters(request, dtype_of_weights(dtype_name))
    classifier = with_score_head(built.model, seed=request.seed + 3)
    if request.train == "all":
        model = train_every_weight(classifier)
    else:
        model = add_lora(classifier, request.lora, seed=request.seed + 1, task_type=None)
        train_score_head(model)
    return replace(built, model=model.to(request.device), weights=f"{built.weights}; score head seeded")


def _without_adapters(request: ModelRequest, dtype: torch.dtype) -> ModelUnderTest:
    if request.is_checkpoint:
        base, published = load_checkpoint(Path(request.name), num_layers=request.num_layers, dtype=dtype)
        weights = "local checkpoint"
        exact = all(torch.equal(p, p.to(torch.bfloat16).to(p.dtype)) for p in base.parameters())
    elif request.family:
        base = build_family(request.family, dtype=dtype, seed=request.seed)
        published = int(base.config.get_text_config().num_hidden_layers)
        weights = f"seeded normal, std {WEIGHT_STD}, rounded to bfloat16"
        exact = True
    else:
        config = request.seeded_config
        published = config.num_hidden_layers
        depth = published if request.num_layers is None else request.num_layers
        base = build_random(config, num_layers=depth, dtype=dtype, seed=request.seed)
        weights = f"seeded normal, std {config.weight_std}, rounded to bfloat16"
        exact = True
    if experts_per_token(base):
        # Its first call with router logits hooks its routers for good. Later it would be a change that a subject made.
        with torch.no_grad():
            base(input_ids=torch.tensor([[0]]), output_router_logits=True, use_cache=False)
    return ModelUnderTest(model=base, weights=weights, num_layers_published=published, exact_in_bfloat16=exact)


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or that is not there.

    Raises:
        ValueError: With what would be right.
    """
    try:
        kind = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"--device {device}: not a torch device; give cpu, cuda or cuda:N") from error
    if kind.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(
                f"--device {device}: torch {torch.__version__} sees no CUDA device here; give --device cpu"
            )
        if kind.index is not None and kind.index >= torch.cuda.device_count():
            raise ValueError(f"--device {device}: there are {torch.cuda.device_count()} CUDA devices")
    elif kind.type != "cpu":
        raise ValueError(f"--device {device}: only cpu and cuda are supported")


def requested_config(request: ModelRequest) -> Any:
    """The transformers config that the request names, published depth; no weights are touched.

    Raises:
        ValueError: The checkpoint's config cannot be read (CheckpointError), or names no vocabulary.
    """
    if request.family:
        return family_config(request.family)
    if not request.is_checkpoint:
        config = request.seeded_config
        return hf_config(config, config.num_hidden_layers)
    found = read_config(Path(request.name))
    if not isinstance(getattr(found.get_text_config(), "vocab_size", None), int):
        raise ValueError(f"{request.name}/config.json: no vocab_size; a causal LM over text is needed")
    return found


def vocabulary_size(request: ModelRequest) -> int:
    """Rows of the embedding that are tokens of text, read from the config alone.

    Raises:
        ValueError: As for :func:`requested_config`.
    """
    config = requested_config(request)
    return num_text_tokens(config, int(config.get_text_config().vocab_size))


def has_rotary_positions(config: Any) -> bool:
    """Whether a config says that positions enter as rotations, so that only their differences matter."""
    return bool(getattr(config.get_text_config(), "rope_parameters", None))

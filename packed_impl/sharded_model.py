"""A causal LM sharded over the ranks of a run by FSDP2: each decoder layer by itself, and the rest with the root.

``fully_shard`` averages gradients over the ranks. A rank's loss is its share of the global sum of losses over the
global count, so it has to be scaled by the world size before its backward pass (``sharded_step.share_of_mean``): the
average over ranks then is the sum over ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from packed_impl.attention import pretrained_model
from packed_impl.modules import all_modules


def shard(
    model: nn.Module,
    *,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
) -> None:
    """Shard a model over all ranks of the default process group, in place.

    Every rank has to hold the whole model with the same weights; each keeps its share. Trained and frozen parameters
    may be mixed, as LoRA mixes them.

    Args:
        model: The causal LM, wrapped or not. The outermost module is the root, so it is the one to be called.
        param_dtype: What parameters are computed with; None for what they are.
        reduce_dtype: What gradients are summed over ranks in; None for what they are computed in.
        reshard_after_forward: Whether a layer's whole parameters are freed after its forward pass, and gathered again
            for its backward pass. The root keeps its own until then, as the output head may be called once more.

    Raises:
        ValueError: No process group, a model that is sharded already, or one in which no decoder layer is found.
    """
    if not dist.is_initialized():
        raise ValueError("no process group: sharding needs the ranks among which to share the model")
    if isinstance(model, FSDPModule):
        raise ValueError(f"{type(model).__name__} is sharded already")
    device = pretrained_model(model).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    # Otherwise done on the first forward pass, when it looks at which parameters are trained. Where that pass is one of
    # the frozen policy under PEFT's disable_adapter(), none is, and the policy's reduce_dtype would be lost for good.
    fully_shard.state(model)._lazy_init()  # type: ignore[attr-defined]


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that a model's own class says are not to be split, which are its decoder layers.

    Args:
        model: The causal LM, wrapped or not.

    Returns:
        The layers, in the order of the model.

    Raises:
        ValueError: It names none, or has none of those that it names.
    """
    outermost = pretrained_model(model)
    names = set(outermost._no_split_modules or ())
    layers = [module for module in all_modules(model) if type(module).__name__ in names]
    if not layers:
        raise ValueError(
            f"{type(outermost).__name__} has no module of the kinds that it says are not to be split "
            f"({', '.join(sorted(names)) or 'none'}): its decoder layers cannot be found"
        )
    return layers


def full_gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """The whole gradient of every trained parameter of a sharded model; a collective, so all ranks have to call it.

    Args:
        model: The sharded model.

    Returns:
        Gradients by parameter name, on the model's device; None where this parameter has none on this rank.
    """
    return {
        name: None if parameter.grad is None else whole(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its sharding; of one that is sharded all ranks have to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def reshard_all(model: nn.Module) -> None:
    """Let every module of a sharded model hold its shards again.

    After a forward pass without a backward pass the root holds whole parameters, and others may.
    """
    for module in all_modules(model):
        if isinstance(module, FSDPModule):
            module.reshard()


def local_shards(model: nn.Module) -> dict[str, torch.Tensor]:
    """This rank's part of every parameter and every buffer of a sharded model, by name; not copies."""
    reshard_all(model)
    tensors: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.to_local().detach() if isinstance(t, DTensor) else t.detach() for name, t in tensors}

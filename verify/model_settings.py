"""Settings of a model and of torch that a subject may leave changed, read before its work and put back after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_HOOK_KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class _ModuleSettings:
    """Mode, PEFT's switch, hooks and a replaced ``forward`` of one module: each would work on in whoever is next."""

    training: bool
    adapters_disabled: bool | None
    hooks: tuple[dict[int, Any], ...]
    forward: Any

    @staticmethod
    def read(module: Any) -> _ModuleSettings:
        return _ModuleSettings(
            training=module.training,
            adapters_disabled=getattr(module, "_disable_adapters", None),
            hooks=tuple(dict(getattr(module, kind)) for kind in _HOOK_KINDS),
            forward=vars(module).get("forward"),
        )

    def write(self, module: Any) -> None:
        module.training = self.training
        if self.adapters_disabled is not None:
            module._disable_adapters = self.adapters_disabled
        for kind, hooks in zip(_HOOK_KINDS, self.hooks, strict=True):
            registered = getattr(module, kind)
            registered.clear()
            registered.update(hooks)
        if self.forward is None:
            vars(module).pop("forward", None)
        else:
            module.forward = self.forward


@dataclass(frozen=True, slots=True)
class _TorchSetting:
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


_TORCH_SETTINGS = (
    _TorchSetting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _TorchSetting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _TorchSetting("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _TorchSetting("number of threads", torch.get_num_threads, torch.set_num_threads),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A snapshot; take it with :meth:`read` before a subject works."""

    attention: str
    modules: dict[str, _ModuleSettings]
    requires_grad: dict[str, bool]
    torch_values: tuple[Any, ...]

    @staticmethod
    def read(model: Any) -> Settings:
        """Read the settings of the model and of torch."""
        return Settings(
            attention=str(model.config._attn_implementation),
            modules={name: _ModuleSettings.read(module) for name, module in model.named_modules()},
            requires_grad={name: parameter.requires_grad for name, parameter in model.named_parameters()},
            torch_values=tuple(setting.read() for setting in _TORCH_SETTINGS),
        )

    def put_back(self, model: Any) -> list[str]:
        """Put back what differs.

        Args:
            model: The model that the snapshot was taken of.

        Returns:
            What differed, in words.
        """
        changed = []
        attention = str(model.config._attn_implementation)
        if attention != self.attention:
            changed.append(f"attention implementation {attention} (was {self.attention})")
            model.set_attn_implementation(self.attention)
        modules = [
            (module, self.modules[name])
            for name, module in model.named_modules()
            if name in self.modules and _ModuleSettings.read(module) != self.modules[name]
        ]
        for module, before in modules:
            before.write(module)
        if modules:
            changed.append(f"mode, adapters or hooks of {len(modules)} modules")
        flags = [
            (parameter, self.requires_grad[name])
            for name, parameter in model.named_parameters()
            if parameter.requires_grad != self.requires_grad.get(name, parameter.requires_grad)
        ]
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        if flags:
            changed.append(f"requires_grad of {len(flags)} parameters")
        for setting, value in zip(_TORCH_SETTINGS, self.torch_values, strict=True):
            if setting.read() != value:
                changed.append(f"torch's {setting.name} {setting.read()} (was {value})")
                setting.write(value)
        return changed

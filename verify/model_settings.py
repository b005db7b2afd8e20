"""Settings of a model and of torch that a subject may leave changed, read before its work and put back after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from verify.module_walk import NamedModules

_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_state = itemgetter("training", *_MODULE_HOOKS)
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True, slots=True)
class _ParameterSettings:
    """Whether a parameter requires grad, and the hooks on its gradient."""

    requires_grad: bool
    hooks: tuple[dict[int, Any], ...]

    @staticmethod
    def read(parameter: Any) -> _ParameterSettings:
        hooks = tuple(dict(getattr(parameter, kind) or {}) for kind in _PARAMETER_HOOKS)
        return _ParameterSettings(parameter.requires_grad, hooks)

    def hold(self, parameter: Any) -> bool:
        """Whether the parameter still has these settings."""
        hooks = parameter._backward_hooks or {}, parameter._post_accumulate_grad_hooks or {}
        return bool(parameter.requires_grad) == self.requires_grad and hooks == self.hooks

    def write(self, parameter: Any) -> None:
        parameter.requires_grad_(self.requires_grad)
        for kind, hooks in zip(_PARAMETER_HOOKS, self.hooks, strict=True):
            registered = getattr(parameter, kind)
            if registered is not None:
                registered.clear()
                registered.update(hooks)


_Switches = tuple[Any, Any]
"""Whether PEFT's adapters are off, and whether activations are computed again; None where a module has no such thing.

Either is an attribute of a module or of its class.
"""


@dataclass(frozen=True, slots=True)
class _ModuleSettings:
    """What would work on in whoever is judged next: mode, switches, hooks, a replaced ``forward``, grad flags.

    ``state`` is the mode and the hooks of each kind.
    """

    state: tuple[Any, ...]
    switches: _Switches
    forward: Any
    parameters: dict[str, _ParameterSettings]

    @staticmethod
    def read(module: Any) -> _ModuleSettings:
        training, *hooks = _state(vars(module))
        return _ModuleSettings(
            state=(training, *map(dict, hooks)),
            switches=_switches(vars(module), _switches_of_class(type(module))),
            forward=vars(module).get("forward"),
            parameters={n: _ParameterSettings.read(p) for n, p in module._parameters.items() if p is not None},
        )

    def hold(self, module: Any, of_class: _Switches) -> bool:
        """Whether the module still has these settings; builds little, since most modules of most runs do."""
        own = module.__dict__
        if _state(own) != self.state or _switches(own, of_class) != self.switches or own.get("forward") != self.forward:
            return False
        if not own["_parameters"] and not self.parameters:
            return True
        parameters = {name: parameter for name, parameter in own["_parameters"].items() if parameter is not None}
        return parameters.keys() == self.parameters.keys() and all(
            before.hold(parameters[name]) for name, before in self.parameters.items()
        )

    def write(self, module: Any) -> None:
        module.training, *all_hooks = self.state
        disabled, checkpointing = self.switches
        if disabled is not None:
            module._disable_adapters = disabled
        if checkpointing is not None:
            module.gradient_checkpointing = checkpointing
        for kind, hooks in zip(_MODULE_HOOKS, all_hooks, strict=True):
            registered = getattr(module, kind)
            registered.clear()
            registered.update(hooks)
        for name, parameter in self.parameters.items():
            if module._parameters.get(name) is not None:
                parameter.write(module._parameters[name])
        if self.forward is None:
            vars(module).pop("forward", None)
        else:
            module.forward = self.forward


def _switches_of_class(of: type) -> _Switches:
    return getattr(of, "_disable_adapters", None), getattr(of, "gradient_checkpointing", None)


def _switches(own: Mapping[str, Any], of_class: _Switches) -> _Switches:
    """Those of a module with these attributes of its own; ``nn.Module.__getattr__`` would be a detour."""
    return own.get("_disable_adapters", of_class[0]), own.get("gradient_checkpointing", of_class[1])


@dataclass(frozen=True, slots=True)
class _TorchSetting:
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


_TORCH_SETTINGS = (
    _TorchSetting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _TorchSetting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _TorchSetting("float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _TorchSetting(
        "deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    _TorchSetting("number of threads", torch.get_num_threads, torch.set_num_threads),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A snapshot; take it with :meth:`read` before a subject works."""

    attention: str
    modules: dict[str, _ModuleSettings]
    torch_values: tuple[Any, ...]

    @staticmethod
    def read(model: Any, modules: NamedModules) -> Settings:
        """Read the settings of the model, given its named modules, and of torch."""
        return Settings(
            attention=str(model.config._attn_implementation),
            modules={name: _ModuleSettings.read(module) for name, module in modules},
            torch_values=tuple(setting.read() for setting in _TORCH_SETTINGS),
        )

    def put_back(self, model: Any, modules: NamedModules) -> list[str]:
        """Put back what differs.

        Args:
            model: The model that the snapshot was taken of.
            modules: Its named modules now.

        Returns:
            What differed, in words.
        """
        changed = []
        attention = str(model.config._attn_implementation)
        if attention != self.attention:
            changed.append(f"attention implementation {attention} (was {self.attention})")
            model.set_attn_implementation(self.attention)
        of_classes = {of: _switches_of_class(of) for of in {type(module) for _, module in modules}}
        differing = [
            (module, self.modules[name])
            for name, module in modules
            if name in self.modules and not self.modules[name].hold(module, of_classes[type(module)])
        ]
        for module, before in differing:
            before.write(module)
        if differing:
            changed.append(f"mode, adapters, hooks or requires_grad of {len(differing)} modules")
        for setting, value in zip(_TORCH_SETTINGS, self.torch_values, strict=True):
            if setting.read() != value:
                changed.append(f"torch's {setting.name} {setting.read()} (was {value})")
                setting.write(value)
        return changed

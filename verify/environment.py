"""Where a run takes place: versions, processor, device."""

from __future__ import annotations

import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from reports.record_setting import Environment

_PACKAGES = ("packparity", "torch", "transformers", "peft", "numpy", "safetensors", "tokenizers", "pydantic")


def read_environment(device: str) -> Environment:
    """Versions and hardware that the numbers depend on.

    Args:
        device: The torch device of the run.

    Returns:
        The record of the environment.
    """
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        num_threads=torch.get_num_threads(),
        device=_device(device),
        packages={name: _version(name) for name in _PACKAGES},
    )


def tool_version() -> str:
    """Version of this program."""
    return _version("packparity")


def peak_host_bytes() -> int:
    """Largest resident memory so far of this process, or of one that it has waited for."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak if sys.platform == "darwin" else peak * 1024


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _device(device: str) -> str:
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
        return f"{device} ({name}, CUDA {torch.version.cuda})"
    return device

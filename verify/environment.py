"""Where a run takes place: versions, processor, device."""

from __future__ import annotations

import hashlib
import platform
import resource
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from reports.record_setting import Environment
from verify.tool_version import installed_version

_PACKAGES = ("packparity", "torch", "transformers", "peft", "numpy", "safetensors", "tokenizers", "pydantic")
_OURS = ("verify", "packed_impl", "reference_impl", "reports")
_PROBED = 256
"""Side of a matrix for which a GPU has the kernels that it has for large ones."""


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
        packages={name: installed_version(name) for name in _PACKAGES},
        float32_products=float32_products(device),
    )


def float32_products(device: str) -> str:
    """What a device multiplies float32 matrices in, measured: settings, variables and libraries all have a say in it.

    A product of 1 + 2^-12 and 1 is itself in float32; TF32 keeps 10 bits behind the point, bfloat16 7.

    Args:
        device: The torch device.

    Returns:
        In words, beginning with "float32" or "TF32 or less".
    """
    factors = torch.full((_PROBED, _PROBED), 1 + 2**-12, device=device)
    is_exact = torch.equal(factors @ torch.eye(_PROBED, device=device), factors)
    asked = f"precision asked for: {torch.get_float32_matmul_precision()}"
    if is_exact:
        return f"float32, as {_PROBED} x {_PROBED} products of 1 + 2^-12 and 1 show; {asked}"
    return f"TF32 or less: products of 1 + 2^-12 and 1 are rounded; {asked}"


def sources_digest() -> str:
    """SHA-256, in short, over names and contents of every source file of this program."""
    digest = hashlib.sha256()
    for package in _OURS:
        spec = find_spec(package)
        for folder in sorted(spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def peak_host_bytes() -> int:
    """Largest resident memory so far of this process, or of one that it has waited for."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak if sys.platform == "darwin" else peak * 1024


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

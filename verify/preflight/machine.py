"""What this rank runs on: versions, code, settings, memory, device and driver. All questions to CUDA are put here."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from verify.environment import sources_digest

_PACKAGES = (
    "packparity", "torch", "transformers", "peft", "numpy", "safetensors", "tokenizers", "pydantic", "triton",
)  # fmt: skip
_SETTINGS = ("NCCL_", "TORCH_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32_", "TRITON_", "PYTORCH_", "GLOO_", "OMP_NUM_THREADS")
_OF_THE_MACHINE = frozenset({
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH", "TORCH_HOME",
})  # fmt: skip
"""Settings that name what a machine has, and so may differ between machines."""
_DRIVER = Path("/proc/driver/nvidia/version")
_MEMINFO = Path("/proc/meminfo")
_ADAPTERS = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the machine in bytes, from /proc/meminfo; None where the system does not say."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    """What programs can have without swapping; reclaimable page cache counts."""
    swap_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device of a rank.

    Args:
        name: E.g. "NVIDIA GB10", or "cpu".
        capability: Compute capability, (0, 0) for a CPU.
        total_bytes: What torch reports; None for a CPU, as the next.
        free_bytes: What ``mem_get_info`` reports; on unified memory it leaves reclaimable page cache out.
        driver: Version of the kernel driver; "" for a CPU.
        cuda: Version of CUDA that torch was built with; "" for a CPU.
        nccl: Version of NCCL; "" for a CPU.
    """

    name: str
    capability: tuple[int, int] = (0, 0)
    total_bytes: int | None = None
    free_bytes: int | None = None
    driver: str = ""
    cuda: str = ""
    nccl: str = ""

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.total_bytes is not None

    def describe(self) -> str:
        """E.g. "NVIDIA GB10, compute capability 12.1, driver 580.95.05, CUDA 13.0, NCCL 2.27.7"."""
        if not self.is_cuda:
            return self.name
        major, minor = self.capability
        return (
            f"{self.name}, compute capability {major}.{minor}, driver {self.driver or 'unknown'}, CUDA {self.cuda}, "
            f"NCCL {self.nccl or 'unknown'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything about a rank that a probe looks at.

    Args:
        host: Name of the machine.
        versions: By package, Python and this program's own code (a digest) among them.
        settings: Environment variables that change what is computed or how ranks talk, those of the machine left out.
        environment: All environment variables that a profile may ask for.
        memory: Memory of the machine.
        device: The device.
        adapters: Network adapters for RDMA, by their names.
        processes: Ranks on this machine.
    """

    host: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    environment: Mapping[str, str]
    memory: Memory
    device: Device
    adapters: tuple[str, ...]
    processes: int


def read_machine(device: str, processes: int) -> Machine:
    """Look at the machine of this rank.

    Args:
        device: The torch device of this rank.
        processes: How many ranks share the machine.

    Returns:
        What was found.
    """
    environment = dict(os.environ)
    return Machine(
        host=socket.gethostname(),
        versions=read_versions(),
        settings=settings_of(environment),
        environment=environment,
        memory=read_memory(),
        device=read_device(device),
        adapters=tuple(sorted(path.name for path in _ADAPTERS.iterdir())) if _ADAPTERS.is_dir() else (),
        processes=processes,
    )


def read_versions() -> dict[str, str]:
    """Versions by package, and a digest of this program's own sources: a version says nothing about edits."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    versions["torch build"] = torch.__version__
    versions["packparity sources"] = sources_digest()
    return versions


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that have to be equal on all ranks."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_SETTINGS) and name not in _OF_THE_MACHINE
    }


def read_memory(meminfo: Path = _MEMINFO) -> Memory:
    """Memory of the machine; without values where the system does not say."""
    try:
        return parse_meminfo(meminfo.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError):
        return Memory()


def parse_meminfo(text: str) -> Memory:
    """Read the lines of /proc/meminfo, e.g. ``MemAvailable:   24080868 kB``."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return Memory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=sizes.get("MemAvailable"),
        swap_free_bytes=sizes.get("SwapFree"),
    )


def read_device(device: str) -> Device:
    """The device of this rank."""
    if torch.device(device).type != "cuda":
        return Device(name=device)
    properties = torch.cuda.get_device_properties(device)
    free, _ = torch.cuda.mem_get_info(device)
    return Device(
        name=str(properties.name),
        capability=(int(properties.major), int(properties.minor)),
        total_bytes=int(properties.total_memory),
        free_bytes=int(free),
        driver=read_driver(),
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
    )


def read_driver(path: Path = _DRIVER) -> str:
    """Version of the NVIDIA kernel driver, "" where there is none."""
    try:
        first = path.read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return ""
    return next((word for word in first.split() if word.replace(".", "").isdigit() and "." in word), "")


def ptxas_version(path: str) -> str:
    """Release that a ptxas says it is, e.g. "13.0".

    Args:
        path: The program.

    Returns:
        Its release; "" where it says none.

    Raises:
        OSError: It is not there, or cannot be run.
        subprocess.TimeoutExpired: It gives no answer.
    """
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    _, found, rest = done.stdout.partition("release ")
    return rest.split(",")[0].strip() if found else ""


@contextmanager
def memory_capped(device: str, fraction: float) -> Iterator[None]:
    """Let torch take no more than a share of the device's memory while the context is open; nothing on a CPU."""
    if torch.device(device).type != "cuda" or fraction >= 1:
        yield
        return
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)

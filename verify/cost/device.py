"""A device as a measurement needs it: waiting for it, and reading what its allocator counted. All that CUDA needs."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_RESETS_PEAK = "5"
"""What the kernel takes in clear_refs as "forget the peak of resident memory"."""


@dataclass(frozen=True, slots=True)
class Device:
    """A torch device.

    Args:
        name: "cpu" or "cuda:N".
    """

    name: str

    @property
    def is_cuda(self) -> bool:
        """Whether an allocator of its own counts its memory."""
        return torch.device(self.name).type == "cuda"

    def synchronise(self) -> None:
        """Wait until it has done all that it was given; on a CPU it has."""
        if self.is_cuda:
            torch.cuda.synchronize(self.name)

    def reset_peaks(self) -> int:
        """Forget the peaks so far, of the device and of this process.

        Returns:
            Bytes that are allocated on the device at this moment; 0 on a CPU, which nobody counts.
        """
        reset_peak_resident()
        if not self.is_cuda:
            return 0
        torch.cuda.reset_peak_memory_stats(self.name)
        return int(torch.cuda.memory_allocated(self.name))

    def peak_allocated(self) -> int:
        """The most bytes that tensors took since the peaks were reset; CUDA only."""
        return int(torch.cuda.max_memory_allocated(self.name))

    def peak_reserved(self) -> int | None:
        """The most that the allocator took from the device, of which tensors took a part; None on a CPU."""
        return int(torch.cuda.max_memory_reserved(self.name)) if self.is_cuda else None


def num_compiled() -> int:
    """Graphs that torch has compiled so far: a step in which the number grows has compiled, and is no ordinary one."""
    loaded = sys.modules.get("torch._dynamo.utils")  # which nothing has loaded where nothing was compiled
    return 0 if loaded is None else int(loaded.counters["stats"]["unique_graphs"])


def peak_resident() -> int | None:
    """The most resident memory of this process since its peak was reset; None where the system does not say."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


def reset_peak_resident() -> bool:
    """Let the peak of resident memory begin anew from what is resident; whether the system does that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESETS_PEAK, encoding="ascii")
        return True
    return False


def machine_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def load() -> float | None:
    """Processes that wanted a core, the mean over the last minute; None where nobody counts them."""
    with suppress(AttributeError, OSError):
        return os.getloadavg()[0]
    return None

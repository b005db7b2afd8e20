"""Devices that a step is forecast for: memory, peak rates, and where the numbers come from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Literal

import torch

THIS_CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A device, one to a rank.

    Args:
        name: As on the command line.
        kind: Whose attention kernels run.
        memory_bytes: What torch reports as its memory.
        usable_bytes: What a run should take at most.
        flops_per_s: Peak rate of matrix products, by dtype.
        bytes_per_s: Peak rate of memory.
        link_bytes_per_s: Rate at which a rank receives in an all-gather, bus bandwidth; None where it is not known.
        sources: Where each of these comes from.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    memory_bytes: int
    usable_bytes: int
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    link_bytes_per_s: float | None
    sources: tuple[str, ...]


PROFILES: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        "gb10": DeviceProfile(
            name="gb10",
            kind="cuda",
            memory_bytes=128_501_256_192,
            usable_bytes=100_000_000_000,
            flops_per_s={"bfloat16": 125e12, "float16": 125e12},
            bytes_per_s=273e9,
            link_bytes_per_s=23.7e9,
            sources=(
                "memory: what torch reports on a DGX Spark; the CPU uses it too, and running out of it freezes the "
                "machine, so a run takes 100e9 bytes at most (set_per_process_memory_fraction 0.778)",
                "125 TFLOP/s in bf16: scaled from the published FP4 figure, not published; 81 to 104 have been seen",
                "273 GB/s: published",
                "23.7 GB/s: all-gather bus bandwidth as measured between two nodes over ConnectX-7, MTU 9000",
            ),
        ),
        "h200": DeviceProfile(
            name="h200",
            kind="cuda",
            memory_bytes=139 * 2**30,
            usable_bytes=131 * 2**30,
            flops_per_s={"bfloat16": 989e12, "float16": 989e12},
            bytes_per_s=4.8e12,
            link_bytes_per_s=450e9,
            sources=(
                "memory: about 139 GiB seen; 8 GiB of it left to context, workspace and fragmentation",
                "989 TFLOP/s dense bf16 and 4.8 TB/s: published; about 790 TFLOP/s has been seen",
                "450 GB/s: NVLink, one direction, published; between nodes it is less",
            ),
        ),
    }
)
DEVICE_NAMES = (*PROFILES, THIS_CPU)


def device_profile(name: str, *, dtype: torch.dtype) -> DeviceProfile:
    """The profile of that name; that of this machine is measured.

    Args:
        name: One of ``DEVICE_NAMES``.
        dtype: What matrix products are computed in.

    Raises:
        ValueError: An unknown name, or a dtype for which a device has no rate.
    """
    dtype_name = str(dtype).removeprefix("torch.")
    if name == THIS_CPU:
        return measured_cpu(dtype)
    if name not in PROFILES:
        raise ValueError(f"unknown device {name!r}: give one of {', '.join(DEVICE_NAMES)}")
    profile = PROFILES[name]
    if dtype_name not in profile.flops_per_s:
        raise ValueError(
            f"device {name} has no rate for {dtype_name}: its attention kernels are modelled in "
            f"{', '.join(profile.flops_per_s)}"
        )
    return profile


_SIDE, _COPIED = 1024, 2**26
_SECONDS, _FEWEST = 0.3, 3


def measured_cpu(dtype: torch.dtype) -> DeviceProfile:
    """This machine's CPU, by a micro-benchmark of about a second: a matrix product, and a copy of 64 MiB.

    Args:
        dtype: What matrix products are computed in.
    """
    left, right = (torch.ones(_SIDE, _SIDE, dtype=dtype) for _ in range(2))
    product_s = _median_seconds(lambda: left @ right)
    source, target = (torch.ones(_COPIED, dtype=torch.uint8) for _ in range(2))
    copy_s = _median_seconds(lambda: target.copy_(source))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name = str(dtype).removeprefix("torch.")
    return DeviceProfile(
        name=THIS_CPU,
        kind="cpu",
        memory_bytes=memory,
        usable_bytes=memory * 9 // 10,
        flops_per_s={name: 2 * _SIDE**3 / product_s},
        bytes_per_s=2 * _COPIED / copy_s,
        link_bytes_per_s=None,
        sources=(
            f"memory: physical, a tenth of it left to all else; matrix products: measured here, {_SIDE} x {_SIDE} in "
            f"{name} on {torch.get_num_threads()} threads, median",
            f"memory rate: measured here, a copy of {_COPIED >> 20} MiB, read and written, median",
            "no rate between ranks: gathering costs no time in this forecast",
        ),
    )


def _median_seconds(call: Callable[[], object]) -> float:
    times: list[float] = []
    call()
    started = time.perf_counter()
    while len(times) < _FEWEST or time.perf_counter() - started < _SECONDS:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return median(times)

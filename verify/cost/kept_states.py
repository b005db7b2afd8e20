"""States of training on disk, so that an interrupted run goes on from the last round that all ranks finished.

One file for each rank and round, safetensors, written aside and renamed; the one before stays until every rank has
written the next, since a rank may be a round ahead of another when a run is interrupted.
"""

from __future__ import annotations

import os
import re
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from verify.cost.training import TrainingState

STATES_FOLDER = "cost-states"
_NAME = re.compile(r"workload(\d+)-rank(\d+)-round(\d+)\.safetensors")
_CHECKSUM = "crc32"
_BETWEEN = "::"
"""Between a path's name and that of its tensor."""


@dataclass(frozen=True, slots=True)
class KeptStates:
    """The states of one rank.

    Args:
        folder: Folder of the run's results.
        rank: The rank.
    """

    folder: Path
    rank: int

    @property
    def _folder(self) -> Path:
        return self.folder / STATES_FOLDER

    def write(self, workload: int, num_rounds: int, states: Mapping[str, TrainingState]) -> None:
        """Keep the state of every path after so many rounds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._file(workload, num_rounds)
        aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
        tensors = {f"{path}{_BETWEEN}{name}": t for path, state in states.items() for name, t in state.items()}
        try:
            save_file(tensors, aside, metadata={_CHECKSUM: str(_checksum(tensors))})
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(place)
        finally:
            aside.unlink(missing_ok=True)

    def rounds(self, workload: int) -> set[int]:
        """After which rounds a state is kept."""
        found = [_NAME.fullmatch(path.name) for path in self._folder.glob("*.safetensors")]
        return {int(m[3]) for m in found if m and (int(m[1]), int(m[2])) == (workload, self.rank)}

    def read(self, workload: int, num_rounds: int) -> dict[str, dict[str, Tensor]]:
        """The states after so many rounds, by path.

        Raises:
            ValueError: The file is damaged.
        """
        place = self._file(workload, num_rounds)
        try:
            with safe_open(place, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                written = (file.metadata() or {}).get(_CHECKSUM)
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{place}: the state of an interrupted run cannot be read: {error}; give another --out"
            ) from error
        if written != str(_checksum(tensors)):
            raise ValueError(
                f"{place}: the state of an interrupted run is damaged: its checksum is not that of its tensors; give "
                "another --out"
            )
        states: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            path, _, name = key.partition(_BETWEEN)
            states.setdefault(path, {})[name] = tensor
        return states

    def forget(self, workload: int, *, before: int | None = None) -> None:
        """Remove states of a workload, those before a round or all; and the folder, once it is empty."""
        for number in self.rounds(workload):
            if before is None or number < before:
                self._file(workload, number).unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or never made
            self._folder.rmdir()

    def _file(self, workload: int, num_rounds: int) -> Path:
        return self._folder / f"workload{workload}-rank{self.rank}-round{num_rounds}.safetensors"


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names and bytes, in the order of the names."""
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data, checksum)
    return checksum

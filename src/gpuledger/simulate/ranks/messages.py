"""Python objects that ranks send to each other, as files in a directory that the simulated ranks share.

Collectives of tensors need no message, because tensors have no values. Objects have: a stage of a pipeline sends the
shapes of its outputs to the next one. A rank that waits for an object asks for its sender, which is simulated then.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import time
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.gpu.sizes import caller
from gpuledger.simulate.ranks.place import RankError

WAIT_S = 120.0
"""Time limit for the object of another rank."""
_POLL_S = 0.02
_WANTED, _ENDED = "wanted-", "ended-"


class Messages:
    """Sends and receives objects as one rank.

    Args:
        directory: The directory of all ranks.
        wait_s: Time limit for an object.
    """

    def __init__(self, directory: Path, wait_s: float = WAIT_S) -> None:
        self._directory = directory
        self._wait_s = wait_s
        self._counts: dict[str, int] = {}

    def send(self, channel: str, value: Any) -> None:
        """Send the next object of a channel."""
        path = self._next(channel)
        if not path.exists():
            beside = path.with_suffix(".new")
            packed = io.BytesIO()
            pickler = pickle.Pickler(packed)
            pickler.dispatch_table = {**copyreg.dispatch_table, FakeTensor: _described}
            pickler.dump(value)
            beside.write_bytes(packed.getvalue())
            beside.rename(path)

    def receive(self, channel: str, sender: int, call: str) -> Any:
        """Return the next object of a channel.

        Args:
            channel: Name of the channel, the same on both ranks.
            sender: The rank that sends it.
            call: The program's call that waits.

        Raises:
            RankError: the sender ended without sending it, or the time limit is over.
        """
        path, began_s = self._next(channel), time.monotonic()
        ended = self._directory / f"{_ENDED}{sender}"
        while not path.exists():
            (self._directory / f"{_WANTED}{sender}").touch()
            is_over = ended.exists()
            if path.exists():
                break
            if is_over or time.monotonic() - began_s > self._wait_s:
                why = "which ended without sending one" if is_over else f"which sent none within {self._wait_s:.0f} s"
                raise RankError(
                    f"{caller()}: {call} waits for an object of rank {sender}, {why}",
                    "Send objects in the same order on all ranks",
                    waits=True,
                )
            time.sleep(_POLL_S)
        return pickle.loads(path.read_bytes())  # noqa: S301  written by another rank of the same program

    def _next(self, channel: str) -> Path:
        number = self._counts[channel] = self._counts.get(channel, 0) + 1
        return self._directory / f"{channel}-{number}.pickle"


class NoMessages(Messages):
    """Sends the objects of the only rank to nobody."""

    def __init__(self) -> None:
        super().__init__(Path())

    def send(self, channel: str, value: Any) -> None:
        """Do nothing."""


def _described(tensor: FakeTensor) -> tuple[Any, ...]:
    """Return how a simulated tensor is made again. The stages of a pipeline send such tensors in torch 2.11."""
    place = (tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device), tensor.requires_grad)
    return _make_tensor, place


def _make_tensor(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: str, requires_grad: bool
) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=requires_grad)


def wanted_ranks(directory: Path) -> set[int]:
    """Return the ranks for which other ranks wait or waited."""
    return {int(path.name.removeprefix(_WANTED)) for path in directory.glob(f"{_WANTED}*")}


def mark_ended(directory: Path, rank: int) -> None:
    """Tell the other ranks that a rank sends no more objects."""
    (directory / f"{_ENDED}{rank}").touch()

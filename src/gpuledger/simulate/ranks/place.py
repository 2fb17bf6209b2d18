"""A rank's place in a job, and the environment that torchrun gives it."""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_HOST = 8
"""GPUs of a host. A job with more ranks has several hosts."""


class RankError(BaseException):
    """A program cannot be simulated as one rank. Not an ``Exception``, so that the program does not catch it.

    Attributes:
        message: What happened, with file and line of the program.
        hint: What to do next.
        waits: Whether the rank waits for another one. The failure of that rank explains more.
    """

    def __init__(self, message: str, hint: str = "", *, waits: bool = False) -> None:
        super().__init__(message)
        self.message, self.hint, self.waits = message, hint, waits


@dataclass(frozen=True)
class RankPlace:
    """A rank of a job with ``world_size`` ranks, one GPU each."""

    rank: int
    world_size: int

    @property
    def local_rank(self) -> int:
        """Return the rank among those of its host."""
        return self.rank % GPUS_PER_HOST

    @property
    def local_world_size(self) -> int:
        """Return the number of ranks on its host."""
        return min(self.world_size - self._host * GPUS_PER_HOST, GPUS_PER_HOST)

    @property
    def _host(self) -> int:
        return self.rank // GPUS_PER_HOST

    def environment(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self._host),
            "GROUP_WORLD_SIZE": str(-(-self.world_size // GPUS_PER_HOST)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "simulated",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }

"""The protocol of memory recorders, used by the session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.tensor_observations import StoragePlace
from gpuledger.model.journal.journal import Part


class FollowsOperators(Protocol):
    """What is computed from what; see :class:`..variables.updates.WeightUpdates`.

    Attributes:
        address_of: Returns the address of a tensor's storage; 0 if it has none.
    """

    address_of: Callable[[Any], int]

    @property
    def is_on(self) -> bool:
        """Return whether operators are followed now."""

    def see(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""

    def forget(self, address: int) -> None:
        """Forget a storage that was freed."""


@runtime_checkable
class ShowsOperators(Protocol):
    """A recorder that sees every operator."""

    def follow(self, operators: FollowsOperators) -> None:
        """Tell an object of every operator and of the storages that are freed."""


@runtime_checkable
class FillsUp(Protocol):
    """A recorder that keeps its events in this process.

    Attributes:
        on_full: Called when many events are pending, so that a program without steps does not fill the memory.
        operators_left: Number of operators until ``on_limit`` is called.
        on_limit: Called after an operator, when none is left.
        kept: The blocks that were alive at the end; None before.
    """

    on_full: Callable[[], None]
    operators_left: int
    on_limit: Callable[[], None]
    kept: KeptBlocks | None

    def pause(self) -> None:
        """Record no more allocations until :meth:`resume`, and take no more of the program's time."""

    def resume(self, living: LiveObjects) -> bool:
        """Record again, and what was allocated meanwhile and is alive. Return False if that is not possible here."""


class Recorder(Protocol):
    """Records the allocations of one process between ``open`` and ``close``.

    Attributes:
        kind: ``cuda-history`` or ``dispatch``. Stored in the run and shown to the user.
        set_token: Sets the token of the calling thread's next allocations. It is called at every module's entry and
            exit, so it is the fastest callable available.
    """

    kind: str
    set_token: Callable[[str], None]

    def can_open(self) -> bool:
        """Return whether recording can start here. If not, ask again at the end of the next step."""

    def open(self, part: Part, living: LiveObjects) -> None:
        """Start recording. Write a snapshot of the live allocations into ``part``."""

    def set_stacks(self, on: bool) -> None:
        """Start or stop recording Python stacks with the allocations."""

    def counts(self, devices: Collection[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees requested)`` since the process started.

        Of ``devices`` at least, by default of all.
        """

    def place_of(self, tensor: Any) -> StoragePlace | None:
        """Return ``(device, address)`` of a tensor's storage; None if it has none, or none that is recorded."""

    def known_place(self, tensor: Any) -> StoragePlace | None:
        """Return what :meth:`place_of` returns. A tensor that the recorder does not know stays unknown."""

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Record that the storages of tensors were resized without an operator."""

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the allocator's counters of every device in use to ``part``. ``t_ns`` is Unix time in ns."""

    def drain(self, part: Part, reason: str) -> None:
        """Move the events since the last drain into ``part``. The reason after every step is ``step_end``."""

    def close(self, part: Part, reason: str) -> bool:
        """Drain, write the closing snapshot and uninstall everything. Can be called more than once.

        Returns:
            False if something cannot be uninstalled yet. Then call it again later.
        """

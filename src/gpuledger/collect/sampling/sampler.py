"""Reads the GPUs while the program runs, from the parent: the program itself is not disturbed.

Rows go into journals below ``NAME.ledger/samples/journal/``, one for each hour, a part a minute, so that memory and
what a crash can cost stay bounded. ``device_idx`` is the position in ``card_uuids`` there, since torch's numbering is
known to the program alone; :mod:`gpuledger.analyze.posting.card_samples` finds it by the GPU's UUID.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from gpuledger.cards.card import Card
from gpuledger.collect.sampling.card_log import CardLog

PERIOD_S = 0.05
PARTS_IN_JOURNAL = 60
READINGS_IN_PART = 1200


class CardSampler:
    """Reads used bytes and processes of every GPU that the program has changed, until it is stopped.

    A GPU is read from the moment its used bytes or its processes differ from what they were before the program: in a
    container the driver's process ids need not be ours, so they cannot tell whose a GPU is.

    Args:
        cards: The GPUs of this machine.
        directory: Where the journals go.
        clock: Returns Unix time in ns.
        check: As in :class:`gpuledger.model.journal.journal.JournalWriter`.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        directory: Path,
        clock: Callable[[], int] = time.time_ns,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: str | None = None
        self._cards = cards
        self._directory = directory
        self._clock = clock
        self._check = check
        self._uuids = [card.uuid for card in cards]
        self._before = {index: _state(card) for index, card in enumerate(cards)}
        self._log = CardLog()
        self._ticks = self._parts = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuledger-sampler", daemon=True)

    def __enter__(self) -> CardSampler:
        """Return the sampler, not started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop reading and write the rest."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def start(self) -> None:
        """Begin to read, in a thread of this process."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PERIOD_S):
                self.read()
            self.write()
        except Exception as error:
            self.failure = f"The samples of the GPUs stopped: {type(error).__name__}: {error}"

    def read(self) -> None:
        """Take one reading of every GPU the program has changed."""
        for index, card in enumerate(self._cards):
            if index in self._before:
                if _state(card) == self._before[index]:
                    continue
                del self._before[index]
            self._read_card(index, card)
        self._ticks += 1
        if self._ticks >= READINGS_IN_PART:
            self.write()

    def _read_card(self, index: int, card: Card) -> None:
        t_ns, memory = self._clock(), card.read_memory()
        if memory is None:
            return
        self._log.add_memory(t_ns, index, memory)
        self._log.add_processes(t_ns, index, card.read_processes())

    def write(self) -> None:
        """Write what is waiting as one part.

        Raises:
            OSError: it cannot be written; what was waiting is lost.
        """
        from gpuledger.model.journal.journal import JournalWriter, Part, write_compressed

        self._ticks = 0
        if not len(self._log):
            return
        part = Part(facts={"card_uuids": self._uuids})
        self._log.take(part)
        hour, number = divmod(self._parts, PARTS_IN_JOURNAL)
        writer = JournalWriter(self._directory / f"{hour:05d}", write_compressed, self._check)
        writer.next_part = number
        writer.write(part)
        self._parts += 1


def _state(card: Card) -> tuple[int | None, frozenset[int]]:
    """Return a GPU's used bytes and the processes on it."""
    memory, processes = card.read_memory(), card.read_processes()
    return None if memory is None else memory.used_bytes, frozenset(pid for pid, _ in processes or ())

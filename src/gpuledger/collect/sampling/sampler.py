"""Sample the GPUs from the parent process while the program runs, so that the program itself is not slowed down.

Rows go into journals below ``NAME.ledger/samples/journal/``, one per hour with one part per minute. This bounds the
memory, and the loss after a crash. ``device_idx`` there is the position in ``card_uuids``, because only the program
knows torch's numbering; :mod:`gpuledger.analyze.posting.card_samples` finds the device by the GPU's UUID.
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
    """Samples used bytes and processes of every GPU that the program has changed, until it is stopped.

    A GPU is sampled once its used bytes or its processes differ from those before the program. In a container the
    driver's process ids can be of another namespace, so they do not show which GPUs the program uses.

    Args:
        cards: The GPUs of this machine.
        directory: Directory of the journals.
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
        """Stop sampling and write the remaining samples."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def start(self) -> None:
        """Start sampling in a thread of this process."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PERIOD_S):
                self.read()
            self.write()
        except Exception as error:
            self.failure = f"The samples of the GPUs stopped: {type(error).__name__}: {error}"

    def read(self) -> None:
        """Sample every GPU that the program has changed."""
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
        """Write the waiting samples as one part.

        Raises:
            OSError: it cannot be written; the waiting samples are lost.
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

"""All results of a run: its devices, and results across devices. Renderers use these and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.empty import STILL_WRITTEN
from gpuledger.analyze.memory.failures.oom import OutOfMemory, explain_ranks
from gpuledger.analyze.memory.growth import Growth, find_growth
from gpuledger.analyze.overview.ranks import Imbalance, find_imbalance
from gpuledger.analyze.overview.summary import recording_notes
from gpuledger.analyze.ranks.problems import list_problems, who_ran_out
from gpuledger.analyze.ranks.rank_notes import label_notes
from gpuledger.analyze.view.chosen_devices import choose_devices
from gpuledger.analyze.view.device_view import DeviceView
from gpuledger.analyze.view.options import ViewOptions

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.rank_set import RankSet
    from gpuledger.analyze.samples.series import SampleLine
    from gpuledger.analyze.view.watched_card import WatchedCard
    from gpuledger.model.run import Rank, Run


@dataclass(frozen=True)
class RunView:
    """The results of a run: its devices in the order of its ranks, and results across devices.

    With many ranks, ``devices`` are those of some ranks only. ``rank_set`` has all of ``ranks``; it is None with fewer
    than two.
    """

    run: Run
    ranks: tuple[Rank, ...]
    devices: tuple[DeviceView, ...]
    rank_set: RankSet | None = None
    gpus: tuple[tuple[str, int], ...] = ()

    @property
    def highest(self) -> DeviceView:
        """Return the device with the highest peak of allocated bytes; there is at least one."""
        return max(self.devices, key=lambda device: device.summary.recorded_peak_allocated_bytes)

    @cached_property
    def imbalance(self) -> Imbalance | None:
        """Return how uneven the peaks of all ranks are; None if there is nothing to compare."""
        lines = () if self.rank_set is None else self.rank_set.lines
        return find_imbalance(lines or [device.summary for device in self.devices])

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the run and of every device, without duplicates, and that the run is not complete.

        Of several ranks, a note names those that have it.
        """
        running = (STILL_WRITTEN,) if self.run.manifest.status == "running" else ()
        return (*running, *dict.fromkeys((*self.run.manifest.notes, *self.label_notes(self.rank_notes))))

    @cached_property
    def rank_notes(self) -> tuple[tuple[int, str], ...]:
        """Return rank and note of every device, and of the ranks without a device here that have the same note.

        Notes on peaks outside the recorded steps are left out for the device with the highest peak: the first line
        of text output has them.
        """
        known = set(self.run.manifest.notes)
        of_devices = [(one.rank.number, note) for one in self.devices for note in one.summary.notes]
        others = [one for one in self.devices if one is not self.highest]
        of_devices += [(one.rank.number, note) for one in others for note in one.summary.outside_notes]
        of_devices = [(rank, note) for rank, note in of_devices if note not in known]
        shown, told = {one.rank.number for one in self.devices}, {note for _, note in of_devices}
        not_shown = [rank for rank in self.ranks if rank.number not in shown] if told else []
        also = [(rank.number, note) for rank in not_shown for note in recording_notes(rank) if note in told]
        return (*of_devices, *also)

    def label_notes(self, notes: Iterable[tuple[int, str]]) -> tuple[str, ...]:
        """Return each of these notes once; with several ranks, after those that have it."""
        return label_notes(notes, [rank.number for rank in self.ranks])

    @cached_property
    def out_of_memory(self) -> tuple[tuple[Rank, OutOfMemory], ...]:
        """Return each out-of-memory error, with its rank. The rank that failed first comes first."""
        return explain_ranks(self.ranks, self.gpus)

    @property
    def ran_out(self) -> list[str]:
        """Return which of several ranks ran out of memory first."""
        return who_ran_out(self.ranks)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Return a sentence for each thing that went wrong on some ranks, such as ranks that are missing or failed."""
        return list_problems(self.run.ranks, self.run.damaged) if self.rank_set is None else self.rank_set.problems

    @cached_property
    def growth(self) -> tuple[Growth, ...]:
        """Return the memory growth of every device and of the host; empty if none grew until the last step."""
        return tuple(growth for rank in self.ranks for growth in find_growth(rank))

    @cached_property
    def cards(self) -> tuple[WatchedCard, ...]:
        """Return the GPUs with sampled memory, if the run has no block."""
        from gpuledger.analyze.view.watched_card import read_cards

        return () if self.devices else read_cards(self.run, self.ranks)

    @cached_property
    def power(self) -> dict[tuple[int, int], SampleLine]:
        """Return the samples of power in W, by rank and device."""
        from gpuledger.analyze.view.watched_card import read_power

        return read_power(self.run)

    def compute(self, parts: Iterable[str]) -> None:
        """Compute ``parts`` of every device now, rank by rank, and release the columns that they were computed from."""
        names = tuple(parts)
        self.growth, self.out_of_memory  # noqa: B018  read from tables, too
        for one in self.ranks:
            one.forget_columns()
        for rank in dict.fromkeys(device.rank.number for device in self.devices):
            of_rank = [device for device in self.devices if device.rank.number == rank]
            for device in of_rank:
                for name in names:
                    getattr(device, name)
            of_rank[0].rank.forget_columns()


def build_view(
    run: Run,
    options: ViewOptions | None = None,
    *,
    ranks: Sequence[Rank] | None = None,
    devices: Sequence[tuple[Rank, int]] | None = None,
) -> RunView:
    """Return the view of a run; its parts are computed on first use.

    Args:
        run: The run.
        options: The instant, and the rows of a table; None selects the peak, and no single table.
        ranks: Ranks to include; None selects all.
        devices: Ranks and devices to include; None selects every device of ``ranks`` that has a block. Of more than
            eight ranks, it selects the highest, those that differ, and one for each set of coordinates.
    """
    given = None if devices is None else {rank.number: rank for rank, _ in devices}
    chosen = tuple(ranks) if ranks is not None else run.ranks if given is None else tuple(given.values())
    rank_set = None
    if len(chosen) > 1:
        from gpuledger.analyze.ranks.rank_set import build_rank_set

        rank_set = build_rank_set(run, chosen)
    if devices is None:
        devices = choose_devices(chosen, rank_set)
    options = options or ViewOptions()
    views = tuple(DeviceView(rank, device, options, len(devices)) for rank, device in devices)
    return RunView(run, chosen, views, rank_set, options.gpus)

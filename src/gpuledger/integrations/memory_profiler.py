"""The drop-in for ``pytorch_mem_profiler``: its four lines, its table, its CSV file, with right numbers.

``from gpuledger import memory_profiler`` takes the place of its import. An iteration is what lies between two calls of
``record_stats``; only those that are reported are recorded, and in between nothing is installed.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gpuledger.analyze.overview.iteration import summarize_iteration
from gpuledger.analyze.posting.posting import post_journal
from gpuledger.collect.sampling.calibrate import cache_path, libraries_for, load_profile
from gpuledger.collect.session.iteration import IterationRecorder, own_bytes
from gpuledger.errors import UsageError
from gpuledger.integrations.memory_table import CsvFile, MemoryReport, Sizes, table_lines
from gpuledger.model.journal.reading import Journal
from gpuledger.model.run import KeptRank

CSV_DIRECTORY = Path("memory_csv_data")


class MemoryProfiler:
    """Return a profiler that prints where a model's memory went, every ``print_period`` iterations.

    Call :meth:`record_stats` after each iteration and :meth:`epoch_end` after each epoch. Each line of the table is
    that quantity's highest bytes within the iteration, in MB of 10^6; the last block is one instant, and sums.

    Attributes:
        last: The last report, in bytes; None before the first.

    Args:
        model: What is trained, on CUDA devices or on the CPU.
        print_period: Iterations from one report to the next.
        csv: Write each report to ``./memory_csv_data/<time>.csv`` as well.

    Raises:
        UsageError: ``model`` is no module or has no parameters, ``print_period`` is below 1, or the CSV file cannot
            be written.

    Example:
        >>> import gpuledger
        >>> profiler = gpuledger.MemoryProfiler(model, print_period=10)  # doctest: +SKIP
        >>> profiler.record_stats()  # after each iteration  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module, print_period: int = 1, csv: bool = False) -> None:
        _check(model, print_period)
        self.model = model
        self.print_period = print_period
        self.iteration = 0
        self.epoch = 1
        self.last: MemoryReport | None = None
        self._recorder = IterationRecorder(model)
        weakref.finalize(self, self._recorder.cancel)
        self._names = [name for name, _ in model.named_parameters()]
        self._csv = CsvFile(CSV_DIRECTORY, self._names) if csv else None
        if self._csv is not None:
            _print([f"Logging data in ./{self._csv.path}"])
        self._wait_for_first()

    def __repr__(self) -> str:
        return f"<MemoryProfiler of {type(self.model).__name__}: epoch {self.epoch}, iteration {self.iteration}>"

    def record_stats(self) -> None:
        """Note that an iteration has ended, and print where its memory went where that is due.

        Raises:
            UsageError: no iteration has run at all.
        """
        due = (self.iteration + 1) % self.print_period == 0
        journal = self._recorder.end() if due else None
        if due and self.last is None and not self._recorder.problem and not (journal and _has_run(journal)):
            self._recorder.cancel()
            raise UsageError(
                "record_stats(): the model was not called since the profiler was created",
                hint="Call record_stats() at the end of each iteration",
            )
        self.iteration += 1
        if due:
            self._report(journal)
        if (self.iteration + 1) % self.print_period == 0:
            self._recorder.begin()

    def epoch_end(self) -> None:
        """Note that an epoch has ended: iterations are counted from 1 again."""
        self._recorder.cancel()
        _print([f"Epoch {self.epoch} finished"])
        self.iteration = 0
        self.epoch += 1
        self._wait_for_first()

    def _wait_for_first(self) -> None:
        """Have the first iteration of an epoch begin with its forward: what lies before it may be an evaluation."""
        if self.print_period == 1:
            self._recorder.begin_at_call()

    def _report(self, journal: Journal | None) -> None:
        if journal is None:
            why = self._recorder.problem or "no module was called"
            _print([f"Memory Usage for Iteration {self.iteration} of Epoch {self.epoch}: not recorded, {why}"])
            return
        report = self.last = self._summarize(journal)
        _print(table_lines(report))
        if self._csv is not None:
            self._csv.add(report)

    def _summarize(self, journal: Journal) -> MemoryReport:
        weights = tuple((name, own_bytes(parameter)) for name, parameter in self.model.named_parameters())
        found = self._recorder.gradient_bytes
        gradients: Sizes = tuple((name, found.get(name, 0)) for name, _ in weights)
        devices = summarize_iteration(_kept_rank(journal), self._recorder.module_ids())
        return MemoryReport(
            epoch=self.epoch,
            iteration=self.iteration,
            weight_bytes=_weight_bytes(self.model),
            weights=weights,
            gradient_bytes=sum(device.gradient_bytes for device in devices),
            gradients=gradients,
            devices=devices,
        )


memory_profiler = MemoryProfiler


def _check(model: Any, print_period: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"memory_profiler: expected a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(print_period, int) or print_period < 1:
        raise UsageError(f"memory_profiler: print_period {print_period!r}: expected a whole number of 1 or more")
    kinds = {parameter.device.type for parameter in model.parameters()}
    if not kinds:
        raise UsageError(
            f"memory_profiler: {type(model).__name__} has no parameters", hint="Pass the model that you train"
        )
    if not kinds <= {"cpu", "cuda"}:
        raise UsageError(f"memory_profiler: the model is on {', '.join(sorted(kinds))}, but it must be on cuda or cpu")


def _has_run(journal: Journal) -> bool:
    """Return whether anything was done in an iteration: a module called, or memory allocated."""
    return bool(journal.facts.get("called_roots")) or bool(journal.rows("events"))


def _kept_rank(journal: Journal) -> KeptRank:
    """Return a recording that stays in memory, as what is read from a run."""
    rank = post_journal(journal)
    libraries, _ = libraries_for(rank.manifest, trained=True, lookup=lambda key, _uuid: load_profile(key, cache_path()))
    return rank if libraries is None else replace(rank, manifest=replace(rank.manifest, libraries=libraries))


def _weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters, of those that are the same memory once."""
    places = {}
    for parameter in model.parameters():
        local = getattr(parameter, "_local_tensor", parameter)
        places[local.device, local.data_ptr(), own_bytes(local)] = own_bytes(local)
    return sum(places.values())


def _print(lines: list[str]) -> None:
    print(*lines, sep="\n", file=sys.stdout, flush=True)

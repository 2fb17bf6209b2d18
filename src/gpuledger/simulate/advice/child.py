"""The child process that follows a program with combinations of measures, each in a fork of its own."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError
from gpuledger.files.scratch import block_directory
from gpuledger.processes.child_job import job_directory, serve_job
from gpuledger.simulate.advice.choose import Chooser, Followed
from gpuledger.simulate.advice.combination import Applied, Combination, describe
from gpuledger.simulate.assumptions import EXPECTED, LARGEST
from gpuledger.simulate.estimate.child import end_with_threads, load_for_forks, run_as_main
from gpuledger.simulate.estimate.forked import run_forked
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.journal.reading import Journal


def advise(order: dict[str, Any], program: list[str]) -> dict[str, Any]:
    """Return the cheapest combination of measures with which a program fits, and all that were tried.

    Args:
        order: ``card``, ``steps``, ``settings``, ``confidence``, ``limit_bytes``, ``dtype`` of autocast, and the place
            of the program's batch size in its arguments: ``batch_place``, -1 if it has none.
        program: The program with its arguments.
    """
    load_for_forks()
    followers = _Followers(order, program)
    choice = Chooser(followers.follow, order["limit_bytes"]).choose()
    return {**dataclasses.asdict(choice), "notes": list(followers.notes)}


class _Followers:
    """Follows a program with one combination after another."""

    def __init__(self, order: dict[str, Any], program: Sequence[str]) -> None:
        self._order = order
        self._program = tuple(program)
        self._least_steps = 1
        self.notes: dict[str, None] = {}

    def follow(self, combination: Combination) -> Followed:
        """Return how much memory the program needs with a combination.

        A failure of a changed program is a result; a failure of the unchanged one is an error.

        Raises:
            InputError: the unchanged program cannot be followed.
        """
        try:
            found = run_forked(lambda: self._followed(combination, EXPECTED))
            if found["assumed"]:
                largest = run_forked(lambda: self._followed(combination, LARGEST))
                found["sizes"] = [
                    [own[0], max(own[1], most[1])] for own, most in zip(found["sizes"], largest["sizes"], strict=True)
                ]
        except InputError as error:
            if combination == Combination():
                raise
            return Followed(why_not=error.message)
        if combination == Combination():
            self._least_steps = min(found["steps"], 2)
            self.notes.update(dict.fromkeys(found["notes"]))
        elif found["steps"] < self._least_steps:
            return Followed(why_not="the program ended before its second step")
        self._say(combination, found)
        sizes = dict(zip((False, True), map(tuple, found["sizes"]), strict=True))
        return Followed(sizes, found["time_s"], found["flops"], Applied.of(found["applied"]))

    def _say(self, combination: Combination, found: dict[str, Any]) -> None:
        words = " ".join(describe(combination, Applied.of(found["applied"]))) or "Unchanged program."
        print(f"gpuledger: {words} {format_bytes(found['sizes'][0][0])}", file=sys.stderr, flush=True)

    def _followed(self, combination: Combination, assumption: str) -> dict[str, Any]:
        """Return sizes, FLOPs and steps of the program, which runs in this process.

        Raises:
            InputError: it has no estimate.
        """
        from gpuledger.model.journal.reading import read_journal
        from gpuledger.simulate.advice.changes import Changes
        from gpuledger.simulate.advice.work import least_time_s
        from gpuledger.simulate.catalogue import find_card
        from gpuledger.simulate.estimate.failures import refuse_failure
        from gpuledger.simulate.estimate.follow import follow
        from gpuledger.simulate.estimate.run import note_on_uncompiled

        order, place = self._order, self._order["batch_place"]
        words = divided_program(self._program, place, combination.divisor)
        changes = Changes({**dataclasses.asdict(combination), "dtype": order["dtype"], "in_arguments": place >= 0})
        card = find_card(order["card"])
        with block_directory(beside=job_directory()) as directory:
            names = ("card", "steps", "settings")
            given = {name: order[name] for name in names} | {"run_directory": str(directory), "assumption": assumption}
            outcome = follow(given, lambda: run_as_main(list(words)), gc.unfreeze, changes)
            refuse_failure(words, outcome)
            journal = read_journal(directory / "rank-0" / "journal")
            sizes = _sizes_of(journal, order)
        uncompiled = journal.facts.get("uncompiled", {})
        notes = [note_on_uncompiled(uncompiled), *outcome["notes"]] if uncompiled else outcome["notes"]
        applied = changes.found()
        if place >= 0:
            applied["batch"] = value_of(self._program, place)
        return {
            "sizes": sizes,
            "steps": outcome["steps"],
            "assumed": outcome["assumed"],
            "notes": notes,
            "flops": dict(changes.work.flops),
            "time_s": least_time_s(changes.work.flops, card.peak_tflop_s),
            "applied": applied,
        }


def _sizes_of(journal: Journal, order: dict[str, Any]) -> list[tuple[int, int]]:
    """Return bytes of the process and their upper bound, without and with expandable segments."""
    from gpuledger.analyze.posting.replay import AllocatorSettings
    from gpuledger.simulate.catalogue import HANDLES, find_card
    from gpuledger.simulate.estimate.fit import Requests, kind_of, peaks_on

    card = find_card(order["card"]).with_handles(int(journal.facts.get("cublas_handles", HANDLES)))
    own = AllocatorSettings(**order["settings"])
    kind = kind_of(journal.facts.get("operators", ()))
    found = []
    for settings in (own, dataclasses.replace(own, expandable=True)):
        peaks = peaks_on(card, *Requests(journal, settings).peak_bytes, order["confidence"], kind)
        found.append((peaks.process_bytes, peaks.upper_bytes))
    return found


def value_of(program: Sequence[str], place: int) -> int:
    """Return the number in a program's argument, ``--NAME=8`` or the value alone."""
    return int(program[place].rpartition("=")[2])


def divided_program(program: tuple[str, ...], place: int, divisor: int) -> tuple[str, ...]:
    """Return a program's arguments with the batch size at index ``place`` divided.

    Raises:
        InputError: it cannot be divided into equal parts.
    """
    from gpuledger.simulate.estimate.batch import set_argument

    if place < 0 or divisor == 1:
        return program
    value = value_of(program, place)
    if value % divisor:
        raise InputError(f"a batch of {value:,} cannot be divided by {divisor:,}")
    return set_argument(program, place, value // divisor)


if __name__ == "__main__":
    end_with_threads(serve_job(advise))

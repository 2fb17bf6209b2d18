"""Measures what recording an out-of-memory error costs with 1,000 to 100,000 live blocks: time, memory, written bytes.

Each round is a process of its own, forked after torch was imported and before CUDA is used. A small training passes the
recorded steps, so that only the flight recorder is on. A list then keeps blocks of 4 KiB, and one request of more than
the GPU fails. Times are from that request to the exception in the program. The same is done without gpuledger. Ends
within 90 s.

Usage: python bench/memory/many_blocks.py --out bench/memory/results/h200/many_blocks.json
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch._dynamo

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from forks import in_a_fork

import gpuledger
from gpuledger.analyze.memory.failures.oom import explain_oom
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.session.session import Session
from gpuledger.model.run import Rank

PACKAGE = Path(gpuledger.__file__).parent
COUNTS = (100_000, 10_000, 1_000)
BLOCK_BYTES = 4096
ROUNDS = 3
ALONE = 18
"""Steps after which only the flight recorder is on."""
LIMIT_S, EACH_S = 75.0, 14
GOAL_S = 2.0
"""The longest time for an error with 100,000 blocks."""

Figures = dict[str, int]


class Card(Protocol):
    """What the measurement asks of a GPU."""

    device: str

    def block(self, size_bytes: int) -> object:
        """Return a tensor."""
        ...

    def fail(self) -> None:
        """Request more than there is."""
        ...

    def figures(self) -> Figures:
        """Return the memory in use, and how often memory was requested so far."""
        ...


class Cuda:
    """The first GPU."""

    device = "cuda"

    def block(self, size_bytes: int) -> object:
        """Return a tensor on the GPU."""
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    def fail(self) -> None:
        """Request twice the GPU's memory."""
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")

    def figures(self) -> Figures:
        """Return the allocator's counters, and the bytes in use on the whole GPU."""
        stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        return {
            "allocated_bytes": stats["allocated_bytes.all.current"],
            "reserved_bytes": stats["reserved_bytes.all.current"],
            "allocations": stats["allocation.all.allocated"],
            "segments": stats["segment.all.allocated"],
            "used_bytes": total - free,
        }


def train(device: str, steps: int) -> None:
    """Train a small model for some steps."""
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device=device)).sum().backward()
        optimizer.step()


def host_bytes(name: str) -> int:
    """Return a size of this process, such as ``VmRSS`` or its peak ``VmHWM``."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {name}"
    return int(found[1]) << 10


def peak_restarts() -> bool:
    """Make this process's peak of host memory begin anew; return whether the kernel allows that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False


def size_of(directory: Path) -> int:
    """Return the bytes of the files below a directory."""
    return sum(one.stat().st_size for one in directory.rglob("*") if one.is_file())


def fail_with(card: Card, count: int, directory: Path, start: Callable[[], Session] | None) -> dict[str, Any]:
    """Return what one failing request costs with ``count`` live blocks.

    Args:
        card: The GPU.
        count: Number of blocks.
        directory: Where the rank writes.
        start: Starts the recording; None for none.
    """
    session = None if start is None else start()
    train(card.device, ALONE)
    if session is not None:
        assert session.flight is not None, "the flight recorder is off"
        assert session.flight.is_alone, "the recorded steps have not ended"
    kept = [card.block(BLOCK_BYTES) for _ in range(count)]
    written, restarted, host = size_of(directory), peak_restarts(), host_bytes("VmRSS")
    before, raised = card.figures(), None
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    try:
        card.fail()
    except torch.OutOfMemoryError as error:
        wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
        raised = error
    after = card.figures()
    assert raised is not None, "the request did not fail"
    found = {
        "wall_s": wall_ns / 1e9,
        "cpu_s": cpu_ns / 1e9,
        "before": before,
        "more": {name: after[name] - before[name] for name in before},
        "host_more_bytes": host_bytes("VmRSS") - host,
        "host_peak_more_bytes": max(host_bytes("VmHWM") - host, 0) if restarted else None,
        "written_bytes": size_of(directory) - written,
        "exception": described(raised),
    }
    del kept
    if session is None:
        return found
    session.finish("exit")
    rank = Rank(0, directory, post_rank(directory))
    (failure,) = explain_oom(rank, replays=False)
    told = {"blocks": None if failure.state is None else failure.state.blocks, "notes": list(rank.manifest.notes)}
    took_ns = rank.manifest.oom[0].took_ns
    return {**found, **told, "took_s": None if took_ns is None else took_ns / 1e9}


def described(error: BaseException) -> dict[str, Any]:
    """Return what a program sees of an exception, and whether any of it is gpuledger's."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [one for one in files if Path(one).is_relative_to(PACKAGE)]
    others = error.__cause__ is not None or error.__context__ is not None
    return {
        "class": f"{type(error).__module__}.{type(error).__qualname__}",
        "message": str(error),
        "files": [Path(one).name for one in files],
        "is_the_programs": not ours and not others and type(error) is torch.OutOfMemoryError,
    }


def recording(directory: Path) -> Session:
    """Start what ``gpuledger run`` starts in a program."""
    settings = RecordSettings(directory.parent, stacks=True, devices="cuda", flight_recorder=True)
    session = Session(settings, rank_directory=lambda: directory, from_outside=True, begins_late=False)
    session.start()
    return session


def one_round(count: int, root: Path, *, flies: bool) -> dict[str, Any]:
    """Return one failure in a forked process, with gpuledger or without it."""
    directory = root / f"{count}-{flies}-{time.time_ns()}.ledger" / "rank-0"
    directory.mkdir(parents=True)
    start = (lambda: recording(directory)) if flies else None
    return in_a_fork(lambda: fail_with(Cuda(), count, directory, start), EACH_S)


def summary(rounds: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the median and the values of a figure."""
    values = [one[name] for one in rounds if one.get(name) is not None]
    return {"median": statistics.median(values) if values else None, "values": values}


def without_numbers(message: str) -> str:
    """Return a message with its sizes and process ids left out, which differ from run to run."""
    return re.sub(r"[\d.]+( bytes| [KMG]iB)?", "#", message)


def concluded(with_it: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one number of blocks."""
    done, bare = ([one for one in rounds if "exception" in one] for rounds in (with_it, without))
    messages = {without_numbers(one["exception"]["message"]) for one in (*done, *bare)}
    figures = ("wall_s", "cpu_s", "took_s", "host_more_bytes", "host_peak_more_bytes", "written_bytes", "blocks")
    return {
        "with": {name: summary(done, name) for name in figures},
        "without": {name: summary(bare, name) for name in figures[:2]},
        "more_on_the_card": [one["more"] for one in done],
        "more_on_the_card_without": [one["more"] for one in bare],
        "is_the_programs": bool(done) and all(one["exception"]["is_the_programs"] for one in done),
        "same_message": len(messages) == 1,
        "rounds": {"with": with_it, "without": without},
    }


def main() -> None:
    """Measure every number of blocks, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    until_s = time.monotonic() + LIMIT_S
    rounds: dict[int, dict[bool, list[dict[str, Any]]]] = {count: {True: [], False: []} for count in COUNTS}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for number in range(arguments.rounds):
            for count in COUNTS:
                for flies in (True, False) if number % 2 else (False, True):
                    if time.monotonic() < until_s:
                        rounds[count][flies].append(one_round(count, Path(root), flies=flies))
            results |= {str(count): concluded(found[True], found[False]) for count, found in rounds.items()}
            write_results(arguments.out, {"counts": results})
    for name, found in results.items():
        taken = found["with"]
        print(
            f"{name} blocks, n = {len(taken['wall_s']['values'])}: {taken['wall_s']['median']} s, CPU",
            f"{taken['cpu_s']['median']} s, without {found['without']['wall_s']['median']} s; written",
            f"{taken['written_bytes']['median']}, host {taken['host_peak_more_bytes']['median']}; on the card",
            f"{found['more_on_the_card']}; the program's own exception: {found['is_the_programs']}",
        )
        print(*[one["error"] for both in found["rounds"].values() for one in both if "error" in one])
    write_results(arguments.out, {"environment": describe_environment("cuda"), "goal_s": GOAL_S, "counts": results})


if __name__ == "__main__":
    main()

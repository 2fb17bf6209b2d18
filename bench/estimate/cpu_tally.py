"""Compares estimates with a tally of the same programs run on the CPU: live bytes of tensors at the peak, by category.

Needs no GPU. On the CPU every tensor has data, so values that an estimate replaces are real. Both sides use the same
attention, dropout, RMSNorm, GRU cell and foreach optimizers. What kernels of a GPU take for themselves (workspaces)
is left out, and so is the allocator's rounding, because the CPU's tally has neither. Operators of the CPU keep other
results for the backward pass than those of a GPU, so a difference can have that reason, too. With --only, results of
other programs are kept. With --side estimate, programs are only estimated. With --side cpu, they run later, and are
compared with those estimates. If a file has both sides, --side makes one of them again.

Usage: python bench/estimate/cpu_tally.py --out bench/estimate/results/cpu/cpu_tally.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

import numpy as np
from as_on_a_gpu import choose_as_on_a_gpu, choose_plain_attention
from environment import describe_environment, write_results
from forks import in_a_fork

import gpuledger
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import pick_device, read_labels, read_lives, running_sum
from gpuledger.model.run import Rank
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.estimate.child import load_for_forks, run_as_main
from gpuledger.simulate.estimate.forked import run_forked
from gpuledger.simulate.estimate.run import Order, describe_order, estimate_program
from gpuledger.simulate.gpu.device import SimulatedDevice

PROGRAMS = Path(__file__).parent / "tally_programs"
GPU, LIMIT_S = "h200", 400
SIDES = ("cpu", "estimate")


def leave_workspaces_out() -> None:
    """Make the simulated GPU's kernels take no memory for themselves."""
    SimulatedDevice.borrow = lambda _device, _sizes_bytes, _operator: contextlib.nullcontext()  # type: ignore[method-assign]
    SimulatedDevice.keep = lambda _device, _key, _size_bytes, _operator: None  # type: ignore[method-assign]


def peak_of(rank: Rank) -> dict[str, Any]:
    """Return the peak of requested bytes, its categories, and its step."""
    device = pick_device(rank)
    lives = read_lives(rank, device)
    codes, names = read_labels(rank, "blocks", "category", device)
    sums = running_sum(lives.requested_bytes, lives.alloc_index, lives.free_requested_index)
    instant = int(sums.index[np.argmax(sums.bytes)])
    live = lives.allocated_at(instant)
    parts = {name: int(lives.requested_bytes[live & (codes == code)].sum()) for code, name in enumerate(names)}
    return {
        "peak_bytes": int(sums.bytes.max()),
        "peak_step": find_peak(rank).step,
        "categories": {name: size for name, size in parts.items() if size},
    }


def on_the_cpu(program: Path, place: Path) -> dict[str, Any]:
    """Run a program on the CPU and return its peak. Runs in a process of its own."""
    choose_plain_attention()
    choose_as_on_a_gpu()
    began_s = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr), gpuledger.record(out=place, stacks=False, devices="cpu") as recording:
        run_as_main([str(program)])
    return {**peak_of(recording.run().rank(0)), "seconds": round(time.monotonic() - began_s, 1)}


def estimated(program: Path, place: Path, follow: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return the estimated peak of a program, and what the estimate says of it. Runs in a process of its own."""
    choose_plain_attention()
    leave_workspaces_out()

    def follower(order: Order, directory: Path, _output: Any, assumption: str) -> dict[str, Any]:
        given = describe_order(order, directory, assumption)
        with contextlib.redirect_stdout(sys.stderr):
            return run_forked(lambda: follow(given, lambda: run_as_main([str(program)])))

    began_s = time.monotonic()
    found = estimate_program(Order((str(program),), find_card(GPU), None), place, follower=follower)
    return {
        **peak_of(found.run.rank(0)),
        "steps": found.steps,
        "notes": list(found.notes),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def compare(
    program: Path, keep: Path, follow: Callable[..., dict[str, Any]], known: dict[str, Any], *, only: str, again: bool
) -> dict[str, Any]:
    """Return both peaks of a program, and how far the estimate is from the tally.

    Args:
        program: The script.
        keep: Directory for its runs and tallies.
        follow: Follows a program on a simulated GPU.
        known: Earlier results of the program. The side that is not made is kept.
        only: The side to make; "" makes both.
        again: Whether a kept tally is made again.
    """
    sides: dict[str, Any] = {name: known[name] for name in SIDES if only and name in known}
    for side, run in zip(SIDES, (on_the_cpu, partial(estimated, follow=follow)), strict=True):
        if only and side != only:
            continue
        place, kept = keep / f"{program.stem}-{side}.ledger", keep / f"{program.stem}-{side}.json"
        if side == "cpu" and kept.exists() and not again:
            sides[side] = json.loads(kept.read_text(encoding="utf-8"))
            continue
        shutil.rmtree(place, ignore_errors=True)
        sides[side] = in_a_fork(partial(run, program, place), LIMIT_S)
        sides[side].pop("traceback", None)
        sides[side]["made"] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        if "error" in sides[side] and not only:
            break
        if "error" not in sides[side]:
            kept.write_text(json.dumps(sides[side]), encoding="utf-8")
    failed = [side for side in SIDES if "error" in sides.get(side, {})]
    if failed:
        return {**sides, "failed": failed[0]}
    if len(sides) < len(SIDES):
        return sides
    sides["difference_frac"] = round(sides["estimate"]["peak_bytes"] / sides["cpu"]["peak_bytes"] - 1, 4)
    return sides


def chosen(only: str) -> Iterator[Path]:
    """Yield the programs with ``only`` in their name."""
    for program in sorted(PROGRAMS.glob("*/*.py")):
        if only in f"{program.parent.name}/{program.stem}":
            yield program


def describe(name: str, sides: dict[str, Any]) -> Iterator[str]:
    """Yield lines on one program: the peaks, and categories where they differ."""
    if "failed" in sides:
        yield f"{name}: {sides['failed']} failed: {sides[sides['failed']]['error'][:300]}"
        return
    if "difference_frac" not in sides:
        yield "".join(f"{name}: {side} {one['peak_bytes'] / 2**20:.1f} MiB" for side, one in sides.items())
        return
    cpu, estimate = sides["cpu"], sides["estimate"]
    peaks = [f"{side['peak_bytes'] / 2**20:.1f}" for side in (cpu, estimate)]
    yield (
        f"{name:32} {peaks[0]:>8} {peaks[1]:>8} MiB {100 * sides['difference_frac']:+6.1f} %  "
        f"{estimate['steps']} steps, peak in {cpu['peak_step']} and {estimate['peak_step']}  "
        f"{cpu['seconds']} s, {estimate['seconds']} s"
    )
    if abs(sides["difference_frac"]) > 0.02:
        for part in sorted({*cpu["categories"], *estimate["categories"]}):
            sizes = [f"{side['categories'].get(part, 0) / 2**20:.2f}" for side in (cpu, estimate)]
            yield f"    {part:28} {sizes[0]:>8} {sizes[1]:>8}"


def main() -> None:
    """Compare every program and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, help="Keep the runs in this directory, and tallies of the CPU with them.")
    parser.add_argument("--again", action="store_true", help="Run on the CPU again, although a tally was kept.")
    parser.add_argument("--side", choices=SIDES, default="", help="Make only this side, and keep the other.")
    options = parser.parse_args()
    follow = load_for_forks()
    results: dict[str, Any] = {"environment": describe_environment("cpu"), "found": {}}
    if options.out is not None and options.out.exists() and (options.only or options.side):
        before = json.loads(options.out.read_text(encoding="utf-8"))
        results["found"] = before["found"]
        if options.side == "cpu":
            results = {**before, "environment_of_tally": results["environment"]}
        elif options.side == "estimate":
            results["environment_of_tally"] = before.get("environment_of_tally", before["environment"])
    found = results["found"]
    kept = set(found) if options.side and not options.only else set()
    with tempfile.TemporaryDirectory() as directory:
        keep = options.keep or Path(directory)
        keep.mkdir(exist_ok=True)
        for program in chosen(options.only):
            name = f"{program.parent.name}/{program.stem}"
            if kept and name not in kept:  # it has no other side
                continue
            known = found.get(name, {})
            found[name] = compare(program, keep, follow, known, only=options.side, again=options.again)
            print("\n".join(describe(name, found[name])), flush=True)
    if options.out is not None:
        write_results(options.out, results)


if __name__ == "__main__":
    main()

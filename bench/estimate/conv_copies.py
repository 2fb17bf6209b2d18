"""Compares the copies and sums that estimates assume in convolutions with those of an H200, by size and order.

Which blocks an H200's allocator gave out is known from conv_workspaces.py. cuDNN's workspaces are left out: of shapes
that were not measured, they are guessed (tools/fit_convolutions.py --judge).

Usage: python bench/estimate/conv_copies.py [--out results/h200/conv_copies.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from conv_rows import arguments_of, gradient_like
from conv_workspaces import RAN, Case, read

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment

from gpuledger.simulate.convolutions.convolution_rows import PLACE, Row
from gpuledger.simulate.convolutions.convolutions import Held, backward_held, forward_held

ROOT = Path(__file__).resolve().parents[2]
MEASURED = sorted((ROOT / "tests" / "data" / "h200").glob("conv_workspaces*.npz"))
RESULT = 0
"""Stands for a result among blocks."""


def held_in(row: Row) -> tuple[Held, Held, list[bool]]:
    """Return what estimates say that forward and backward hold, and which gradients are made."""
    tensors, rest = arguments_of(row, "meta")
    bias_sizes = None if tensors[2] is None else list(tensors[2].shape)
    mask = [bool(row[PLACE["data_gradient"]]), True, bias_sizes is not None]
    gradient = gradient_like(torch.ops.aten.convolution(*tensors, *rest), row)
    backward = backward_held((gradient, *tensors[:2], bias_sizes, *rest, mask))
    return forward_held((*tensors, *rest)), backward, mask


def stream_of(held: Held, made: Sequence[bool], *, workspaces: bool = True) -> list[int]:
    """Return the blocks in the order they are taken, with or without cuDNN's workspaces."""
    blocks = list(held.before)
    for place, (sizes, is_made) in enumerate(zip(held.beside, made, strict=True)):
        blocks += (held.between if place == 1 else held.after) if place else ()
        own = sizes if workspaces or place == 2 else sizes[:-1]
        blocks += [RESULT, *(size_bytes for size_bytes in own if size_bytes)] if is_made else []
    return blocks


def recorded(stream: Sequence[int]) -> list[int]:
    """Return the blocks of a recorded stream in order."""
    freed = {-number for number in stream if number < 0}
    sizes = [number for number in stream if number > 0]
    return [size_bytes if place in freed else RESULT for place, size_bytes in enumerate(sizes, 1)]


def agrees(case: Case) -> bool:
    """Return whether the copies, results and sums are among the recorded blocks of a case, in the same order."""
    forward, backward, made = held_in(case.row)
    said = [stream_of(forward, [True], workspaces=False), stream_of(backward, made, workspaces=False)]
    return all(_is_within(few, recorded(stream)) for few, stream in zip(said, case.streams, strict=False))


def _is_within(few: Iterable[int], many: Iterable[int]) -> bool:
    """Return whether the numbers are among others in the same order."""
    rest = iter(many)
    return all(number in rest for number in few)


def main() -> None:
    """Compare all, and write how many agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "h200" / "conv_copies.json")
    out = parser.parse_args().out
    found: dict[str, Any] = {"environment": describe_environment("cpu"), "measured_on": {}, "files": {}}
    for place in MEASURED:
        read_cases, found["measured_on"][place.stem] = read(place)
        cases = [case for case in read_cases if case.state == RAN]
        equal = [agrees(case) for case in cases]
        found["files"][place.stem] = {"convolutions": len(cases), "copies_agree": sum(equal)}
        differing = [case.row for case, is_equal in zip(cases, equal, strict=True) if not is_equal]
        print(f"{place.name}: {sum(equal)} of {len(cases)}", *differing[:9], sep="\n", flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

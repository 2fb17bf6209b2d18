"""Measures what convolutions hold beside their results on a GPU: every block the allocator gives out inside them.

Three sets: the convolutions of many models (conv_shapes.npz) at several batches, types and formats; convolutions
drawn from a wide distribution; and those of the trainings that estimates are judged by. ``aten::convolution`` and
``aten::convolution_backward`` are called twice each: what the first call alone holds (plans that cuDNN gives up) is
told from what stays. Blocks come from the allocator's own history, in the order they were taken and given back. With
``--dims 3``, all convolutions are drawn and have three dimensions: wide and as networks have them, in turn. With
``--pointwise``, all of them have a kernel of one element. ``--set`` draws those of a set of conv_sets.py. With
it, the convolutions of a file of conv_shapes.py (``--shapes``) come first. ``--limit-s`` ends everything after so many
seconds. What was measured by then is written.

The result holds, for each case, its row (gpuledger.simulate.convolutions) and four streams of whole numbers (forward
and backward, first call and second): ``n`` > 0 is a block of so many bytes, ``-k`` gives the stream's k-th block back.
What is never given back is a result. ``state`` is 0 for a case that ran, 1 for one refused, 2 where memory ran out.

Usage:
    python bench/estimate/conv_workspaces.py --share 0/4 --workers 4 --seconds 200 --out conv_workspaces_0.npz
    python bench/estimate/conv_workspaces.py --dims 3 --workers 4 --seconds 100 --out conv_workspaces_3d.npz
    python bench/estimate/conv_workspaces.py --dims 3 --pointwise --seconds 100 --out conv_workspaces_pointwise.npz
    python bench/estimate/conv_workspaces.py --set nets --workers 12 --limit-s 100 --out conv_workspaces_nets.npz
    python bench/estimate/conv_workspaces.py --join conv_workspaces_[0-3].npz --out tests/data/h200/conv_workspaces.npz
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conv_rows import arguments_of, canonical, gradient_like, is_fit
from conv_sets import SETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment

from gpuledger.simulate.convolutions.convolution_rows import COLUMNS, FIRST, LAST, OTHER, PLACE, Row

HERE = Path(__file__).parent
SHAPES = HERE / "conv_shapes.npz"
CHUNK = 16
"""So many cases between two looks at the allocator's history."""
KEEP_EVERY_S = 20.0
START_S, JOIN_S = 12.0, 4.0
"""Of a limit, so long for the start of all processes and for joining what they wrote."""
BEGIN, FORWARD, BACKWARD, END, FAILED = 1913, 1931, 1933, 1949, 1951
"""Sizes of blocks that mark in the history what comes next; no workspace has such a size."""
RAN, REFUSED, NO_MEMORY = 0, 1, 2
aten = torch.ops.aten


# -- which convolutions -------------------------------------------------------------------------------------------


def draw(dice: random.Random, dims: int = 0) -> Row:
    """Return one convolution of a wide distribution, without regard to its size; with ``dims`` dimensions if not 0."""
    only = dims > 0
    dims = dims or dice.choices((2, 1, 3), (92, 5, 3))[0]
    kernel = _kernel(dice, dims)
    patches = max(kernel) >= 2 and dice.random() < 0.06
    stride = list(kernel) if patches else [dice.choices((1, 2, 3), (70, 28, 2))[0]] * dims
    far = max(kernel) > 1 and not patches and dice.random() < 0.15
    dilation = [dice.choice((2, 2, 3, 4, 6, 8, 12, 18)) if far else 1] * dims
    same = not patches and dice.random() < 0.85
    padding = [step * (size - 1) // 2 if same else 0 for size, step in zip(kernel, dilation, strict=True)]
    channels, made = _channels(dice, first=dice.random() < 0.06), _channels(dice)
    groups = dice.choices((1, channels, 0), (76, 14, 10))[0]
    if groups == 0:
        width = dice.choice((4, 8, 16, 24, 32, 64))
        groups = dice.choice((2, 4, 8, 32, max(channels // width, 1)))
        channels, made = (-(-n // groups) * groups for n in (channels, made))
    elif groups > 1:
        made = channels * dice.choices((1, 2), (90, 10))[0]
    elif only and dice.random() < 0.3:
        made = dice.randint(1, 24)  # as last layers have
    transposed = int(dice.random() < 0.07)
    more = [int(transposed and step > 1 and dice.random() < 0.5) for step in stride]
    sizes = _sizes(dice, dims)
    weight = (channels, made // groups) if transposed else (made, channels // groups)
    layout = dice.choices((FIRST, LAST), (70, 30))[0]
    layouts = [layout, dice.choices((layout, FIRST), (85, 15))[0]]
    gradient = dice.choices((layout, FIRST, OTHER), (90, 5, 5))[0]
    batch = dice.choice((1, 2, 4, 8, 16, 16, 32, 32, 64, 64, 128, 256)) if dice.random() < 0.8 else dice.randint(1, 100)
    triples = (n for one in (stride, padding, dilation, more) for n in (*one, *[0] * (3 - dims)))
    return (
        dims, transposed, dice.choices((0, 1, 2), (50, 20, 30))[0], batch, channels, *sizes, *[0] * (3 - dims),
        *weight, *kernel, *[0] * (3 - dims), *triples, groups, *layouts, int(dice.random() < 0.3), gradient,
        int(dice.random() < 0.93),
    )  # fmt: skip


def _kernel(dice: random.Random, dims: int) -> list[int]:
    if dims == 2 and dice.random() < 0.03:
        side = dice.choice((3, 5, 7))
        return dice.choice(([1, side], [side, 1]))
    return [dice.choices((1, 3, 5, 7, 2, 4, 9, 11, 14, 16), (34, 42, 7, 7, 3, 4, 1, 1, 0.5, 0.5))[0]] * dims


def _channels(dice: random.Random, first: bool = False) -> int:
    if first:
        return dice.choice((1, 2, 3, 3, 3, 4, 6))
    kind = dice.random()
    if kind < 0.45:
        return int(
            dice.choice((8, 16, 24, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512, 768, 1024, 2048))
        )
    most = round(math.exp(dice.uniform(math.log(8), math.log(1536))))
    if kind < 0.75:
        return max(8, most // 8 * 8)
    return max(64, most // 64 * 64) if kind < 0.9 else most


def _sizes(dice: random.Random, dims: int) -> list[int]:
    if dims == 1:
        return [dice.choice((50, 100, 128, 256, 500, 512, 1000, 1500, 3000, 4000, 16000))]
    usual = (
        7, 8, 10, 12, 14, 14, 15, 16, 17, 19, 20, 24, 28, 28, 32, 32, 33, 35, 40, 48, 56, 56, 64, 64, 65, 71, 73, 80,
        96, 112, 112, 113, 128, 128, 129, 147, 149, 160, 192, 224, 224, 256, 320, 384, 512,
    )  # fmt: skip
    side = dice.choice(usual) if dice.random() < 0.75 else round(math.exp(dice.uniform(0, math.log(256))))
    if dims == 3:
        return [dice.choice((4, 8, 16, 32)), *[min(side, 112)] * 2]
    return [side, side if dice.random() < 0.85 else dice.choice(usual)]


def vary(row: Sequence[int], dice: random.Random) -> Row:
    """Return a model's convolution at another batch, type and format."""
    batch = dice.choices((1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256), (3, 4, 10, 14, 14, 3, 18, 3, 16, 3, 8, 4))[0]
    changed = list(row)
    changed[PLACE["batch"]] = max(int(row[PLACE["batch"]]) * batch // 2, 1)
    changed[PLACE["dtype"]] = dice.choices((0, 1, 2), (50, 18, 32))[0]
    if dice.random() < 0.22:
        for name in ("data_format", "weight_format", "gradient_format"):
            changed[PLACE[name]] = LAST
    return tuple(int(value) for value in changed)


def draw_usual(dice: random.Random, dims: int) -> Row:
    """Return one convolution as networks have them: no groups, small kernels and batches, even sides."""
    kernel = dice.choices((1, 3, 2, 5, 7), (30, 45, 12, 5, 8))[0]
    step = kernel if kernel == 2 else dice.choice((1, 1, 1, 2))
    transposed = int(step > 1 and kernel > 1 and dice.random() < 0.4)
    channels = dice.choice((1, 1, 2, 3, 4)) if dice.random() < 0.15 else dice.choice(_USUAL_CHANNELS)
    made = dice.randint(1, 24) if dice.random() < 0.25 else dice.choice(_USUAL_CHANNELS)
    weight = (channels, made) if transposed else (made, channels)
    side = dice.choice((8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128))
    sizes = [side] * dims if dice.random() < 0.6 else [dice.choice((4, 8, 16, 32)), *[side] * (dims - 1)]
    layout = dice.choices((FIRST, LAST), (80, 20))[0]
    more = int(transposed and kernel > 2)
    padding = 0 if kernel == 2 else kernel // 2
    triples = (n for one in (step, padding, 1, more) for n in (*[one] * dims, *[0] * (3 - dims)))
    return (
        dims, transposed, dice.choices((0, 1, 2), (50, 20, 30))[0], dice.choice((1, 2, 2, 4, 4, 8, 16, 32)), channels,
        *sizes, *[0] * (3 - dims), *weight, *[kernel] * dims, *[0] * (3 - dims), *triples, 1, layout, layout,
        int(dice.random() < 0.5), layout, int(dice.random() < 0.93),
    )  # fmt: skip


_USUAL_CHANNELS = (8, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256, 320, 384, 512)


def draw_pointwise(dice: random.Random, dims: int) -> Row:
    """Return one convolution as networks have them whose kernel is one element, half of them with few results."""
    row = list(draw_usual(dice, dims))
    made = dice.randint(1, 24) if dice.random() < 0.5 else dice.choice(_USUAL_CHANNELS)
    row[PLACE["transposed"]], row[PLACE["weight0"]], row[PLACE["weight1"]] = 0, made, row[PLACE["channels"]]
    for axis in range(dims):
        for name, value in (("kernel", 1), ("stride", 1), ("padding", 0), ("more", 0)):
            row[PLACE[f"{name}{axis}"]] = value
    return tuple(row)


def drawn_cases(dims: int, share: int, is_pointwise: bool) -> Iterator[tuple[str, Row]]:
    """Yield source and row of drawn convolutions with so many dimensions, without end."""
    dice = random.Random(1000 * dims + share)
    makers = (draw_pointwise,) if is_pointwise else (draw_usual, draw_usual, draw)
    for row in (make(dice, dims) for make in itertools.cycle(makers)):
        if is_fit(row):
            yield "drawn", canonical(row)


def cases_of_set(name: str, shapes: Path | None, share: int, shares: int) -> Iterator[tuple[str, Row]]:
    """Yield source and row: a share of the listed shapes, then drawn ones of a set, without end."""
    if shapes:
        with np.load(shapes) as listed:
            names, source, rows = listed["sources"].tolist(), listed["source"], listed["rows"].tolist()
        for place in range(share, len(rows), shares):
            yield names[source[place]], tuple(rows[place])
    dice = random.Random(f"{name} {share}")
    makers, weights = zip(*SETS[name].items(), strict=True)
    while True:
        row = dice.choices(makers, weights)[0](dice)
        if is_fit(row):
            yield "drawn", canonical(row)


def cases(share: int, shares: int, shapes: Path = SHAPES) -> Iterator[tuple[str, Row]]:
    """Yield source and row of a share's cases, without end: the trainings' own, then models' and drawn ones in turn."""
    with np.load(shapes) as listed:
        names, source, rows = listed["sources"].tolist(), listed["source"], listed["rows"].tolist()
    exact = [i for i in range(len(rows)) if not names[source[i]].startswith("model:")]
    models = [i for i in range(len(rows)) if names[source[i]].startswith("model:")]
    random.Random(5).shuffle(exact)
    for i in exact[share::shares]:
        yield names[source[i]], tuple(rows[i])
    dice = random.Random(1000 + share)
    while True:
        i = dice.choice(models)
        for name, row in ((names[source[i]], vary(rows[i], dice)), ("drawn", draw(dice))):
            if is_fit(row):
                yield name, canonical(row)


# -- what they hold -----------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One convolution and what was seen: streams of forward and backward, first call and second."""

    source: str
    row: Row
    state: int = RAN
    streams: list[list[int]] = field(default_factory=lambda: [[], [], [], []])


def mark(size_bytes: int) -> None:
    """Leave a mark in the allocator's history."""
    torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def run_case(row: Row) -> None:
    """Call forward and backward twice, with marks between."""
    mark(BEGIN)
    try:
        tensors, rest = arguments_of(row, "cuda")
        bias_sizes = None if tensors[2] is None else list(tensors[2].shape)
        mask = [bool(row[PLACE["data_gradient"]]), True, bias_sizes is not None]
        for _ in range(2):
            mark(FORWARD)
            made = aten.convolution(*tensors, *rest)
            mark(END)
            gradient = gradient_like(made, row)
            del made
            mark(BACKWARD)
            results = aten.convolution_backward(gradient, *tensors[:2], bias_sizes, *rest, mask)
            mark(END)
            del results, gradient
    except RuntimeError:  # refused, or out of memory: the history says which
        mark(FAILED)


def read_history(chosen: list[Case]) -> None:
    """Fill in what the allocator's history says of the cases that ran since it was cleared."""
    trace = torch._C._cuda_memorySnapshot(None)["device_traces"][torch.cuda.current_device()]  # type: ignore[attr-defined]
    read_events(chosen, ((event["action"], event.get("addr"), event["size"]) for event in trace))
    start_history()


def read_events(chosen: list[Case], events: Any) -> None:
    """Fill in the streams of cases from events ``(action, address, size_bytes)`` in order."""
    waiting = iter(chosen)
    case, calls = Case("", ()), [0, 0]
    stream: list[int] | None = None
    numbers: dict[int, int] = {}
    for action, address, size_bytes in events:
        if action == "oom":
            case.state = NO_MEMORY
        elif action == "alloc" and size_bytes == BEGIN:
            case, calls, stream = next(waiting), [0, 0], None
        elif action == "alloc" and size_bytes in (FORWARD, BACKWARD):
            kind = int(size_bytes == BACKWARD)
            stream, numbers = case.streams[kind + 2 * calls[kind]], {}
            calls[kind] += 1
        elif action == "alloc" and size_bytes in (END, FAILED):
            stream = None
            if size_bytes == FAILED and case.state == RAN:
                case.state = REFUSED
        elif stream is not None and action == "alloc":
            numbers[address] = sum(one > 0 for one in stream) + 1
            stream.append(size_bytes)
        elif stream is not None and action == "free_requested" and address in numbers:
            stream.append(-numbers.pop(address))


def start_history() -> None:
    """Keep the allocator's history, without stacks, from nothing."""
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=1 << 20, clear_history=True
    )


def measure(walk: Iterator[tuple[str, Row]], seconds: float, most_frac: float, out: Path) -> None:
    """Measure cases for so many seconds, writing what there is from time to time."""
    begin_s = kept_s = time.monotonic()
    torch.cuda.set_per_process_memory_fraction(most_frac)
    room_bytes = most_frac * torch.cuda.get_device_properties(0).total_memory
    first = list(itertools.islice(walk, 4))
    for _, row in first:
        run_case(row)  # the library's own first calls
    start_history()
    done: list[Case] = []
    walk = itertools.chain(first, walk)
    while time.monotonic() - begin_s < seconds:
        chunk = [Case(*next(walk)) for _ in range(CHUNK)]
        for case in chunk:
            run_case(case.row)
        torch.cuda.synchronize()
        read_history(chunk)
        done += chunk
        if torch.cuda.memory_reserved() > 0.4 * room_bytes:
            torch.cuda.empty_cache()
        if time.monotonic() - kept_s > KEEP_EVERY_S:
            write(out, done, describe_environment("cuda"))
            kept_s = time.monotonic()
            print(f"{out.name}: {len(done)} cases, {kept_s - begin_s:.0f} s", flush=True)
    write(out, done, describe_environment("cuda"))


# -- files --------------------------------------------------------------------------------------------------------


def write(out: Path, done: list[Case], environment: dict[str, Any]) -> None:
    """Write cases as one compressed file of arrays, beside ``out`` first."""
    names = sorted({case.source for case in done})
    streams = [stream for case in done for stream in case.streams]
    beside = out.with_suffix(".part")
    with beside.open("wb") as file:
        np.savez_compressed(
            file,
            environment=np.frombuffer(json.dumps(environment).encode(), dtype=np.uint8),
            columns=np.array(COLUMNS),
            sources=np.array(names),
            source=np.array([names.index(case.source) for case in done], dtype=np.int32),
            state=np.array([case.state for case in done], dtype=np.int8),
            rows=np.array([case.row for case in done], dtype=np.int32).reshape(-1, len(COLUMNS)),
            lengths=np.array([len(stream) for stream in streams], dtype=np.int32),
            streams=np.array([n for stream in streams for n in stream], dtype=np.int64),
        )
    beside.replace(out)


def read(place: Path) -> tuple[list[Case], dict[str, Any]]:
    """Return the cases of a file and what they were measured on."""
    with np.load(place) as kept:
        names, ends = kept["sources"].tolist(), np.cumsum(kept["lengths"]).tolist()
        flat, rows, source, state = (kept[name].tolist() for name in ("streams", "rows", "source", "state"))
        environment = json.loads(kept["environment"].tobytes())
    begins = [0, *ends[:-1]]
    streams = [flat[a:b] for a, b in zip(begins, ends, strict=True)]
    done = [Case(names[source[i]], tuple(rows[i]), state[i], streams[4 * i : 4 * i + 4]) for i in range(len(rows))]
    return done, environment


def join(places: list[Path], out: Path) -> None:
    """Write the cases of several files as one, each row of each source once."""
    found: dict[tuple[str, Row], Case] = {}
    environment: dict[str, Any] = {}
    for place in places:
        done, environment = read(place)
        for case in done:
            found.setdefault((case.source, case.row), case)
    write(out, list(found.values()), environment)
    print(f"{out}: {len(found)} cases, {out.stat().st_size:,} bytes")


def run_workers(arguments: argparse.Namespace) -> None:
    """Measure one GPU's share with several processes, and join what they wrote."""
    share, shares = (int(part) for part in arguments.share.split("/"))
    parts = [arguments.out.with_suffix(f".{number}.npz") for number in range(arguments.workers)]
    running = []
    for number, part in enumerate(parts):
        own = f"{share * arguments.workers + number}/{shares * arguments.workers}"
        command = [sys.executable, __file__, "--share", own, "--seconds", str(arguments.seconds), "--out", str(part)]
        command += ["--dims", str(arguments.dims), *(["--pointwise"] if arguments.pointwise else [])]
        command += ["--set", arguments.set] if arguments.set else []
        command += ["--shapes", str(arguments.shapes)] if arguments.shapes else []
        running.append(subprocess.Popen([*command, "--memory", str(0.95 / arguments.workers)]))
    end_s = arguments.begin_s + arguments.limit_s - JOIN_S
    for process in running:
        try:
            process.wait(max(end_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:  # what it wrote last is joined
            process.kill()
            process.wait()
            print(f"process {process.pid} was ended after {arguments.limit_s:.0f} s", file=sys.stderr)
    join([part for part in parts if part.exists()], arguments.out)


def walk_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Return source and row of the cases that the arguments choose, without end."""
    share, shares = (int(part) for part in arguments.share.split("/"))
    if arguments.set:
        return cases_of_set(arguments.set, arguments.shapes, share, shares)
    return drawn_cases(arguments.dims, share, arguments.pointwise) if arguments.dims else cases(share, shares)


def main() -> None:
    """Measure or join."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", default="0/1", metavar="I/N", help="measure every N-th case, from the I-th on")
    parser.add_argument("--workers", type=int, default=1, help="processes on this card")
    parser.add_argument("--memory", type=float, default=0.95, help="share of the GPU's memory a process may take")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="end all of it, start included, by then")
    parser.add_argument("--dims", type=int, default=0, choices=(0, 1, 2, 3), help="draw only these; 0: the three sets")
    parser.add_argument("--pointwise", action="store_true", help="with --dims, draw only kernels of one element")
    parser.add_argument("--set", choices=SETS, help="draw the convolutions of this set")
    parser.add_argument("--shapes", type=Path, help="with --set, measure these first (of conv_shapes.py)")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    arguments.begin_s = time.monotonic()
    arguments.seconds = min(arguments.seconds, arguments.limit_s - START_S - JOIN_S)
    if arguments.join:
        join(arguments.join, arguments.out)
    elif arguments.workers > 1:
        run_workers(arguments)
    else:
        measure(walk_of(arguments), arguments.seconds, arguments.memory, arguments.out)


if __name__ == "__main__":
    main()

"""Measures what recurrent layers allocate on a GPU: every block that cuDNN's layers take and give back.

Cases are drawn from a wide distribution with a fixed seed: RNN, LSTM (with and without projections) and GRU; one to
four layers, one or two directions, dropout, packed sequences, three dtypes, training and inference. Forward and
backward run twice, and the second call counts: the first one also allocates what the process keeps.

The result holds for each case its settings and two streams of whole numbers, forward and backward: ``n`` > 0 is a
block of n bytes, ``-k`` returns the stream's k-th block, and ``0`` returns a block of an earlier stream.

Usage: python bench/estimate/recurrent_buffers.py --out FILE [--cases 700] [--seconds 60] [--seed 1]
           [--hidden 128,160,192] [--dtypes bfloat16,float16]    # only these are drawn
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

KINDS = {"relu": nn.RNN, "tanh": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
MOST_NUMBERS = 120_000_000
HIDDEN = (8, 20, 32, 50, 64, 96, 100, 128, 200, 256, 320, 384, 512, 640, 650, 1024)
DTYPES = {"float32": 55, "bfloat16": 25, "float16": 20}


def draw(dice: random.Random, hidden_sizes: Sequence[int], dtypes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of one case."""
    kind = dice.choices(list(KINDS), (5, 5, 50, 40))[0]
    hidden = dice.choice(hidden_sizes)
    return {
        "kind": kind,
        "dtype": dice.choices(dtypes, [DTYPES[name] for name in dtypes])[0],
        "length": dice.choice((1, 2, 5, 16, 24, 40, 64, 100, 150, 300)),
        "batch": dice.choice((1, 2, 3, 8, 16, 20, 24, 32, 40, 64, 100, 128, 250)),
        "inputs": dice.choice((8, 40, 64, 80, 96, 120, 256, 300, 512)),
        "hidden": hidden,
        "layers": dice.choices((1, 2, 3, 4), (40, 35, 15, 10))[0],
        "projection": dice.choice((hidden // 4, hidden // 2, 16)) if kind == "lstm" and dice.random() < 0.2 else 0,
        "bidirectional": dice.random() < 0.4,
        "dropout": dice.choice((0.0, 0.0, 0.1)),
        "bias": dice.random() < 0.9,
        "packed": dice.random() < 0.15,
        "batch_first": dice.random() < 0.3,
        "training": dice.random() < 0.85,
    }


def of_trainings() -> list[dict[str, Any]]:
    """Return the layers of the trainings in bench/lib that estimates are made for."""
    plain = {"projection": 0, "bidirectional": False, "dropout": 0.0, "bias": True, "packed": False, "training": True}
    language = {**plain, "kind": "lstm", "length": 64, "batch": 32, "inputs": 512, "hidden": 1024, "layers": 2}
    speech = {**plain, "kind": "gru", "length": 128, "batch": 64, "inputs": 256, "hidden": 512, "layers": 2}
    speech.update(bidirectional=True, dropout=0.2)
    return [
        {**layer, "dtype": dtype, "batch_first": True}
        for layer in (language, speech)
        for dtype in ("float32", "bfloat16")
    ]


def is_reasonable(case: dict[str, Any]) -> bool:
    """Return whether a case is small enough to run quickly."""
    projected = case["projection"] < case["hidden"]
    numbers = case["length"] * case["batch"] * case["hidden"] * case["layers"] * (1 + case["bidirectional"])
    return projected and numbers * (4 if case["kind"] == "lstm" else 3) < MOST_NUMBERS


def stream(events: list[dict[str, Any]]) -> list[int]:
    """Return the events of the allocator as blocks taken and given back."""
    blocks: dict[int, int] = {}
    made: list[int] = []
    taken = 0
    for event in events:
        if event["action"] == "alloc":
            taken += 1
            blocks[event["addr"]] = taken
            made.append(event["size"])
        elif event["action"] == "free_requested":
            made.append(-blocks.pop(event["addr"], 0))
    return made


def events() -> list[dict[str, Any]]:
    """Return what the allocator recorded so far."""
    torch.cuda.synchronize()
    traces = torch.cuda.memory._snapshot()["device_traces"]
    return [event for trace in traces for event in trace]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case and return its streams."""
    dtype = getattr(torch, case["dtype"])
    how: dict[str, Any] = {"nonlinearity": case["kind"]} if case["kind"] in ("relu", "tanh") else {}
    if case["projection"]:
        how["proj_size"] = case["projection"]
    layer = KINDS[case["kind"]](
        case["inputs"], case["hidden"], case["layers"], bias=case["bias"], batch_first=case["batch_first"],
        dropout=case["dropout"] if case["layers"] > 1 else 0.0, bidirectional=case["bidirectional"], **how,
    ).to("cuda", dtype)  # fmt: skip
    layer.train(case["training"])
    rows = (case["batch"], case["length"]) if case["batch_first"] else (case["length"], case["batch"])
    data: Any = torch.randn(*rows, case["inputs"], device="cuda", dtype=dtype, requires_grad=True)
    lengths = torch.linspace(case["length"], max(case["length"] // 2, 1), case["batch"]).long()
    result: dict[str, Any] = {}
    for turn in range(2):
        given = data
        if case["packed"]:
            given = nn.utils.rnn.pack_padded_sequence(data, lengths, batch_first=case["batch_first"])
            result["sizes"] = given.batch_sizes.tolist()
        torch.cuda.memory._record_memory_history(max_entries=10_000, context=None)
        with torch.set_grad_enabled(case["training"]):
            output = layer(given)[0]
        result["forward"] = forward = events()
        if case["training"]:
            output = output.data if case["packed"] else output
            output.backward(torch.ones_like(output))
            result["backward"] = events()[len(forward) :]
        torch.cuda.memory._record_memory_history(enabled=None)
        layer.zero_grad(set_to_none=True)
        del output, turn
    return {name: stream(found) if name in ("forward", "backward") else found for name, found in result.items()}


def main() -> None:
    """Measure until the cases or the seconds are used up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=700)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=lambda text: [int(one) for one in text.split(",")], default=HIDDEN)
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(DTYPES))
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    ends_s = time.monotonic() + arguments.seconds
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "seed": arguments.seed, "cases": []}
    waiting = of_trainings() if arguments.hidden is HIDDEN else []
    while len(results["cases"]) < arguments.cases and time.monotonic() < ends_s:
        case = waiting.pop() if waiting else draw(dice, arguments.hidden, arguments.dtypes)
        if not is_reasonable(case):
            continue
        try:
            results["cases"].append({**case, **measure(case)})
        except RuntimeError as error:
            results["cases"].append({**case, "error": str(error)[:200]})
    write_results(arguments.out, results)
    print(len(results["cases"]), "cases,", sum("error" in case for case in results["cases"]), "errors")


if __name__ == "__main__":
    main()

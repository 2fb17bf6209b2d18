"""VGG-19's forward with one convolution algorithm, again and again: for a watcher to see, or for its own figures.

Weights and images are random with a fixed seed, TF32 is off. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from convolutions import ALGORITHMS, MODES
from measure import measure, time_log_lines, use_exact_float32
from network import VGG19, VGG19_WIDTH


def read_arguments() -> argparse.Namespace:
    """Return the options; an unknown algorithm is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--mode", choices=MODES, default="batched", help="the whole batch at once, or image by image")
    parser.add_argument("--batch", type=positive, default=1, help="images of a forward")
    parser.add_argument("--repeat", type=positive, default=3, help="timed forwards at the least")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long at the least")
    parser.add_argument("--device", default="auto", help="auto is cuda where there is one, else cpu")
    parser.add_argument("--size", type=at_least_32, default=256, help="height and width of the images")
    parser.add_argument("--width", type=positive, default=VGG19_WIDTH, help="channels of the first block")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write times and bytes of each layer; - is stdout")
    parser.add_argument("--log", metavar="FILE", type=Path, help="append ALGORITHM, BATCH, KIND, ms of each layer…")
    return parser.parse_args()


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return number


def at_least_32(text: str) -> int:
    """Return a size that is still one pixel after the network's five poolings."""
    if (number := int(text)) < 32:
        raise argparse.ArgumentTypeError(f"{text} is less than 32, and the network halves the image five times")
    return number


def choose_device(name: str) -> torch.device:
    """Return the device asked for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def summarize(result: dict[str, Any]) -> str:
    """Return the result in one line."""
    peak = "" if result["peak_bytes"] is None else f", peak {result['peak_bytes'] / 2**20:,.1f} MiB allocated"
    forwards = "1 forward" if result["forwards"] == 1 else f"{result['forwards']} forwards"
    return (
        f"{result['algorithm']}, batch {result['batch']}, {result['mode']}: {forwards}, "
        f"{result['forward_ms']:.2f} ms each, convolutions {result['total_ms']:.2f} ms "
        f"(product {result['conv_ms']:.2f}, overhead {result['overhead_ms']:.2f}){peak}"
    )


def main() -> None:
    """Run the forwards, print one line and write the figures where asked."""
    asked = read_arguments()
    use_exact_float32()
    network = VGG19(choose_device(asked.device), asked.width)
    images = network.make_images(asked.batch, asked.size)
    with torch.inference_mode():
        result = measure(network, images, asked.algorithm, asked.mode, asked.repeat, asked.seconds, float("inf"))
    print(summarize(result), file=sys.stderr if asked.json == Path("-") else sys.stdout)
    if asked.log:
        with asked.log.open("a", encoding="utf-8") as log:
            log.write(time_log_lines(result))
    if asked.json:
        about = {"device": str(images.device), "torch": torch.__version__, "size": asked.size, "width": asked.width}
        text = json.dumps({**about, "weights_bytes": network.weights_bytes, **result}, indent=1) + "\n"
        sys.stdout.write(text) if asked.json == Path("-") else asked.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

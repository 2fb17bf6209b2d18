"""Draws convolutions of one kind: sets of bench/estimate/conv_workspaces.py, by the name of the kind.

Each set is drawn from a wide distribution around what published networks have, without regard to any one of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from gpuledger.simulate.convolutions.convolution_rows import FIRST, LAST, Row

Draw = Callable[[random.Random], Row]
_WIDTHS = (8, 16, 16, 24, 32, 32, 40, 48, 64, 64, 80, 96, 128, 128, 160, 192, 256, 256, 320, 384, 512, 512, 768, 1024)
_FEW = (1, 1, 2, 3, 3, 4, 5, 6, 9, 12, 19, 21)
_SIDES = (
    4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 19, 20, 24, 28, 32, 33, 36, 40, 48, 49, 56, 64, 65, 72, 80, 96, 97,
    112, 128, 129, 144, 160, 192, 224, 256, 257, 320, 384, 512,
)  # fmt: skip
_LENGTHS = (
    50, 100, 128, 196, 256, 400, 500, 512, 750, 1000, 1024, 1500, 2000, 3000, 4000, 8000, 16000, 22050, 64000,
)  # fmt: skip
_KERNEL_AND_STRIDE = (
    (2, 2), (2, 2), (3, 2), (3, 2), (3, 1), (4, 2), (4, 2), (4, 4), (5, 2), (6, 2), (7, 2), (7, 1), (8, 4), (8, 8),
    (16, 8), (5, 3),
)  # fmt: skip
_BATCHES = (1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32, 64)


def _row(
    dice: random.Random, sizes: Sequence[int], kernel: Sequence[int], batch: int, channels: int, made: int,
    groups: int = 1, stride: Sequence[int] = (), dilation: Sequence[int] = (), transposed: bool = False,
) -> Row:  # fmt: skip
    """Return a row; its padding, type, format, bias and wanted gradients are drawn."""
    dims = len(sizes)
    steps, far = stride or [1] * dims, dilation or [1] * dims
    same = dice.random() < 0.85 and list(steps) != list(kernel)
    padding = [step * (size - 1) // 2 if same else 0 for size, step in zip(kernel, far, strict=True)]
    grow = [transposed and step > 1 and size > 2 for step, size in zip(steps, kernel, strict=True)]
    more = [int(one and dice.random() < 0.5) for one in grow]
    layout = dice.choices((FIRST, LAST), (78, 22))[0] if dims > 1 else FIRST
    weight = (channels, made // groups) if transposed else (made, channels // groups)
    filler = [0] * (3 - dims)
    triples = (n for one in (steps, padding, far, more) for n in (*one, *filler))
    return (
        dims, int(transposed), dice.choices((0, 1, 2), (50, 20, 30))[0], batch, channels, *sizes, *filler, *weight,
        *kernel, *filler, *triples, groups, layout, layout, int(dice.random() < 0.4), layout,
        int(dice.random() < 0.95),
    )  # fmt: skip


def _between(dice: random.Random, least: int, most: int) -> int:
    """Return a number whose logarithm is uniform."""
    return round(math.exp(dice.uniform(math.log(least), math.log(most))))


def _width(dice: random.Random, few_frac: float = 0.1) -> int:
    kind = dice.random()
    if kind < few_frac:
        return dice.choice(_FEW)
    return dice.choice(_WIDTHS) if kind < 0.8 else max(8, _between(dice, 8, 640) // 4 * 4)


def _grouped(dice: random.Random) -> tuple[int, int, int]:
    """Return the channels before and after a grouped convolution, and its groups; half of them are depthwise."""
    if dice.random() < 0.5:
        channels = _width(dice, 0.0)
        return channels, channels * dice.choice((1, 1, 1, 2)), channels
    groups = dice.choice((2, 2, 3, 4, 4, 6, 8, 8, 16, 32, 64, 128, 256))
    each = dice.choice((1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64, 128))
    return groups * each, groups * dice.choice((each, each, each, 2 * each, max(each // 2, 1))), groups


def draw_volumes(dice: random.Random) -> Row:
    """Return a convolution over volumes or videos: kernels of all shapes, strides and dilations by axis."""
    k = dice.choices((3, 5, 7, 2, 4), (48, 24, 14, 9, 5))[0]
    shapes = ([k, k, k], [1, k, k], [k, 1, 1], [3, k, k], [k, k, 1], [5, k, k])
    kernel = dice.choices(shapes, (52, 18, 12, 10, 4, 4))[0]
    patches = k in (2, 4) and dice.random() < 0.7
    steps = ([1, 1, 1], [2, 2, 2], [1, 2, 2], [2, 1, 1], [3, 3, 3])
    stride = kernel if patches else dice.choices(steps, (68, 15, 10, 5, 2))[0]
    far = dice.choice((2, 2, 3, 4, 6)) if not patches and max(stride) == 1 and dice.random() < 0.12 else 1
    dilation = [far if size > 1 and (far == 1 or dice.random() < 0.85) else 1 for size in kernel]
    transposed = max(stride) > 1 and dice.random() < 0.4
    channels, made, groups = _grouped(dice) if dice.random() < 0.14 else (_width(dice, 0.14), _width(dice, 0.14), 1)
    side = min(dice.choice(_SIDES), 192)
    sizes = [side] * 3 if dice.random() < 0.5 else [dice.choice((3, 4, 5, 6, 8, 10, 13, 16, 24, 32, 64)), side, side]
    if dice.random() < 0.2:
        sizes[-1] = min(dice.choice(_SIDES), 192)
    return _row(dice, sizes, kernel, dice.choice(_BATCHES), channels, made, groups, stride, dilation, transposed)


def draw_groups(dice: random.Random) -> Row:
    """Return a grouped convolution; half of them have one group for each image of what was a batch."""
    dims = dice.choices((2, 1, 3), (86, 8, 6))[0]
    of_images = dice.random() < 0.5
    transposed = dice.random() < (0.35 if of_images else 0.12)
    k = dice.choices((1, 3, 5, 7, 2, 4), (22, 52, 10, 5, 4, 7))[0]
    step = dice.choice((1, 2, 2, 2)) if transposed else dice.choices((1, 2, 3), (82, 16, 2))[0]
    far = dice.choice((2, 4, 8)) if step == 1 and dice.random() < 0.08 else 1
    if of_images:
        groups = dice.choice((2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 20, 24, 32, 32, 48, 64, 96, 128, 256))
        channels = groups * _width(dice, 0.12)
        made = channels if dice.random() < 0.4 else groups * _width(dice, 0.12)
        batch = dice.choices((1, 2, 4), (90, 6, 4))[0]
    else:
        channels, made, groups = _grouped(dice)
        batch = dice.choice((*_BATCHES, 32, 64, 96, 128, 256))
    sizes = [dice.choice(_SIDES) if dims > 1 else _between(dice, 30, 20000)] * dims
    if dims == 3:
        sizes = [min(side, 64) for side in sizes]
    elif dims == 2 and dice.random() < 0.2:
        sizes[1] = dice.choice(_SIDES)
    return _row(dice, sizes, [k] * dims, batch, channels, made, groups, [step] * dims, [far] * dims, transposed)


def draw_usual_groups(dice: random.Random) -> Row:
    """Return a grouped convolution over images as networks have them, with widths that computers like."""
    side = dice.choice((4, 7, 8, 14, 16, 20, 28, 32, 40, 50, 56, 64, 80, 100, 112, 128, 256))
    k = dice.choices((1, 3, 5, 7), (24, 58, 13, 5))[0]
    if dice.random() < 0.6:  # one group for each image
        groups = dice.choice((2, 4, 6, 8, 8, 10, 12, 16, 16, 20, 24, 28, 32, 32, 48, 64))
        each = dice.choice(_WIDTHS)
        after = dice.choice((each, each, each, 2 * each, max(each // 2, 8)))
        batch, is_up = 1, k > 1 and dice.random() < 0.25
        step = 2 if is_up else dice.choice((1, 1, 1, 2))
        return _row(dice, [side, side], [k, k], batch, groups * each, groups * after, groups, [step, step], (), is_up)
    groups = dice.choice((2, 4, 8, 16, 32, 32, 64))
    each = dice.choice((2, 4, 4, 8, 8, 16, 16, 24, 32, 40, 48, 56, 64))
    batch, step = dice.choice((4, 8, 16, 24, 32, 32, 48, 64, 96, 128)), dice.choice((1, 1, 1, 2))
    return _row(dice, [side, side], [k, k], batch, groups * each, groups * each, groups, [step, step])


def draw_lines(dice: random.Random) -> Row:
    """Return a convolution over sounds or sequences: short to very long kernels, dilations, groups and transposes."""
    k = dice.choice((1, 1, 2, 3, 3, 3, 5, 5, 7, 8, 9, 11, 15, 16, 25, 31, 41, 63, 80, 127, 128, 251, 400, 512, 1024))
    transposed = k > 1 and dice.random() < 0.15
    if transposed:
        step = max(k // 2, 1) if dice.random() < 0.7 else 2
    else:
        step = dice.choices((1, 2, 4, max(k // 2, 1)), (76, 12, 5, 7))[0]
    far = 2 ** dice.randint(1, 9) if 1 < k < 16 and step == 1 and dice.random() < 0.4 else 1
    channels, made, groups = _grouped(dice) if dice.random() < 0.2 else (_width(dice, 0.15), _width(dice, 0.1), 1)
    length = dice.choice(_LENGTHS)
    batch = dice.choice((*_BATCHES, 32, 64, 128))
    return _row(dice, [length], [k], batch, channels, made, groups, [step], [far], transposed)


def draw_transposed(dice: random.Random) -> Row:
    """Return a transposed convolution over images."""
    k, step = dice.choice(_KERNEL_AND_STRIDE)
    channels, made, groups = _grouped(dice) if dice.random() < 0.12 else (_width(dice, 0.04), _width(dice, 0.2), 1)
    side = dice.choice(_SIDES)
    sizes = [side, side if dice.random() < 0.75 else dice.choice(_SIDES)]
    return _row(dice, sizes, [k, k], dice.choice(_BATCHES), channels, made, groups, [step, step], (), True)


def draw_images(dice: random.Random) -> Row:
    """Return a convolution over images: sizes, kernels, strides and dilations that may differ by axis."""
    k = dice.choices((1, 3, 5, 7, 2, 4, 9, 11, 15, 21, 31), (22, 40, 10, 7, 3, 6, 3, 3, 2, 2, 2))[0]
    kernel = dice.choices(([k, k], [1, k], [k, 1], [3, k]), (74, 9, 9, 8))[0]
    stride = dice.choices(([1, 1], [2, 2], [1, 2], [2, 1], [4, 4], [3, 3]), (66, 22, 4, 4, 3, 1))[0]
    far = max(stride) == 1 and dice.random() < 0.15
    dilation = [dice.choice((2, 2, 4, 6, 12, 18, 24)) if far else 1] * 2
    channels, made, groups = _grouped(dice) if dice.random() < 0.1 else (_width(dice, 0.12), _width(dice, 0.12), 1)
    side = dice.choice(_SIDES)
    sizes = [side, side if dice.random() < 0.6 else dice.choice(_SIDES)]
    batch = dice.choice((*_BATCHES, 20, 40, 48, 96, 128))
    return _row(dice, sizes, kernel, batch, channels, made, groups, stride, dilation)


SETS: dict[str, dict[Draw, int]] = {
    "volumes": {draw_volumes: 1},
    "groups": {draw_groups: 1},
    "lines": {draw_lines: 1},
    "transposed": {draw_transposed: 1},
    "images": {draw_images: 1},
    "rare": {draw_usual_groups: 45, draw_groups: 20, draw_volumes: 22, draw_lines: 13},
    "nets": {draw_volumes: 35, draw_groups: 25, draw_lines: 12, draw_transposed: 11, draw_images: 17},
}
"""Name of a set -> how to draw a convolution of it -> how often."""

"""What convolutions hold, against what an H200's allocator gave out inside them (bench/estimate/conv_workspaces.py)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_example import Load, example_modules
from folders import DATA

torch = pytest.importorskip("torch")
import gpuledger  # noqa: E402
from gpuledger.simulate.convolutions import convolution_guess as guess  # noqa: E402
from gpuledger.simulate.convolutions.convolution_rows import PLACE  # noqa: E402
from gpuledger.simulate.convolutions.convolution_terms import FORWARD, describe, key_of, sums, twin_of  # noqa: E402
from gpuledger.simulate.convolutions.convolutions import Held, backward_held, forward_held  # noqa: E402

pytestmark = pytest.mark.torch
MEASURED = DATA / "h200" / "conv_workspaces.npz"
MEASURED_3D = DATA / "h200" / "conv_workspaces_3d.npz"
MEASURED_NETS = DATA / "h200" / "conv_workspaces_nets.npz"


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with example_modules() as load_module:
        yield load_module


@pytest.fixture(scope="module")
def cases(load: Load) -> list[Any]:
    return load("conv_workspaces").read(MEASURED)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def copies(load: Load) -> Any:
    return load("conv_copies")


def test_measured_shapes_hold_the_same_blocks_in_the_same_order(copies: Any, cases: list[Any]) -> None:
    dice = random.Random(4)
    chosen = dice.sample([case for case in cases if case.source.startswith(("model", "grid"))], 200)
    known = [case for case in chosen if guess.measured_bytes(key_of(case.row), 2) is not None]
    assert len(known) > 190
    for case in known:
        forward, backward, made = copies.held_in(case.row)
        assert all(workspace.measured for workspace in (*forward.workspaces, *backward.workspaces)), case.row
        assert copies.stream_of(forward, [True]) == copies.recorded(case.streams[0]), case.row
        assert copies.stream_of(backward, made) == copies.recorded(case.streams[1]), case.row


@pytest.mark.parametrize("place", [MEASURED, MEASURED_3D], ids=lambda place: place.stem)
def test_copies_and_sums_are_right_for_any_shape(copies: Any, load: Load, place: Path) -> None:
    """Where cuDNN's workspaces are taken out, what is left is torch's, and equal to the byte."""
    drawn = [case for case in load("conv_workspaces").read(place)[0] if case.source == "drawn"]
    for case in random.Random(5).sample(drawn, 150):
        assert copies.agrees(case), case.row


OWN_3D = [64, 4, 8, 8, 64, 1, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 64]
HALF = [64, 32, 32, 0, 64, 1, 3, 3, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 64]
HALF_OF_TORCH = [64, 32, 32, 0, 64, 1, 7, 7, 0, 1, 1, 0, 3, 3, 0, 1, 1, 0, 0, 0, 0, 64]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ((3, 0, 2, 89, *OWN_3D, 0, 0, 1, 2, 1), "result result copy result"),
        ((3, 0, 2, 89, *OWN_3D, 0, 0, 0, 2, 0), "result copy"),
        ((2, 0, 1, 32, *HALF, 0, 0, 0, 2, 1), "result copy copy result"),
        ((2, 0, 1, 32, *HALF_OF_TORCH, 0, 0, 0, 2, 1), "copy result result"),
        ((2, 0, 2, 32, *HALF, 0, 0, 0, 2, 1), "copy result result"),
    ],
    ids=["three dimensions", "of the weight alone", "of cuDNN", "a kernel of torch", "bfloat16"],
)
def test_a_depthwise_gradient_is_copied_where_the_kernel_needs_it(
    copies: Any, row: tuple[int, ...], wanted: str
) -> None:
    _, backward, made = copies.held_in(row)
    found = copies.stream_of(backward, made, workspaces=False)
    assert " ".join("copy" if size_bytes else "result" for size_bytes in found) == wanted
    if "result copy copy" not in wanted:
        assert {workspace.size_bytes for workspace in backward.workspaces} == {0}


def test_other_shapes_are_near(copies: Any, cases: list[Any]) -> None:
    """The trainings that estimates are judged by had no part in the trees."""
    judges = [case for case in cases if case.source.startswith("held out") and case.row[PLACE["transposed"]] == 0]
    off = whole = 0.0
    for case in judges:
        key = key_of(case.row)
        assert guess.measured_bytes(key, 0) is None
        described = describe(key)
        found = copies.recorded(case.streams[0])
        off += abs(guess.guess_bytes(key, 0) - sum(found[found.index(0) :]))
        whole += float((described["X"] + described["Y"])[0])
    assert len(judges) > 100
    assert off / whole < 0.15


def test_shapes_with_three_dimensions_have_trees_of_their_own(copies: Any, load: Load) -> None:
    """The trees were fitted to these shapes. With the trees for fewer dimensions, they are off by a fifth."""
    cases = random.Random(6).sample(load("conv_workspaces").read(MEASURED_3D)[0], 300)
    assert {case.row[PLACE["dims"]] for case in cases} == {3}
    keys = [key_of(case.row) for case in cases if not case.row[PLACE["transposed"]]]
    sizes = [copies.recorded(case.streams[0]) for case in cases if not case.row[PLACE["transposed"]]]
    held = [sum(found[found.index(0) :]) for found in sizes]
    off = sum(abs(guessed - size) for guessed, size in zip(guess.guess_many(keys, 0), held, strict=True))
    described = describe(keys)
    assert off / float((described["X"] + described["Y"]).sum()) < 0.08


def forwards_with_groups(copies: Any, load: Load) -> tuple[list[Any], list[int]]:
    """Return keys and measured workspaces of forwards with groups of several channels and data in channels first."""
    cases = [case for case in load("conv_workspaces").read(MEASURED_NETS)[0] if not case.row[PLACE["transposed"]]]
    keys = [key_of(case.row) for case in cases]
    wanted = [place for place, kind in enumerate(guess.kinds_of(keys)) if kind == guess.GROUPED and not keys[place][-1]]
    held = [copies.recorded(cases[place].streams[0]) for place in wanted]
    return [keys[place] for place in wanted], [sum(found[found.index(0) :]) for found in held]


def test_cudnn_converts_eight_groups_at_a_time(copies: Any, load: Load) -> None:
    """Of grouped convolutions with a workspace, a third has that of eight groups. Those have wide groups."""
    keys, held = forwards_with_groups(copies, load)
    described = describe(keys)
    said = {name: values for name, values in sums(described, FORWARD).items() if "/g" in name}
    scale = described["X"] + described["Y"]
    wide = (described["groups"] > 8) & (described["large_each"] >= 64) & (np.array(held) > 0)
    exact = [np.abs(values - held) < 1e-3 * scale for values in said.values()]
    assert wide.sum() > 40
    assert np.any(exact, axis=0)[wide].mean() > 1 / 3


def test_shapes_with_groups_have_trees_of_their_own(copies: Any, load: Load) -> None:
    """The trees were fitted to these shapes. Those without groups of several channels were off by half."""
    keys, held = forwards_with_groups(copies, load)
    off = sum(abs(guessed - size) for guessed, size in zip(guess.guess_many(keys, FORWARD), held, strict=True))
    described = describe(keys)
    assert len(keys) > 500
    assert off / float((described["X"] + described["Y"]).sum()) < 0.2


def test_the_kind_of_a_shape_is_that_of_its_groups_and_dimensions() -> None:
    flat = (2, 0, 0, 24, 40, 28, 28, 0, 40, 40, 3, 3, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0)
    channels, groups, weight = PLACE["channels"], PLACE["groups"], PLACE["weight1"]
    assert channels == 4
    depthwise = (*flat[:weight], 1, *flat[weight + 1 : groups], 40, 0)
    grouped = (*flat[:weight], 10, *flat[weight + 1 : groups], 4, 0)
    widened = (*flat[:8], 80, 1, *flat[weight + 1 : groups], 40, 0)
    up = (2, 1, *depthwise[2:weight], 2, *depthwise[weight + 1 :])
    volume = (3, *flat[1:7], 8, *flat[8:])
    kinds = guess.kinds_of([flat, depthwise, grouped, widened, up, volume]).tolist()
    assert kinds == ["flat", "flat", "grouped", "grouped", "grouped", "volume"]


def test_shapes_of_several_kinds_are_guessed_together() -> None:
    flat = (2, 0, 0, 24, 40, 28, 28, 0, 40, 40, 3, 3, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0)
    volume = (3, 0, 0, 4, 40, 28, 28, 8, 40, 40, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0)
    keys = [volume, flat, volume, flat]
    assert guess.guess_many(keys, 2) == [guess.guess_bytes(key, 2) for key in keys]
    assert guess.guess_many([], 2) == []


def test_a_half_that_was_not_measured_has_its_twins_bytes() -> None:
    row = (2, 0, 1, 24, 448, 28, 28, 0, 448, 448, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1)
    key = key_of(row)
    assert twin_of(twin_of(key)) == key
    float_key = key_of((*row[:2], 0, *row[3:]))
    assert twin_of(float_key) == float_key
    seen = 0
    for batch in range(1, 257):
        one = key_of((*row[:3], batch, *row[4:]))
        if guess.measured_bytes(one, 0) is None and (twin_bytes := guess.measured_bytes(twin_of(one), 0)) is not None:
            assert guess.workspace_of(one, 0) == guess.Workspace(twin_bytes, False)
            seen += 1
    assert seen


def test_a_twin_with_other_padding_tells_nothing() -> None:
    """A first layer in channels last, from a recording on an H200: 3 channels are padded to 4, and to 8 in bfloat16."""
    row = (2, 0, 1, 128, 3, 224, 224, 0, 64, 3, 7, 7, 0, 2, 2, 0, 3, 3, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0)
    key, recorded_bytes = key_of(row), 51_405_328
    twin_bytes = guess.measured_bytes(twin_of(key), 0)
    assert twin_bytes is not None
    assert twin_bytes > 1.9 * recorded_bytes
    for found in (guess.workspace_of(key, 0), *guess.workspaces_of([key], 0)):
        assert found == guess.Workspace(found.size_bytes, False)
        assert found.size_bytes == pytest.approx(recorded_bytes, rel=0.001)


def test_formats_are_told_apart() -> None:
    row = (2, 0, 0, 8, 64, 28, 28, 0, 64, 64, 3, 3, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1)
    last = (*row[: PLACE["data_format"]], 1, *row[PLACE["data_format"] + 1 :])
    assert key_of(last) != key_of(row)


def test_a_type_that_was_not_measured_holds_nothing() -> None:
    data, weight = (torch.empty(shape, dtype=torch.float64, device="meta") for shape in ((2, 4, 8, 8), (8, 4, 3, 3)))
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert forward_held((data, weight, None, *rest)) == Held(beside=((),))
    gradient = torch.empty(2, 8, 8, 8, dtype=torch.float64, device="meta")
    assert not any(backward_held((gradient, data, weight, None, *rest, [True] * 3)).beside)


@pytest.mark.parametrize(("card", "borrowed"), [("h200", False), ("b200", True)])
def test_it_is_said_how_many_shapes_were_measured(card: str, borrowed: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.Conv2d(64, 61, 3))
    found = gpuledger.estimate(lambda images: model(images).sum().backward(), torch.zeros(32, 3, 224, 224), gpu=card)
    said = [note for note in found.notes if note.startswith("Convolutions:")]
    assert len(said) == 1
    assert "cuDNN's workspaces of 1 of 2 shapes were measured" in said[0]
    assert ("both are applied" in said[0]) is borrowed


def test_it_is_said_that_trying_algorithms_is_not_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    model = torch.nn.Conv2d(3, 8, 3)
    found = gpuledger.estimate(lambda images: model(images).sum().backward(), torch.zeros(2, 3, 16, 16))
    assert [note for note in found.notes if "cudnn.benchmark" in note]

"""The parent's readings of the GPUs: which are kept, where they go, and whose they become."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from gpuledger.analyze.posting.card_samples import post_card_samples
from gpuledger.cards.card import BareCard, MemoryReading, Processes
from gpuledger.collect.sampling import sampler as samplers
from gpuledger.collect.sampling.sampler import CardSampler
from gpuledger.model.journal.reading import read_journal
from gpuledger.model.manifest import read_rank_manifest
from gpuledger.model.run import Rank
from gpuledger.model.run_directory import SAMPLE_JOURNALS, write_json

GIB = 1 << 30


class FakeCards:
    """Two GPUs whose bytes and processes a test sets."""

    def __init__(self) -> None:
        self.used_bytes: dict[str, int | None] = {"GPU-a": GIB, "GPU-b": GIB}
        self.processes: dict[str, Processes | None] = {"GPU-a": [(7, 5)], "GPU-b": None}

    def all(self) -> list[FakeCard]:
        return [FakeCard(uuid, self) for uuid in self.used_bytes]


class FakeCard(BareCard):
    """One of them."""

    def __init__(self, uuid: str, cards: FakeCards) -> None:
        super().__init__(0, "Fake", uuid)
        self._cards = cards

    def read_memory(self) -> MemoryReading | None:
        used = self._cards.used_bytes[self.uuid]
        return None if used is None else MemoryReading(used, None, 80 * GIB)

    def read_processes(self) -> Processes | None:
        return self._cards.processes[self.uuid]


@pytest.fixture
def cards() -> FakeCards:
    return FakeCards()


def make(cards: FakeCards, run: Path) -> CardSampler:
    ticks = itertools.count(1_000)
    return CardSampler(cards.all(), run / SAMPLE_JOURNALS, clock=lambda: next(ticks))


def rank_with(run: Path, number: int, devices: dict[str, int]) -> Rank:
    """Return a posted rank that has these GPUs, by UUID."""
    directory = run / f"rank-{number}"
    directory.mkdir(parents=True)
    described = [{"uuid": uuid, "device_idx": device_idx} for uuid, device_idx in devices.items()]
    write_json(directory / "manifest.json", {"schema_version": 1, "devices": [*described, {"device_idx": -1}]})
    return Rank(number, directory, read_rank_manifest(directory))


def test_a_card_is_read_from_the_moment_it_changes(cards: FakeCards, tmp_path: Path) -> None:
    sampler = make(cards, tmp_path)
    sampler.read()
    cards.used_bytes["GPU-b"] = 2 * GIB
    sampler.read()
    cards.used_bytes["GPU-b"] = GIB
    sampler.read()
    cards.processes["GPU-a"] = [(7, 5), (9, None)]
    sampler.read()
    sampler.write()
    journal = read_journal(tmp_path / SAMPLE_JOURNALS / "00000")
    assert journal.tables["samples"]["device_idx"].tolist() == [1, 1, 0, 1]
    assert journal.tables["samples"]["used_bytes"].tolist() == [2 * GIB, GIB, GIB, GIB]
    assert journal.tables["process_samples"]["pid"].tolist() == [7, 9]
    assert journal.facts["card_uuids"] == ["GPU-a", "GPU-b"]


def test_a_run_that_touches_no_card_writes_nothing(cards: FakeCards, tmp_path: Path) -> None:
    with make(cards, tmp_path) as sampler:
        sampler.start()
    assert not list(tmp_path.iterdir())


def test_each_rank_gets_its_own_cards_by_torchs_index(cards: FakeCards, tmp_path: Path) -> None:
    sampler = make(cards, tmp_path)
    cards.used_bytes = {"GPU-a": 3 * GIB, "GPU-b": 4 * GIB}
    sampler.read()
    sampler.write()
    ranks = [rank_with(tmp_path, 0, {"GPU-b": 0}), rank_with(tmp_path, 1, {"GPU-a": 1, "GPU-b": 0})]
    cpu = rank_with(tmp_path, 2, {})
    post_card_samples(tmp_path)
    post_card_samples(tmp_path)
    rows = [rank.table("samples", ("device_idx", "used_bytes", "driver_bytes")).to_pylist() for rank in ranks]
    first, second = rows
    assert first == [{"device_idx": 0, "used_bytes": 4 * GIB, "driver_bytes": None}]
    assert {row["device_idx"]: row["used_bytes"] for row in second} == {1: 3 * GIB, 0: 4 * GIB}
    assert ranks[0].table("process_samples").num_rows == 0
    assert ranks[1].table("process_samples", ("pid", "bytes")).to_pylist() == [{"pid": 7, "bytes": 5}]
    assert not (cpu.directory / "samples").exists()


def test_long_runs_are_written_in_parts(cards: FakeCards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "READINGS_IN_PART", 3)
    monkeypatch.setattr(samplers, "PARTS_IN_JOURNAL", 2)
    sampler = make(cards, tmp_path)
    cards.used_bytes["GPU-a"] = 0
    for _ in range(14):
        sampler.read()
    sampler.write()
    places = sorted(str(place.relative_to(tmp_path / SAMPLE_JOURNALS)) for place in tmp_path.rglob("*.npz"))
    expected = ["00000/00000.npz", "00000/00001.npz", "00001/00000.npz", "00001/00001.npz", "00002/00000.npz"]
    assert places == expected
    rank = rank_with(tmp_path, 0, {"GPU-a": 0})
    post_card_samples(tmp_path)
    times = rank.table("samples", ("t_ns",)).column("t_ns").to_numpy()
    assert times.size == 14
    assert np.all(np.diff(times) > 0)


def test_a_card_that_cannot_be_read_any_more(cards: FakeCards, tmp_path: Path) -> None:
    sampler = make(cards, tmp_path)
    cards.used_bytes["GPU-a"] = None
    sampler.read()
    sampler.write()
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_ends_the_readings_with_a_note(
    cards: FakeCards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "READINGS_IN_PART", 1)
    (tmp_path / "samples").write_text("a file where the directory should be")
    with make(cards, tmp_path) as sampler:
        cards.used_bytes["GPU-a"] = 5
        sampler.start()
        deadline = time.monotonic() + 600
        while sampler.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sampler.failure is not None
    assert sampler.failure.startswith("The samples of the GPUs stopped: ")

"""The calibration's cache and its arithmetic, with the figures of a real H200; the measurement itself needs a GPU."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.collect.sampling.calibrate import (
    Calibration,
    CardKey,
    OutsideGrowth,
    Profile,
    cache_path,
    libraries_for,
    load_profile,
    lookup_or_measure,
    measure,
    store_profile,
)
from gpuledger.errors import GpuLedgerError, InputError, NoDeviceError
from gpuledger.model.manifest import DeviceFacts, RankManifest

MIB = 1 << 20
KEY = CardKey("NVIDIA H200", "580.159", "2.11.0+cu130", "13.0", "LAZY")
H200 = Profile(
    KEY,
    "2026-11-21",
    (
        OutsideGrowth("context and first kernels", False, 610 * MIB),
        OutsideGrowth("matrix products", False, 676 * MIB),
        OutsideGrowth("attention", False, 692 * MIB),
        OutsideGrowth("backward pass", True, 758 * MIB),
        OutsideGrowth("optimizer", True, 758 * MIB),
    ),
)
MANIFEST = RankManifest(
    schema_version=1,
    torch_version="2.11.0+cu130",
    cuda_version="13.0",
    devices=(DeviceFacts(device_idx=0, name="NVIDIA H200", uuid="GPU-1", driver_version="580.159"),),
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "gpuledger" / "calibration.json"


def test_training_holds_a_second_handle_that_inference_does_not() -> None:
    assert H200.context_bytes == 610 * MIB
    assert H200.library_bytes(trained=True) == 148 * MIB
    assert H200.library_bytes(trained=False) == 82 * MIB


def test_increments_sum_to_everything_held() -> None:
    assert sum(added for _, added in H200.increments()) == H200.readings[-1].bytes
    assert H200.increments()[1] == ("matrix products", 66 * MIB)


def test_a_profile_survives_json() -> None:
    assert Profile.from_json(json.loads(json.dumps(H200.to_json()))) == H200


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {},
        {**H200.to_json(), "readings": []},
        {**H200.to_json(), "key": {"card": "NVIDIA H200"}},
        {**H200.to_json(), "readings": [{"name": "matrix products", "backward": False, "bytes": "many"}]},
        {**H200.to_json(), "readings": [{"name": "backward pass", "backward": True, "bytes": 1}]},
    ],
)
def test_what_is_no_profile_is_refused(broken: object) -> None:
    with pytest.raises(InputError, match="not a valid profile"):
        Profile.from_json(broken)


def test_measured_once_and_kept(cache: Path) -> None:
    asked: list[str] = []

    def fake(uuid: str) -> Profile:
        asked.append(uuid)
        return H200

    for _ in range(2):
        assert lookup_or_measure(KEY, "GPU-1", path=cache, measure_card=fake) == Calibration(H200)
    assert asked == ["GPU-1"]


@pytest.mark.parametrize("changed", ["card", "driver_version", "torch_version", "cuda_version", "module_loading"])
def test_a_profile_holds_for_its_own_versions_only(cache: Path, changed: str) -> None:
    store_profile(H200, cache)
    assert load_profile(replace(KEY, **{changed: "another"}), cache).profile is None
    assert load_profile(KEY, cache).profile == H200


def test_profiles_of_other_cards_stay(cache: Path) -> None:
    other = replace(H200, key=replace(KEY, card="NVIDIA A100"))
    store_profile(other, cache)
    store_profile(H200, cache)
    assert load_profile(other.key, cache).profile == other
    assert load_profile(KEY, cache).profile == H200


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"profile_version": 99}', b'{"profile_version": 1, "profiles": 3}']
)
def test_a_corrupt_cache_is_named_and_replaced(cache: Path, content: bytes) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    found = lookup_or_measure(KEY, "GPU-1", path=cache, measure_card=lambda _: H200)
    assert found.profile == H200
    assert len(found.notes) == 1
    assert "calibration.json: not usable" in found.notes[0]
    assert load_profile(KEY, cache) == Calibration(H200)


def test_a_damaged_profile_is_named_and_measured_again(cache: Path) -> None:
    store_profile(H200, cache)
    value = json.loads(cache.read_text())
    value["profiles"][str(KEY)]["readings"] = []
    cache.write_text(json.dumps(value))
    found = lookup_or_measure(KEY, "GPU-1", path=cache, measure_card=lambda _: H200)
    assert found.profile == H200
    assert "not a valid profile" in found.notes[0]


def test_an_interrupted_write_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_profile(H200, cache)
    before = cache.read_bytes()

    def break_off(*_: object, **__: object) -> None:
        raise OSError(28, "disk full")

    monkeypatch.setattr("gpuledger.files.writing.os.replace", break_off)
    found = lookup_or_measure(
        replace(KEY, card="NVIDIA A100"),
        "",
        path=cache,
        measure_card=lambda _: replace(H200, key=replace(KEY, card="NVIDIA A100")),
    )
    assert cache.read_bytes() == before
    assert found.profile is not None
    assert "not saved: [Errno 28] disk full" in found.notes[0]


def test_without_a_card_a_note_says_so(cache: Path) -> None:
    def no_card(uuid: str) -> Profile:
        raise NoDeviceError("calibration: PyTorch has no CUDA device here")

    found = lookup_or_measure(KEY, "", path=cache, measure_card=no_card)
    assert found == Calibration(
        None,
        ("CUDA context and libraries were not measured: calibration: PyTorch has no CUDA device here",),
    )
    assert not cache.exists()


def test_a_profile_of_another_environment_is_kept_but_not_applied(cache: Path) -> None:
    found = lookup_or_measure(replace(KEY, torch_version="2.13.0"), "", path=cache, measure_card=lambda _: H200)
    assert found.profile is None
    assert "torch 2.13.0" in found.notes[0]
    assert load_profile(KEY, cache).profile == H200


def test_the_manifest_entry_says_where_it_comes_from() -> None:
    entry, notes = libraries_for(MANIFEST, trained=True, lookup=lambda key, uuid: Calibration(H200))
    assert entry is not None
    assert (entry.context_bytes, entry.library_bytes) == (610 * MIB, 148 * MIB)
    assert entry.source == (
        "measured in a separate process (forward, backward and optimizer) on 2026-11-21: "
        "NVIDIA H200, driver 580.159, torch 2.11.0+cu130, CUDA 13.0"
    )
    assert notes == ()


def test_the_manifest_key_is_the_profile_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    asked: list[tuple[CardKey, str]] = []

    def lookup(key: CardKey, uuid: str) -> Calibration:
        asked.append((key, uuid))
        return Calibration(None, ("nothing",))

    assert libraries_for(MANIFEST, trained=False, lookup=lookup) == (None, ("nothing",))
    assert asked == [(KEY, "GPU-1")]


def test_cpu_tensors_have_no_context() -> None:
    def lookup(key: CardKey, uuid: str) -> Calibration:
        raise AssertionError("asked for a GPU where there is none")

    manifest = replace(MANIFEST, devices=(DeviceFacts(device_idx=-1, name="CPU tensors"),))
    assert libraries_for(manifest, trained=True, lookup=lookup) == (None, ())


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path) -> None:
    assert cache_path({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "gpuledger" / "calibration.json"
    home = Path.home() / ".cache" / "gpuledger" / "calibration.json"
    assert cache_path({}) == home
    assert cache_path({"XDG_CACHE_HOME": "relative"}) == home


OUTCOME = '"$(dirname "$4")/outcome.json"'
"""Where a child job leaves its outcome: beside its order."""
NO_CARD = {"kind": "NoDeviceError", "message": "calibration: PyTorch has no CUDA device here", "hint": None}


def _child_that_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Have ``measure`` start a stand-in for Python that runs a shell script."""
    place = tmp_path / "python"
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(place))


def test_the_child_measures_the_card_asked_for_and_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPULEDGER_RUN", "somewhere")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    (tmp_path / "profile").write_text(json.dumps({"outcome": H200.to_json()}))
    seen = tmp_path / "seen"
    _child_that_prints(monkeypatch, tmp_path, f"env > {seen}; echo from a library; cp {tmp_path / 'profile'} {OUTCOME}")
    assert measure("GPU-7") == H200
    environment = seen.read_text().splitlines()
    assert "CUDA_VISIBLE_DEVICES=GPU-7" in environment
    assert not [line for line in environment if line.startswith(("GPULEDGER_", "PYTORCH_CUDA_ALLOC_CONF"))]


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (f"echo '{json.dumps({'error': NO_CARD})}' > {OUTCOME}; exit 4", NoDeviceError, "no CUDA device"),
        ("echo 'RuntimeError: broken' >&2; exit 1", GpuLedgerError, "RuntimeError: broken"),
        ("exit 1", GpuLedgerError, "ended early, with status 1"),
        (f"echo nonsense > {OUTCOME}", GpuLedgerError, "ended early, with status 0"),
        (f"echo '{json.dumps({'outcome': {}})}' > {OUTCOME}", GpuLedgerError, "not a valid profile"),
    ],
)
def test_a_child_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, error: type[GpuLedgerError], message: str
) -> None:
    _child_that_prints(monkeypatch, tmp_path, script)
    with pytest.raises(error, match=message):
        measure()


@pytest.mark.torch
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a card")
@pytest.mark.usefixtures("quick_children")
def test_the_real_child_without_a_card() -> None:
    pytest.importorskip("torch")
    with pytest.raises(NoDeviceError, match="no CUDA device"):
        measure()

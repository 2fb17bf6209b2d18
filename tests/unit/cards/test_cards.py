"""Opening GPUs: which vendors are asked, how their GPUs are numbered, and what is said where one gives none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from present import present
from stubbed import with_stub

from gpuledger.cards import nvidia, opening, smi
from gpuledger.cards.card import BareCard, CardQuantity, torch_uuid
from gpuledger.cards.nvml import NvmlSource
from gpuledger.cards.opening import find_cards, has_driver, open_cards, survey_cards
from gpuledger.cards.vendor import CardList, LibraryMissingError, Source, Vendor
from gpuledger.errors import NoDeviceError

LIBRARY_NOT_FOUND = 12


def vendor(name: str, numbers: tuple[int, ...] = (0,), *, present: bool = True) -> Vendor:
    """Return a vendor whose GPUs are named after it."""
    cards = [BareCard(number, name, f"GPU-{name}-{number}") for number in numbers]
    return Vendor(name, lambda _: CardList(cards, f"{name} 1"), ("/",) if present else ("/no/such/file",))


def refusing(reason: Exception, **how: Any) -> Vendor:
    """Return a vendor whose GPUs cannot be opened."""

    def refuse(_: int | None) -> Source:
        raise reason

    return Vendor("Refusing", refuse, ("/",), **how)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes vendors the only ones."""
    monkeypatch.setattr(opening, "_vendors_of_packages", lambda: ((), {}))
    return lambda *vendors: monkeypatch.setattr(opening, "BUILT_IN", vendors)


def test_cards_are_numbered_over_all_vendors(register: Any) -> None:
    register(vendor("A", (0, 2)), vendor("B", (0, 1)))
    there = open_cards()
    assert there.numbers == [0, 2, 3, 4]
    assert [(card.index, card.uuid) for card in there.choose()] == [
        (0, "GPU-A-0"), (2, "GPU-A-2"), (3, "GPU-B-0"), (4, "GPU-B-1"),
    ]  # fmt: skip
    assert [card.uuid for card in there.choose([4, 0])] == ["GPU-B-1", "GPU-A-0"]
    found = there.find("GPU-B-1")
    assert found is not None
    assert found.index == 4
    assert there.find("GPU-B-9") is there.find("") is None
    assert there.driver_version == "A 1"


@pytest.mark.parametrize(
    ("numbers", "wanted", "message", "hint"),
    [
        ((), None, "this machine has no GPU", "doctor"),
        ((0,), [1], "GPU 1: this machine has no such GPU", "this machine: 0"),
        ((0, 1), [0, 7], "GPU 7: this machine has no such GPU", "this machine: 0 to 1"),
    ],
)
def test_a_card_that_is_not_there_is_an_error_with_a_hint(
    numbers: tuple[int, ...], wanted: list[int] | None, message: str, hint: str, register: Any
) -> None:
    register(vendor("A", numbers))
    with pytest.raises(NoDeviceError, match=message) as caught:
        open_cards().choose(wanted)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("reason", [NoDeviceError("asleep"), RuntimeError("asleep")])
def test_a_vendor_that_cannot_be_opened_is_not_in_the_way_of_the_next(reason: Exception, register: Any) -> None:
    register(refusing(reason), vendor("B"))
    there = open_cards()
    assert [card.uuid for card in there.choose()] == ["GPU-B-0"]
    assert "asleep" in there.failures["Refusing"]
    register(refusing(reason))
    with pytest.raises(NoDeviceError, match=r"no GPU can be read: .*asleep"):
        open_cards()
    assert find_cards() == []


def test_no_library_is_loaded_for_a_driver_that_is_not_here(register: Any) -> None:
    register(refusing(AssertionError("was opened")), vendor("B", present=False))
    assert has_driver()
    register(vendor("B", present=False))
    assert not has_driver()
    assert find_cards() == []
    assert survey_cards().numbers == [0]


@pytest.mark.parametrize("reason", [NoDeviceError("lost"), RuntimeError("lost")])
def test_a_card_that_cannot_be_opened_is_left_out_where_nobody_named_it(reason: Exception, register: Any) -> None:
    class Half(CardList):
        def card(self, number: int) -> Any:
            if number == 0:
                raise reason
            return super().card(number)

    cards = [BareCard(number, "Half", f"GPU-{number}") for number in (0, 1)]
    register(Vendor("Half", lambda _: Half(cards), ("/",)))
    assert [card.index for card in find_cards()] == [1]
    assert [card.index for card in open_cards().choose([1])] == [1]
    with pytest.raises(NoDeviceError, match="lost"):
        open_cards().choose()


def first_opening() -> Any:
    """Return the module once more, as a process that has not looked for packages finds it."""
    spec = present(importlib.util.find_spec(opening.__name__))
    fresh = importlib.util.module_from_spec(spec)
    present(spec.loader).exec_module(fresh)
    return fresh


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda: 1 / 0, "cannot be loaded: ZeroDivisionError"),
        (lambda: object(), "is not a gpuledger.cards.vendor.Vendor"),
    ],
)
def test_an_entry_point_that_is_no_vendor_is_a_failure_with_its_reason(
    load: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [SimpleNamespace(name="bad", value="bad:it", load=load)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    there = first_opening()
    failures = there.survey_cards().failures
    assert there.find_vendors() == opening.BUILT_IN
    assert f"bad:it {reason}" in failures["bad"]


def test_packages_that_cannot_be_listed_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(group: str) -> Iterator[Any]:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr("importlib.metadata.entry_points", broken)
    there = first_opening()
    failures = there.survey_cards().failures
    assert there.find_vendors() == opening.BUILT_IN
    assert "cannot be read" in failures["entry points"]


class AnyName(Exception):
    """NVML's error under a name that says nothing: only its number does."""

    def __init__(self, value: int) -> None:
        super().__init__("NVML says no")
        self.value = value


def nvml_that_fails(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def init() -> None:
        raise AnyName(code)

    binding = SimpleNamespace(nvmlInit=init, NVMLError=AnyName, NVML_ERROR_LIBRARY_NOT_FOUND=LIBRARY_NOT_FOUND)
    monkeypatch.setitem(sys.modules, "pynvml", binding)


def test_the_tool_is_read_where_the_library_is_missing_and_only_where_it_may_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = CardList([BareCard(0, "Shown", "GPU-0")])
    monkeypatch.setattr(smi, "open_smi", lambda interval_ns: shown)
    nvml_that_fails(monkeypatch, LIBRARY_NOT_FOUND)
    assert nvidia.NVIDIA.open(10_000_000) is shown
    with pytest.raises(LibraryMissingError, match="NVML says no"):
        nvidia.NVIDIA.open(None)
    nvml_that_fails(monkeypatch, LIBRARY_NOT_FOUND + 1)
    with pytest.raises(NoDeviceError, match="NVML says no"):
        nvidia.NVIDIA.open(10_000_000)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia.NVIDIA.open(10_000_000) is shown


class Binding:
    """NVML with one GPU that has a name and nothing else."""

    NVMLError = AnyName
    NVMLError_GpuIsLost = NVMLError_Uninitialized = KeyError
    nvmlMemory_v2 = NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetName(self, handle: object) -> bytes:
        return b"Bare \xff"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlSystemGetDriverVersion(self) -> str:
        return "7"

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object, **__: object) -> None:
            raise AnyName(3)

        return answer


def test_what_a_card_does_not_tell_is_none_with_nvmls_reason() -> None:
    source = NvmlSource(Binding())
    card = source.card(0)
    assert (card.name, card.uuid, card.driver_version) == ("Bare \ufffd", "", "7")
    assert card.why_missing(CardQuantity.ENERGY) is None  # nobody has asked
    answers = [card.read_memory(), card.read_processes(), card.read_energy_mj(), card.read_throttled_ns()]
    assert [*answers, card.read_power_limit_w(), *card.read_sensors()] == [None] * 11
    assert {card.why_missing(quantity) for quantity in CardQuantity} == {"NVML says no"}
    assert source.find_number("GPU-1") is None


def test_a_card_is_found_by_its_uuid_through_the_real_binding(tmp_path: Path) -> None:
    script = """
from gpuledger.cards.card import CardQuantity
from gpuledger.cards.opening import open_cards
there = open_cards()
card = there.find("GPU-stub-1")
print(there.numbers, card.index, card.uuid, card.driver_version, there.find("GPU-stub-7"), sep="|")
print(card.read_energy_mj(), card.why_missing(CardQuantity.ENERGY), sep="|")
"""
    environment = with_stub(tmp_path, cards=2, no_energy=1)
    said = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True).splitlines()
    assert said == ["[0, 1]|1|GPU-stub-1|999.1|None", "None|Not Supported"]


def test_a_bare_card_tells_nothing_and_why() -> None:
    card = BareCard(0, "Bare", "GPU-0", reason="it is bare")
    answers = [card.read_memory(), card.read_processes(), card.read_energy_mj(), card.read_throttled_ns()]
    assert [*answers, card.read_power_limit_w(), *card.read_sensors()] == [None] * 11
    assert {card.why_missing(quantity) for quantity in CardQuantity} == {"it is bare"}


def test_a_uuid_is_written_as_torch_has_it() -> None:
    assert torch_uuid("9a74a228") == "GPU-9a74a228"
    assert torch_uuid(None) == ""


def test_device_files_are_a_vendors_own(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert nvidia.NVIDIA.find_card_files(tmp_path) == [tmp_path / "nvidia0"]
    assert vendor("A").find_card_files(tmp_path) == []


def test_the_seam_loads_nothing_of_a_vendor() -> None:
    script = "import gpuledger.cards.opening, sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {"pynvml", "psutil", "numpy", "torch", "importlib.metadata", "gpuledger.cards.nvml"} & set(loaded)

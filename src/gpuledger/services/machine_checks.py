"""Checks of this machine: libraries, drivers, GPUs, torch, and whether recordings are right. Each says what to do."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger._version import __version__
from gpuledger.errors import NoDeviceError
from gpuledger.processes.child_job import ChildJobError, run_child_job
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.cards.card import Card
    from gpuledger.cards.opening import OpenCards
    from gpuledger.cards.vendor import Vendor

OK, NONE, FAIL = "ok", "none", "fail"
"""``none``: not on this machine, and not needed. ``fail``: a problem that prevents recording."""
LIBRARIES = ("numpy", "pyarrow", "duckdb", "click", "rich", "nvidia-ml-py", "psutil")
SELFTEST_TIMEOUT_S = 300
OLDEST_CUDA_TORCH = (2, 11)
INSTALL_TORCH = "pip install 'gpuledger[torch]', or the build for your GPU from pytorch.org"


@dataclass(frozen=True)
class MachineCheck:
    """One finding. ``todo`` is "" where there is nothing to do."""

    name: str
    status: str
    found: str
    todo: str = ""


def is_healthy(checks: list[MachineCheck]) -> bool:
    """Return whether no check found a problem that prevents recording."""
    return all(check.status != FAIL for check in checks)


def verdict(checks: list[MachineCheck]) -> str:
    """Return in one sentence what can be recorded here."""
    works = [check.name.removeprefix("test ") for check in checks if check.name.startswith("test ")]
    failed = [check.name for check in checks if check.status == FAIL]
    if failed:
        return f"fix before recording: {', '.join(dict.fromkeys(failed))}"
    return f"ready to record on {', '.join(works)}; next: gpuledger run train.py"


def examine() -> Iterator[MachineCheck]:
    """Return every finding, each as soon as it is known."""
    from gpuledger.cards.opening import find_vendors, survey_cards

    yield MachineCheck(
        "gpuledger", OK, f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    yield libraries()
    yield directory(Path.cwd())
    there, vendors = survey_cards(), find_vendors()
    yield from (check for vendor in vendors for check in driver_checks(vendor, there, Path("/dev")))
    yield from plugin_checks(vendors, there)
    yield from card_checks(there)
    yield from (tool_check(vendor.tool) for vendor in vendors if vendor.tool)
    answer = ask_torch()
    yield from torch_checks(answer, len(there.numbers))
    yield from (selftest_check(found) for found in answer.get("devices", ()))


def libraries() -> MachineCheck:
    """Return the versions of what gpuledger stands on."""
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return MachineCheck("libraries", FAIL, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return MachineCheck("libraries", OK, ", ".join(found))


def directory(path: Path) -> MachineCheck:
    """Return whether a recording can be written to ``path``."""
    free = format_bytes(shutil.disk_usage(path).free)
    if not os.access(path, os.W_OK):
        return MachineCheck("directory", FAIL, f"{path}: not writable", "change to another directory, or give --out")
    return MachineCheck("directory", OK, f"{path}: writable, {free} free")


def driver_checks(vendor: Vendor, there: OpenCards, devices: Path) -> Iterator[MachineCheck]:
    """Return the version of a vendor's driver, or why there is none; and device files this user may not open."""
    files = vendor.find_card_files(devices)
    closed = [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
    source, reason = there.sources.get(vendor.name), there.failures.get(vendor.name)
    if source is not None:
        count = len(source.numbers)
        yield MachineCheck(
            "driver", OK, f"{vendor.name} {source.driver_version}, {count} GPU{'' if count == 1 else 's'}"
        )
    elif files:
        yield MachineCheck("driver", FAIL, f"{reason}, although {files[0]} exists", vendor.broken_hint)
    else:
        instead = "" if there.numbers else "; CPU tensors are recorded instead, without energy"
        yield MachineCheck("driver", NONE, f"{reason}: no {vendor.name} GPU here{instead}")
    if closed:
        yield MachineCheck(
            "permission", FAIL, f"{', '.join(closed)}: permission denied for this user", vendor.closed_hint
        )


def plugin_checks(vendors: Sequence[Vendor], there: OpenCards) -> Iterator[MachineCheck]:
    """Return the packages' vendors that cannot be used."""
    for name in there.failures.keys() - {vendor.name for vendor in vendors}:
        yield MachineCheck(name, FAIL, there.failures[name], "update or remove the package that has this entry point")


def card_checks(there: OpenCards) -> Iterator[MachineCheck]:
    """Return a check for every GPU, with its properties and values that cannot be read."""
    for number in there.numbers:
        try:
            yield card_check(*there.choose([number]))
        except NoDeviceError as error:
            yield MachineCheck(f"GPU {number}", FAIL, error.message, "read the driver's messages in the system log")


def card_check(card: Card) -> MachineCheck:
    """Return the check of one GPU, with its properties and values that cannot be read."""
    from gpuledger.cards.card import CardQuantity

    name, memory, power_w = f"GPU {card.index}", card.read_memory(), card.read_sensors().power_average_w
    answers = {
        CardQuantity.MEMORY: memory,
        CardQuantity.PROCESSES: card.read_processes(),
        CardQuantity.POWER: power_w,
        CardQuantity.ENERGY: card.read_energy_mj(),
    }
    missing = [f"{what}: {card.why_missing(what)}" for what, answer in answers.items() if answer is None]
    if memory is None:
        return MachineCheck(
            name, FAIL, f"{card.name}: {'; '.join(missing)}", "update the driver: `gpuledger balance` needs this value"
        )
    held = f"{card.name}, {format_bytes(memory.total_bytes)}, {format_bytes(memory.used_bytes)} in use"
    reserve = f" + {format_bytes(memory.driver_bytes)} reserved by the driver" if memory.driver_bytes else ""
    return MachineCheck(name, OK, held + reserve + (f"; not readable: {'; '.join(missing)}" if missing else ""))


def tool_check(tool: str) -> MachineCheck:
    """Return whether a vendor's command-line tool is here."""
    place = shutil.which(tool)
    return MachineCheck(
        tool, OK if place else NONE, place or "not found; not needed, because gpuledger queries the driver directly"
    )


def ask_torch() -> dict[str, Any]:
    """Return what the self-test's process said; ``error`` where it said nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER_")}
    module = "gpuledger.services.selftest"
    try:
        return run_child_job(module, {}, name="self-test", environment=environment, limit_s=SELFTEST_TIMEOUT_S)
    except ChildJobError as error:
        if error.status is None:
            return {"error": f"the self-test did not finish within {SELFTEST_TIMEOUT_S} s"}
        return {"error": f"the self-test exited with status {error.status}: {error.last_line or 'no output'}"}


def torch_checks(answer: dict[str, Any], cards: int) -> Iterator[MachineCheck]:
    """Return torch's version, whether it sees the GPUs, and what its private functions allow."""
    if "error" in answer:
        yield MachineCheck(
            "torch", FAIL, str(answer["error"]), "run `python -m gpuledger.services.selftest` to see its output"
        )
        return
    torch_version = answer.get("torch_version")
    if torch_version is None:
        yield MachineCheck("torch", FAIL, f"not importable: {answer.get('import_error')}", INSTALL_TORCH)
        return
    yield _torch_build(torch_version, answer.get("cuda_build"), int(answer["device_count"]), cards)
    if answer.get("no_history"):
        yield MachineCheck("history", NONE, f"{answer['no_history']}: the dispatch-mode recorder is used instead")
    for name, lost in answer.get("lost", {}).items():
        yield MachineCheck("torch", NONE, f"{name} is missing: {lost}", "use a tested version of torch, see the README")


def _torch_build(torch_version: str, build: str | None, seen: int, cards: int) -> MachineCheck:
    if build is None:
        found = f"{torch_version}, built without CUDA: CPU tensors are recorded"
        return MachineCheck("torch", FAIL if cards else OK, found, INSTALL_TORCH if cards else "")
    found = f"{torch_version} for CUDA {build}, sees {seen} GPU{'' if seen == 1 else 's'}"
    if cards and not seen:
        todo = "check CUDA_VISIBLE_DEVICES, and whether the driver is new enough for this build"
        return MachineCheck("torch", FAIL, found, todo)
    numbers = tuple(int(part) for part in torch_version.split(".")[:2] if part.isdecimal())
    if seen and numbers < OLDEST_CUDA_TORCH:
        oldest = ".".join(map(str, OLDEST_CUDA_TORCH))
        return MachineCheck("torch", FAIL, f"{found}; recording CUDA memory needs {oldest}", INSTALL_TORCH)
    return MachineCheck("torch", OK, found)


def selftest_check(found: dict[str, Any]) -> MachineCheck:
    """Return the outcome of the self-test on one device."""
    name = f"test {found['device']}"
    todo = "please report this with the output of `gpuledger doctor --json`"
    if found.get("error"):
        return MachineCheck(name, FAIL, str(found["error"]), todo)
    count, made = found["tensors"], format_bytes(found["made_bytes"])
    if found["missing"]:
        left = f"recorded {format_bytes(found['found_bytes'])} of {made}; missing: {', '.join(found['missing'])}"
        return MachineCheck(name, FAIL, left, todo)
    return MachineCheck(name, OK, f"{count} tensors, {made}: all bytes recorded correctly ({found['recorder']})")

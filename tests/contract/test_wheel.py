"""The wheel: what is in it, and that it works where nothing else is installed (`make test` makes that place)."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from folders import ROOT
from synthetic import make_run

import gpuledger

PACKAGE = ROOT / "src" / "gpuledger"
CLEAN = ROOT / "build" / "clean" / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = place.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def clean() -> Path:
    """The programs of an environment with the wheel and its own dependencies, without torch."""
    if not (CLEAN / "gpuledger").exists():
        pytest.skip("no build/clean: `make test` makes it")
    return CLEAN


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    source = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == source


def test_the_wheel_carries_its_licences(wheel: zipfile.ZipFile) -> None:
    names = {name.rpartition("/")[2] for name in wheel.namelist() if "/licenses/" in name}
    vendored = {path.name for path in (PACKAGE / "report" / "assets" / "vendor").glob("LICENSE-*")}
    assert names == {"LICENSE", *vendored}
    assert len(vendored) >= 2


def test_the_wheel_asks_for_no_torch(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    needs = metadata.get_all("Requires-Dist") or []
    assert [need for need in needs if need.startswith("torch") and "extra" not in need] == []
    assert metadata["Version"] == gpuledger.__version__


def test_pytest_finds_the_plugin_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    lines = wheel.read(name).decode().splitlines()
    assert lines[lines.index("[pytest11]") + 1] == "gpuledger = gpuledger.integrations.pytest_plugin"


def test_a_clean_installation_reads_a_run(clean: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "some.ledger")
    for arguments in (["show", "some.ledger"], ["balance", "some.ledger"], ["report", "some.ledger", "-o", "out.html"]):
        command = [str(clean / "gpuledger"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.html").stat().st_size > 10_000


def test_a_clean_installation_runs_a_program_without_torch(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys\nprint('ran')\nsys.exit(7)\n", encoding="utf-8")
    command = [str(clean / "gpuledger"), "run", "plain.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (7, "ran\n"), done.stderr

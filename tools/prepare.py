"""Prepare the environments that `make` works in: `python3 tools/prepare.py run|docs|test|wheel`.

run    .venv with gpuledger (editable) and the torch of constraints.txt
docs   run, plus the dependency group `docs` of pyproject.toml
test   run, plus the dependency groups `test`, `lint` and `docs` of pyproject.toml, Chromium and PostgreSQL
wheel  the wheel in dist/, alone with its own dependencies in build/clean and, beside .venv's packages, in build/tested

Needs nothing but the standard library. Each environment carries a stamp, the hash of what it was made from, so a second
call does nothing. What pip prints is kept back and shown when a step fails.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CLEAN = ROOT / "build" / "clean"
TESTED = ROOT / "build" / "tested"
OLDEST_PYTHON = (3, 11)
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
QUICK_PIP = "pip>=25"
"""One that Python brings may be older, and takes twice as long to choose among all versions of all packages."""
PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off")


class PrepareError(Exception):
    """A step failed; the message says which and what to do."""


def main(arguments: list[str]) -> int:
    """Return the exit status: 0 prepared, 1 a step failed, 2 wrong call."""
    kinds = {"run": prepare_run, "docs": prepare_docs, "test": prepare_test, "wheel": prepare_wheel}
    if len(arguments) != 1 or arguments[0] not in kinds:
        print(f"usage: tools/prepare.py {'|'.join(kinds)}", file=sys.stderr)
        return 2
    try:
        require_python()
        kinds[arguments[0]]()
    except PrepareError as error:
        print(f"prepare: error: {error}", file=sys.stderr)
        return 1
    return 0


def require_python() -> None:
    """Raise when this Python is too old or cannot make environments."""
    if sys.version_info < OLDEST_PYTHON:
        have = ".".join(map(str, sys.version_info[:3]))
        raise PrepareError(f"Python {have}: gpuledger needs 3.11 or newer\n  hint: make PYTHON=/path/to/python3.11 …")
    try:
        import ensurepip
        import venv
    except ImportError as error:
        raise PrepareError(
            f"{sys.executable}: no module {error.name}, cannot make {VENV.name}\n"
            f"  hint: apt-get install python3-venv, or make PYTHON=/path/to/another/python3"
        ) from error
    del ensurepip, venv


def prepare_run() -> None:
    """Make .venv with gpuledger and torch."""
    stamp = stamp_of("pyproject.toml", "constraints.txt")
    if is_fresh(VENV, "run", stamp):
        return
    make_environment(VENV)
    with step("installing gpuledger and torch into .venv (once; torch is large)"):
        pip_install(QUICK_PIP)
        pip_install("--editable", f"{ROOT}[torch]")
    set_stamp(VENV, "run", stamp)


def prepare_test() -> None:
    """Make .venv with everything the tests and the linters need."""
    prepare_group("test", "installing the tools for tests and checks into .venv (once)", ("test", "lint", "docs"))
    prepare_chromium()
    prepare_postgresql()


def prepare_docs() -> None:
    """Make .venv with what builds the pages; the tools for tests are not needed."""
    prepare_group("docs", "installing the tools for pages into .venv (once)", ("docs",))


def prepare_group(kind: str, title: str, names: tuple[str, ...]) -> None:
    """Make .venv with dependency groups of pyproject.toml."""
    import tomllib

    prepare_run()
    stamp = stamp_of("pyproject.toml", "constraints.txt")
    if is_fresh(VENV, kind, stamp) or is_fresh(VENV, "test", stamp):
        return
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    with step(title):
        pip_install(*(tool for name in names for tool in groups[name]))
    set_stamp(VENV, kind, stamp)


def prepare_chromium() -> None:
    """Install Chromium where that needs no password; say so where it does."""
    if any(shutil.which(name) for name in CHROMIUM_NAMES):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PrepareError("no Chromium, the report's tests need one\n  hint: sudo apt-get install chromium")
    with step("installing Chromium for the report's tests (once)"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        call(["apt-get", "update", "-qq"], environment)
        call(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-liberation"], environment
        )


def prepare_postgresql() -> None:
    """Install PostgreSQL where that needs no password; say so where it does. The tests start a server of their own."""
    if shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PrepareError("tests of operator databases need PostgreSQL\n  hint: sudo apt-get install postgresql")
    with step("installing PostgreSQL for the operator database's tests (once)"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        call(["apt-get", "update", "-qq"], environment)
        call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"], environment)


def prepare_wheel() -> None:
    """Build the wheel and install it twice: alone, and where the tests run."""
    with step("building the wheel"):
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        call([python_of(VENV), "-m", "hatchling", "build", "--target", "wheel"])
        (wheel,) = (ROOT / "dist").glob("*.whl")
    stamp = stamp_of("pyproject.toml", "constraints.txt")
    if not is_fresh(CLEAN, "run", stamp):
        shutil.rmtree(CLEAN, ignore_errors=True)
        with step("installing the wheel alone, without torch, into build/clean"):
            make_environment(CLEAN, "--without-pip")
            pip_install(wheel, into=CLEAN)
        set_stamp(CLEAN, "run", stamp)
    else:
        pip_install("--no-deps", "--force-reinstall", wheel, into=CLEAN)
    if not TESTED.exists():
        make_environment(TESTED, "--without-pip")
        # A path in a .pth file is searched last and its own .pth files are not read: .venv's packages are seen, its
        # editable gpuledger is not.
        (site_packages(TESTED) / "beside.pth").write_text(f"{site_packages(VENV)}\n", encoding="utf-8")
    pip_install("--no-deps", "--force-reinstall", wheel, into=TESTED)


def make_environment(directory: Path, *options: str) -> None:
    """Make a virtual environment unless there is a working one."""
    if (directory / "bin" / "python").exists():
        return
    call([sys.executable, "-m", "venv", *options, directory])


def pip_install(*requirements: str | Path, into: Path = VENV) -> None:
    """Install into an environment, by .venv's pip."""
    target = () if into == VENV else ("--python", python_of(into))
    constraints = ("--constraint", ROOT / "constraints.txt")
    call([python_of(VENV), "-m", "pip", *target, "install", *PIP_OPTIONS, *constraints, *requirements])


def python_of(environment: Path) -> Path:
    """Return the environment's interpreter."""
    return environment / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Return the directory the environment's packages are in."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python_of(environment), "-c", code], text=True).strip())


def stamp_of(*names: str) -> str:
    """Return a hash of these files, this script and the Python at work."""
    digest = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes())
    for name in names:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_fresh(environment: Path, kind: str, stamp: str) -> bool:
    """Return whether the environment was made from the same files."""
    place = environment / f"made-for-{kind}"
    return place.exists() and place.read_text(encoding="utf-8") == stamp


def set_stamp(environment: Path, kind: str, stamp: str) -> None:
    """Note what the environment was made from."""
    (environment / f"made-for-{kind}").write_text(stamp, encoding="utf-8")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print one line for a step: its title, then the seconds it took."""
    print(f"prepare: {title} … ", end="", file=sys.stderr, flush=True)
    start_s = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr, flush=True)
        raise
    print(f"{time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)


def call(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run a command quietly.

    Raises:
        PrepareError: it failed; the message holds the end of what it printed.
    """
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, **output)
    if done.returncode != 0:
        raise PrepareError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

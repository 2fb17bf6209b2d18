"""A PostgreSQL server of the tests' own, in a directory of theirs, reached through a socket: no port, no password."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

_NUMBERS = count()


@dataclass(frozen=True)
class Server:
    """A server that can be stopped and started again."""

    programs: Path
    directory: Path

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"database{next(_NUMBERS)}"
        self.run("psql", "-h", str(self.directory), "-U", "postgres", "-qc", f"create database {name}")
        return self.url(name)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = f"-c listen_addresses= -c fsync=off -c full_page_writes=off -k {self.directory}"
        log = str(self.directory / "log")
        self.run("pg_ctl", "start", "-w", "-D", str(self.directory / "data"), "-l", log, "-o", settings)

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        self.run("pg_ctl", "stop", "-m", "immediate", "-D", str(self.directory / "data"))

    def run(self, program: str, *words: str) -> None:
        """Run one of the server's programs, as a user that it does not refuse."""
        command = [str(self.programs / program), *words]
        user = _user()
        other: dict[str, Any] = (
            {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()} if os.geteuid() == 0 else {}
        )
        done = subprocess.run(
            command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, timeout=600, check=False, **other,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def _user() -> pwd.struct_passwd:
    """Return a user without privileges: root is refused."""
    users = {one.pw_name: one for one in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]


def find_programs() -> Path | None:
    """Return the directory of the newest server's programs, None without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server for the session."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path is short, and another user's too
    if os.geteuid() == 0:
        shutil.chown(directory, _user().pw_uid)
    made = Server(programs, directory)
    made.run("initdb", "-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D", str(directory / "data"))
    made.start()
    yield made
    made.stop()
    shutil.rmtree(directory)

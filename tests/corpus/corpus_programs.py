"""The programs of the corpus, and what the comments at their head tell the runner."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = {"cpu": HERE / "programs", "cuda": HERE / "cuda_programs"}

FRESH_ONLY = frozenset({"hooks", "exits", "imports", "processes", "signals"})
"""Categories whose programs need an interpreter of their own: what a fork inherits is part of what they are about."""

FRESH_IN_THIRD = 3
"""Programs with interpreters of their own in the third of the corpus that the tests run."""

_HEADER = re.compile(r"# (status|needs|arguments|environment|allowed|also|launch|stdin|alone|devices): (.+)")


@dataclass(frozen=True)
class Program:
    """One script of the corpus and its header.

    Header comments, each ``# name: value`` in the first lines:

    - ``status``: what it ends with, as subprocess gives it (0).
    - ``needs``: what it cannot run without: ``python3.12``, or a module's name.
    - ``arguments``, ``environment``: words, and ``NAME=value`` words.
    - ``stdin``: one line of standard input.
    - ``launch``: what stands before the script on Python's command line, such as ``-m torch.distributed.run``.
    - ``also``: options of ``gpuledger run`` with which it is recorded once more; may be given several times.
    - ``alone``: ``yes`` for a program that a fork of a loaded interpreter does not serve.
    - ``devices``: ``cpu cuda`` for a program that runs on ``corpus_state.DEVICE``, and so on a GPU, too.
    - ``allowed``: ``walks frames``, where its output may name frames of the recorder; ``recording ends early``, where
      the recorder may give way; ``notes``, where the recording may say what it did not measure; ``measuring``, where
      the program looks at its own threads while the timing measurement runs.
    """

    path: Path
    status: int = 0
    needs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    launch: tuple[str, ...] = ()
    stdin: str = ""
    also: tuple[tuple[str, ...], ...] = ()
    alone: bool = False
    devices: tuple[str, ...] = ("cpu",)
    allowed: frozenset[str] = frozenset()

    @property
    def category(self) -> str:
        """Return the folder it is in."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """Return category and name."""
        return f"{self.category}/{self.path.stem}"

    @property
    def needs_own_process(self) -> bool:
        """Return whether a fork of a loaded interpreter does not serve."""
        return self.alone or bool(self.launch)

    def lacks(self) -> str | None:
        """Return what it needs and this machine has not."""
        for need in self.needs:
            if need.startswith("python"):
                if sys.version_info < tuple(int(part) for part in need.removeprefix("python").split(".")):
                    return need
            elif not _is_there(need):
                return need
        return None


def _is_there(need: str) -> bool:
    import importlib.util

    import torch

    if need == "gloo":
        return torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return importlib.util.find_spec(need) is not None


def find_programs(kind: str = "cpu", pattern: str = "") -> list[Program]:
    """Return the programs of a kind in order, those whose name contains ``pattern``."""
    programs = [read_program(path) for path in sorted(KINDS[kind].glob("*/*.py"))]
    if kind == "cuda":
        set_device = (("CORPUS_DEVICE", "cuda"),)
        programs += [
            replace(program, environment=program.environment + set_device)
            for program in find_programs("cpu")
            if "cuda" in program.devices
        ]
    return [program for program in programs if pattern in program.name]


def fixed_third(programs: list[Program]) -> list[Program]:
    """Return a third of the programs, the same ones each time: half of those that a fork serves, and a few others.

    A fork of a loaded interpreter takes half a second of processor time for two bare executions and a recorded one,
    processes of their own take ten. With a few of these the third fits into a minute on two cores.
    """
    forked = [program for program in programs if not (program.needs_own_process or program.category in FRESH_ONLY)]
    fresh = [program for program in programs if not program.needs_own_process and program.category in FRESH_ONLY]
    some_fresh = fresh[:: len(fresh) // FRESH_IN_THIRD][:FRESH_IN_THIRD]
    others = len(programs) // 3 + 1 - len(some_fresh)
    return [*(forked[number * len(forked) // others] for number in range(others)), *some_fresh]


def read_program(path: Path) -> Program:
    """Return a script with its header.

    Raises:
        ValueError: its first line does not say what it is about.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].startswith(("# ", '"""')):
        raise ValueError(f"{path}: the first line says what the program is about")
    found: dict[str, list[str]] = {}
    for match in map(_HEADER.fullmatch, lines[:12]):
        if match is not None:
            found.setdefault(match[1], []).append(match[2])
    one = {name: values[-1] for name, values in found.items()}
    pairs = (word.partition("=") for word in shlex.split(one.get("environment", "")))
    return Program(
        path=path,
        status=int(one.get("status", 0)),
        needs=tuple(one.get("needs", "").split()),
        arguments=tuple(shlex.split(one.get("arguments", ""))),
        environment=tuple((name, value) for name, _, value in pairs),
        launch=tuple(shlex.split(one.get("launch", ""))),
        stdin=one.get("stdin", ""),
        also=tuple(tuple(shlex.split(options)) for options in found.get("also", ())),
        alone=one.get("alone") == "yes",
        devices=tuple(one.get("devices", "cpu").split()),
        allowed=frozenset(found.get("allowed", ())),
    )

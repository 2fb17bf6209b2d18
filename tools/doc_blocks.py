"""Run the code blocks of the pages, as the tests do: `python tools/doc_blocks.py [--write] [PAGE…]`.

Blocks in `sh`, `console` and `python` are run in the order of their page, in one directory, which holds `train.py` and
the old files of tests/data. In a `console` block what follows a command is compared with its standard output; a line
`…` stands for any lines. With `--write` it is replaced by what was printed, up to as many lines as stood there. A block
that cannot be run everywhere has a comment before it, `<!-- needs: GPU -->`, and a command whose exit status is
meant has one behind it, `# exit 5`.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import glob
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN_LANGUAGES = ("sh", "console", "python")
REASONS = ("GPU", "network", "another library", "a minute")
"""What a block may need that the tests have not; one that takes a minute has tests of its own."""
RUN_ELSEWHERE = ("make demo", "make test", "make site", "pip install .")
"""Lines that .ci/run or the wheel's test runs."""
OWN_PROCESS = ("run", "watch", "doctor", "estimate", "ops")
"""Commands that start or follow a program: they cannot share the process of the tests."""
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>[^>]+?) -->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
WIDTH_CELLS = "100"
EXIT = re.compile(r"\s+# exit (\d+)$")
TRAIN = ROOT / "tests" / "data" / "docs" / "train.py"
PRELUDE = """\
import warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
model = nn.Linear(256, 10)
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(64, 256) for _ in range(3)]
images, labels = torch.randn(64, 256), torch.randint(10, (64,))
loss_of = nn.functional.cross_entropy
def draw(batch):
    return torch.randn(batch, 256), torch.randint(10, (batch,))
"""
"""Stands before the Python of a page: what a reader has already."""


@dataclass(frozen=True)
class Block:
    """One block of a page; ``needs`` is what it cannot be run without, "" where it can be run."""

    page: str
    line: int
    language: str
    body: str
    needs: str


@dataclass(frozen=True)
class Done:
    """One command as it ended. ``wanted`` is the output that the page shows, None where it shows none."""

    command: str
    status: int
    stdout: str
    stderr: str
    expected_status: int = 0
    wanted: str | None = None

    @property
    def complaint(self) -> str:
        """Return what is wrong with it; "" where nothing is."""
        if self.status != self.expected_status:
            return f"{self.command}\nended with {self.status}\n{self.stdout}{self.stderr}"
        if self.wanted is not None and not fits(self.wanted, self.stdout):
            return f"{self.command}\nprinted\n{self.stdout}\nand the page says\n{self.wanted}"
        return ""


@dataclass
class Desk:
    """The directory one page's blocks are run in, with the names they use.

    ``kept`` holds the recordings made before, each named by the words after ``run``, and gets the new ones. ``python``
    is what runs programs and those commands that start one.
    """

    place: Path
    kept: Path
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lay out what the pages speak of."""
        shutil.copytree(ROOT / "tests" / "data", self.place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("h200"))
        shutil.copy(TRAIN, self.place / "train.py")
        tools = self.place / ".bin"
        tools.mkdir()
        programs = {"gpuledger": " -m gpuledger", "python": "", "torchrun": " -m torch.distributed.run"}
        for name, module in programs.items():
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(self.python)}{module} "$@"\n', encoding="utf-8")
            (tools / name).chmod(0o755)
        self.environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(self.place), "CUDA_VISIBLE_DEVICES": ""}

    def run(self, block: Block) -> Iterator[Done]:
        """Run a block, command by command."""
        if block.language == "python":
            yield self._python(block.body)
            return
        for command, wanted in commands_of(block):
            match = EXIT.search(command)
            words = command[: match.start()] if match else command
            done = self._command(words.split("  #")[0].strip())
            yield Done(words, *done, int(match[1]) if match else 0, wanted)

    def _command(self, command: str) -> tuple[int, str, str]:
        if not command or command in RUN_ELSEWHERE:
            return 0, "", ""
        words = plain_words(command, self.place)
        if words is None or words[0] != "gpuledger":
            return self._shell(command)
        if words[1] in OWN_PROCESS:
            return self._record(command, words[2:]) if words[1] == "run" else self._shell(command)
        return self._in_process(words[1:])

    def _record(self, command: str, words: list[str]) -> tuple[int, str, str]:
        """Record what was not recorded before, else copy that recording: many pages begin with the same training."""
        name = words[words.index("--out") + 1] if "--out" in words else "train"
        told = [word for place, word in enumerate(words) if "--out" not in words[max(place - 1, 0) : place + 1]]
        made = self.kept / " ".join(word for word in told if word != "-q").replace("/", "_")
        target = self.place / f"{name}.ledger"
        if made.is_dir() and not target.exists():
            shutil.copytree(made, target)
            return 0, "", ""
        ended = self._shell(command)
        if ended[0] == 0 and "train.py" in words and target.is_dir() and not made.exists():
            copy = shutil.copytree(target, Path(tempfile.mkdtemp(dir=self.kept)) / "run")
            with contextlib.suppress(OSError):  # another process was first
                copy.rename(made)
        return ended

    def _shell(self, command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _in_process(self, words: list[str]) -> tuple[int, str, str]:
        """Run one of our commands in this process: what it prints is what it prints in its own."""
        from click.testing import CliRunner

        from gpuledger.cli.main import main

        target = None
        if ">" in words:
            words, target = words[: words.index(">")], words[words.index(">") + 1]
        with contextlib.chdir(self.place):
            result = CliRunner().invoke(main, words, prog_name="gpuledger", env={"COLUMNS": WIDTH_CELLS})
            if target is not None:
                Path(target).write_text(result.stdout, encoding="utf-8")
        return result.exit_code, "" if target else result.stdout, result.stderr

    def _python(self, source: str) -> Done:
        """Run a block of Python in a process of its own, in the desk: nothing it leaves is in a test's way."""
        place = self.place / "snippet.py"
        place.write_text(PRELUDE + source, encoding="utf-8")
        command = [self.python, str(place)]
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True, check=False, timeout=120)
        return Done(source, done.returncode, done.stdout, done.stderr if done.returncode else "")


def pages() -> list[Path]:
    """Return every page whose blocks are run."""
    built = ROOT / "docs" / "_build"
    return [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if built not in page.parents)]


def blocks_of(page: Path) -> list[Block]:
    """Return the page's blocks in the languages that are run."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, match.start()) + 1, match["language"], match["body"], match["needs"] or "")
        for match in BLOCK.finditer(text)
        if match["language"] in RUN_LANGUAGES
    ]


def commands_of(block: Block) -> list[tuple[str, str | None]]:
    """Return the block's commands, in `console` each with the output that follows it, None where none does."""
    text = block.body.replace("\\\n", " ")
    if block.language == "sh":
        return [(text, None)] if "<<" in text else [(line, None) for line in text.splitlines() if line.strip()]
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        found.append((command, output if output.strip() else None))
    return found


def plain_words(command: str, place: Path) -> list[str] | None:
    """Return the command's words with file patterns filled in; None where it needs a shell."""
    words: list[str] = []
    for word in shlex.split(command):
        if re.search(r"[|;&$`<]", word) and "select" not in word:
            return None
        filled = sorted(glob.glob(word, root_dir=place)) if re.search(r"[*?\[]", word) else []
        words += filled or [word]
    return words


def fits(wanted: str, printed: str) -> bool:
    """Return whether the page shows what was printed; runs of spaces are one, `…` on its own stands for any lines."""
    lines = [re.escape(" ".join(line.split())) + r"\n" for line in wanted.strip().splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line.startswith("…\\n") else line for line in lines)
    found = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, found) is not None


def rewritten(page: Path, desk: Desk) -> str:
    """Return the page with the outputs that its commands print now."""
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.needs:
            continue
        parts = []
        for done, (command, wanted) in zip(list(desk.run(block)), commands_of(block), strict=False):
            if done.status != done.expected_status:
                print(done.complaint, file=sys.stderr)
            stale = wanted is not None and done.complaint
            output = shortened(done.stdout, len((wanted or "").splitlines())) if stale else wanted or ""
            parts.append(f"$ {command}\n{output}")
        if block.language == "console":
            text = text.replace(block.body, "".join(parts))
    return text


def shortened(printed: str, lines: int) -> str:
    """Return the first so many lines of what was printed, and a `…` for those left out."""
    all_lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    shown = all_lines if len(all_lines) <= lines else [*all_lines[: lines - 1], "…"]
    return "\n".join(shown) + "\n"


def main() -> int:
    """Return 0 where every block did what its page says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Put what is printed into the pages.")
    parser.add_argument("pages", nargs="*", type=Path)
    arguments = parser.parse_args()
    wrong = 0
    kept = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, kept)
    for page in [one.resolve() for one in arguments.pages] or pages():
        with tempfile.TemporaryDirectory() as directory:
            desk = Desk(Path(directory), kept)
            if arguments.write:
                page.write_text(rewritten(page, desk), encoding="utf-8")
                continue
            for block in blocks_of(page):
                for done in () if block.needs else desk.run(block):
                    if done.complaint:
                        print(f"{block.page}:{block.line}: {done.complaint}")
                        wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

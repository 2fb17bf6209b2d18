"""Lists fuzz targets that are runs: journals, manifests and tables are damaged, then every view shows the run."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import tempfile
from pathlib import Path

import click
from harness import Target, Tree
from mutations import PIECES, damage_bytes, damage_npz, damage_parquet, damage_value, npz_bytes, to_json

from gpuledger.cli.main import main
from gpuledger.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "recordings"
PASSES = RECORDINGS / "passes" / "halves.ledger"
RUN = "x.ledger"
EXTRA = ("rank-1/x", "rank-00/manifest.json", "rank-٣/manifest.json", "samples/journal/1/0.npz")
VIEWS = (
    ("show", RUN),
    ("show", RUN, "--by", "module", "--json"),
    ("show", RUN, "--by", "kernel"),
    ("show", RUN, "--by", "tensor", "--at", "end"),
    ("show", RUN, "--by", "scope", "--sort", "energy"),
    ("show", RUN, "--unknown"),
    ("show", RUN, "--per-sample"),
    ("balance", RUN),
    ("group", RUN),
    ("report", RUN, "-o", "out.html", "--force"),
    ("trace", RUN, "-o", "out.json", "--force"),
    ("compare", RUN, RUN),
    ("diff", RUN, RUN, "--json"),
    ("check", RUN, "--against", RUN),
    ("budget", RUN, "-o", "out.toml", "--force"),
    ("export", RUN, "--to", "json", "-o", "out.tables.json", "--force"),
    ("export", RUN, "--to", "csv", "-o", "out.csv", "--force"),
    ("export", RUN, "--to", "torch-snapshot", "-o", "out.pickle", "--force"),
    ("sql", RUN, "SELECT module, sum(allocated_bytes) FROM at_peak GROUP BY module"),
    ("sql", RUN, "SELECT * FROM spans"),
    ("plot", RUN, "-o", "out.svg", "--force"),
    ("plot", RUN, "--kind", "layers", "-o", "out.svg", "--force"),
)


def command(*arguments: str) -> None:
    """Run a command as the command line does; its output is dropped.

    Raises:
        Exception: whatever the command raises; click's own complaints as UsageError.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            click.Group.main(main, list(arguments), "gpuledger", standalone_mode=False, obj={})
        except click.ClickException as error:
            raise UsageError(error.format_message()) from error
        except click.exceptions.Exit:
            pass
        out.flush()


def look(directory: Path, rng: random.Random) -> None:
    """Show a run by three views."""
    with contextlib.chdir(directory):
        first_error = None
        for view in (VIEWS[0], *rng.sample(VIEWS[1:], 2)):
            try:
                command(*view)
            except UsageError as error:
                first_error = first_error or error
    if first_error is not None:
        raise first_error


def tree_of(directory: Path, prefix: str = RUN) -> Tree:
    """Return a directory's files."""
    files = sorted(place for place in directory.rglob("*") if place.is_file())
    return {f"{prefix}/{place.relative_to(directory)}": place.read_bytes() for place in files}


MANIFEST = {
    "schema_version": 1,
    "name": "x",
    "command": ["python", "x.py"],
    "notes": [],
    "settings": {"steps": {"value": "1:3", "origin": "default"}},
    "started_ns": 1_790_000_000_000_000_000,
    "ended_ns": 1_790_000_001_000_000_000,
    "status": "complete",
    "exit_status": 0,
}


@functools.cache
def journal_seeds() -> list[Tree]:
    """Return runs that are not posted yet: recordings of a real GPU, one with a time pass."""
    import numpy as np

    manifest = {f"{RUN}/manifest.json": to_json(MANIFEST)}
    place = f"{RUN}/rank-0/journal"
    found = [{**manifest, f"{place}/00000.npz": (RECORDINGS / f"{name}.npz").read_bytes()} for name in ("lstm", "gan")]
    shapes = (RECORDINGS / "shapes" / "resnet50-training" / "00000.npz").read_bytes()
    with np.load(io.BytesIO(shapes)) as archive:
        arrays = {name: archive[name][:400] if name != "text" else archive[name] for name in archive.files}
    return [*found, {**found[0], f"{place}/00001.npz": npz_bytes(arrays)}]


@functools.cache
def run_seeds() -> list[Tree]:
    """Return posted runs: one recorded with all passes, and one that was made with two ranks."""
    import sys

    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from synthetic import make_run

    with tempfile.TemporaryDirectory() as directory:
        made = tree_of(make_run(Path(directory) / RUN, blocks=60, modules=6, ranks=2))
        imported = [_imported(name, Path(directory)) for name in ("time_log", "nvidia_smi", "memory_csv")]
    return [tree_of(PASSES), made, *imported]


def _imported(name: str, directory: Path) -> Tree:
    """Return a run made of a file in an older format."""
    from gpuledger.formats.readers import read_files
    from gpuledger.model.imported import write_imported

    file = min((ROOT / "tests" / "data" / name).iterdir(), key=lambda place: place.stat().st_size)
    run = read_files(name.replace("_", "-"), (file,), "x", {})
    return tree_of(write_imported(run, directory / name).path)


@functools.cache
def unposted_seeds() -> list[Tree]:
    """Return a run whose readings of the GPUs are not posted yet."""
    tree = tree_of(PASSES)
    name = f"{RUN}/rank-0/manifest.json"
    manifest = json.loads(tree[name])
    kept = {
        key: value
        for key, value in manifest.items()
        if key not in ("sample_parts", "energy", "measured_watts", "power_model")
    }
    return [{**tree, name: to_json(kept)}]


def _change(rng: random.Random, tree: Tree, ending: str, damage) -> Tree:
    name = rng.choice(sorted(one for one in tree if one.endswith(ending)))
    return {**tree, name: damage(rng, tree[name])}


def damage_journal(rng: random.Random, tree: Tree) -> Tree:
    """Damage the columns or the text of a part; seldom its bytes."""
    return _change(rng, tree, ".npz", damage_npz if rng.random() < 0.9 else damage_bytes)


def damage_manifest(rng: random.Random, tree: Tree) -> Tree:
    """Damage values of a manifest; seldom its bytes."""
    if rng.random() < 0.1:
        return _change(rng, tree, "manifest.json", damage_bytes)
    return _change(rng, tree, "manifest.json", lambda rng, content: to_json(damage_value(rng, json.loads(content))))


def damage_tables(rng: random.Random, tree: Tree) -> Tree:
    """Damage columns of a table."""
    return _change(rng, tree, ".parquet", damage_parquet)


def damage_directory(rng: random.Random, tree: Tree) -> Tree:
    """Damage a run as a directory: bytes of any file, files that are gone, empty, of another kind, or in the way."""
    changed = dict(tree)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(changed))
        what = rng.choice(("bytes", "bytes", "gone", "empty", "other", "piece", "below", "extra"))
        if what == "bytes":
            changed[name] = damage_bytes(rng, changed[name])
        elif what == "gone":
            changed = {one: content for one, content in changed.items() if one != name} or changed
        elif what == "below":
            content = changed.pop(name)
            changed[f"{name}/{name.rpartition('/')[2]}"] = content
        elif what == "extra":
            changed[f"{RUN}/{rng.choice(EXTRA)}"] = b"{}"
        elif what != "gone":
            changed[name] = {"empty": b"", "other": rng.choice(sorted(tree.values())), "piece": rng.choice(PIECES)}[
                what
            ]
    return changed


TARGETS = (
    Target("run-journal", journal_seeds, damage_journal, look),
    Target("run-samples", unposted_seeds, damage_journal, look),
    Target("run-manifest", run_seeds, damage_manifest, look),
    Target("run-manifest-unposted", unposted_seeds, damage_manifest, look),
    Target("run-tables", run_seeds, damage_tables, look),
    Target("run-directory", lambda: [*run_seeds(), *journal_seeds(), *unposted_seeds()], damage_directory, look),
)

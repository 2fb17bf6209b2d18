"""Lists fuzz targets that are single files: older formats, settings, budgets, keywords, databases and caches."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import Target, Tree
from mutations import damage_bytes, damage_parquet, damage_value, to_json
from run_targets import ROOT, RUN, command, damage_manifest, run_seeds

DATA = ROOT / "tests" / "data"
DATABASE = ROOT / "tests" / "data" / "h200" / "operator_database.parquet"
CAMPAIGN = b"""gpu: h200
defaults: &shared [1x3x8x8, 2x3x8x8]
models:
  - torchvision:resnet50
  - model: torchvision:vgg16
    mode: [inference, training]
    inputs: [32x3x224x224, [8, 3, 64, 64]]
    batch: 4
"""
CAMPAIGN = CAMPAIGN.replace(b"defaults: &shared [1x3x8x8, 2x3x8x8]\n", b"")
BUDGET = b"""[limits]
peak_allocated_bytes = "2 GiB"
step_time_ns = "20 ms"
step_energy_j = "3 J"
[tolerances]
step_time_ns = "5%"
step_energy_j = "2%"
"""
PYPROJECT = b"""[project]
name = "x"
dependencies = ["numpy>=1", "torch"]
[tool.ruff.lint]
select = ["E", "F"]
[tool.gpuledger]
steps = "2:5"
stacks = true
devices = "cpu"
"""
KEYWORDS = b"""[layer]
RNN = ["rnn", "re:lstm[0-9]+"]
Embedding = ["weight:*embed*", "class:*Embedding*"]
[what]
Weights = ["category:weight"]
"""
LIST = b"""Operator: aten.addmm.default
cnt: 2, ((T([1000], f16), T([32, 2048], f16), T([2048, 1000], f16, stride=(1, 2048))), {})
Operator: aten._softmax.default
cnt: 1, ((T([32, 1000], f16), 1, False), {})
cnt: 3, ((T([32, 10], f32), -1, False), {'dtype': f32})
"""
CALIBRATION = {
    "profile_version": 1,
    "profiles": {
        "k": {
            "key": {
                **dict.fromkeys(("card", "driver_version", "torch_version", "cuda_version", "module_loading"), "x"),
            },
            "measured_on": "2026-11-21",
            "readings": [
                {"name": "context", "backward": False, "bytes": 5},
                {"name": "b", "backward": True, "bytes": 9},
            ],
        }
    },
}


def _alone(name: str, content: bytes) -> Tree:
    return {name: content}


def _bytes_of_all(rng: random.Random, tree: Tree) -> Tree:
    name = rng.choice(sorted(tree))
    return {**tree, name: damage_bytes(rng, tree[name])}


def _text_or_value(rng: random.Random, tree: Tree, name: str) -> Tree:
    if rng.random() < 0.15:
        return {**tree, name: damage_bytes(rng, tree[name])}
    return {**tree, name: to_json(damage_value(rng, json.loads(tree[name])))}


def _inside(*arguments: str) -> Callable[[Path, random.Random], None]:
    """Return what runs a command in the input's directory."""

    def read(directory: Path, _rng: random.Random) -> None:
        with contextlib.chdir(directory):
            command(*arguments)

    return read


# -- older formats ----------------------------------------------------------------------------------------------------


def _format(name: str, seeds: Callable[[], list[Tree]]) -> Target:
    def read(directory: Path, rng: random.Random) -> None:
        files = [str(place) for place in sorted(directory.rglob("*")) if place.is_file()]
        with contextlib.chdir(directory):
            command("import", name, *files, "--out", "out")
            command(*rng.choice((("show", files[0]), ("compare", files[0]), ("plot", files[0], "-o", "x.svg"))))

    return Target(name, seeds, _bytes_of_all, read)


def _files(folder: str) -> Callable[[], list[Tree]]:
    def seeds() -> list[Tree]:
        return [
            _alone(place.name, place.read_bytes()[:20_000])
            for place in sorted((DATA / folder).iterdir())
            if place.is_file()
        ]

    return functools.cache(seeds)


@functools.cache
def _snapshots() -> list[Tree]:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from snapshots import dumped, event, segment, snapshot, some_frames

    stacks = some_frames(3, 4)
    trace = [event(n, "alloc", (1 << 40) + 512 * n, 100 + n, frames=stacks[n % 3]) for n in range(120)]
    shown = snapshot([segment(0, 1 << 40, [(512, 100, 1)] * 130)], [*trace, event(121, "snapshot", 0, 0)])
    return [_alone("snapshot.pickle", dumped(shown)), _alone("snapshot.pickle", dumped(shown, 2))]


@functools.cache
def _smi() -> list[Tree]:
    header = b"timestamp, index, name, uuid, memory.used [MiB], power.draw [W], utilization.gpu [%]\n"
    rows = b"".join(
        b"2020/01/02 03:04:%02d.%03d, %d, Tesla V100, GPU-0000000%d-1111, %d MiB, 71.5 W, 9 %%\n"
        % (n // 4, n, n % 2, n % 2, n)
        for n in range(60)
    )
    return [*_files("nvidia_smi")(), _alone("log.csv", header + rows)]


# -- settings, budgets, keywords --------------------------------------------------------------------------------------


def _read_settings(directory: Path, _rng: random.Random) -> None:
    from gpuledger.config import resolve

    resolve({}, {}, directory)


def _with_run(name: str, content: bytes) -> Callable[[], list[Tree]]:
    return lambda: [{**run_seeds()[1], name: content}]


def _only(name: str) -> Callable[[random.Random, Tree], Tree]:
    return lambda rng, tree: {**tree, name: damage_bytes(rng, tree[name])}


# -- operators --------------------------------------------------------------------------------------------------------


@functools.cache
def _database_parquet() -> bytes:
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pq.read_table(DATABASE).slice(0, 40), stream)
    return stream.getvalue()


@functools.cache
def _database_files() -> tuple[bytes, bytes]:
    """Return a small database as SQLite and a workload of its operators."""
    from gpuledger.ops.database.contents import contents_of, merge
    from gpuledger.ops.database.operator_database import open_database
    from gpuledger.ops.workloads.workload import Layer, Use, Workload

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "x.parquet").write_bytes(_database_parquet())
        contents = contents_of(str(folder / "x.parquet"))
        with open_database(folder / "x.db") as database:
            merge(database, contents)
        with sqlite3.connect(folder / "x.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode=DELETE")
        connection.close()
        keys = list(contents.keys.values())[:12]
        uses = tuple(Use(key, 3, (("a.b", 2), ("", 1)), 1e6) for key in keys)
        layer = Layer("Linear", "1, 2", tuple(keys[0].inputs), (), (("weight", (2, 1)),), 2, ((keys[0].digest, 1),))
        settings = {
            "device": "cpu",
            "torch": "2",
            "notes": [],
            "model": "torchvision:alexnet",
            "batch": 2,
            "no_kernel": {},
        }
        Workload("w", "inference", uses, (layer,), settings).write(folder / "w.workload.json")
        return (folder / "x.db").read_bytes(), (folder / "w.workload.json").read_bytes()


def _database_tree() -> list[Tree]:
    database, workload = _database_files()
    return [{"x.db": database, "w.workload.json": workload}]


def _damage_database(rng: random.Random, tree: Tree) -> Tree:
    """Damage a cell of the database, or bytes of its file."""
    if rng.random() < 0.25:
        return {**tree, "x.db": damage_bytes(rng, tree["x.db"])}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "x.db"
        place.write_bytes(tree["x.db"])
        with sqlite3.connect(place) as connection:
            connection.execute("PRAGMA foreign_keys=OFF")
            table = rng.choice(("keys", "environments", "records", "records", "gpuledger_book"))
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            column = rng.choice(columns)
            value = _damaged_cell(rng, connection.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()[0])
            every = rng.random() < 0.3 and column != "digest"
            where = "" if every else f" WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET {rng.randint(0, 3)})"
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                connection.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))
        connection.close()
        return {**tree, "x.db": place.read_bytes()}


def _damaged_cell(rng: random.Random, cell: object) -> object:
    if isinstance(cell, str) and cell[:1] in "[{" and rng.random() < 0.8:
        with contextlib.suppress(ValueError):  # an earlier damage has left no JSON
            return json.dumps(damage_value(rng, json.loads(cell)))
    return rng.choice((None, "", "x", -1, 0, 1 << 62, 1e308, b"\xff", "[" * 2_000, "9" * 5_000, "null", "{}", "[]"))


def _look_at_database(directory: Path, rng: random.Random) -> None:
    views = (
        ("ops", "sum", "w.workload.json", "--database", "x.db"),
        ("ops", "query", "SELECT * FROM measured", "--database", "x.db"),
        ("ops", "diff", "x.db", "x.db"),
        ("ops", "export", "--database", "x.db", "--to", "parquet", "-o", "out.parquet", "--force"),
        ("ops", "export", "--database", "x.db", "--to", "html", "-o", "out.html", "--force"),
        ("ops", "predict", "w.workload.json", "--database", "x.db", "--gpu", "NVIDIA H200"),
    )
    with contextlib.chdir(directory):
        for view in rng.sample(views, 2):
            command(*view)


def _look_at_workload(directory: Path, rng: random.Random) -> None:
    views = (
        ("ops", "list", "w.workload.json"),
        ("ops", "list", "w.workload.json", "--by", "operator", "--json"),
        ("ops", "sum", "w.workload.json", "--database", "x.db"),
        ("ops", "predict", "w.workload.json", "--database", "x.db", "--gpu", "NVIDIA H200"),
    )
    with contextlib.chdir(directory):
        for view in rng.sample(views, 2):
            command(*view)


def _look_at_exchange(directory: Path, rng: random.Random) -> None:
    with contextlib.chdir(directory):
        command(
            *rng.choice(
                (("ops", "merge", "x.parquet", "--database", "new.db"), ("ops", "diff", "x.parquet", "x.parquet"))
            )
        )


def _read_campaign(directory: Path, _rng: random.Random) -> None:
    from gpuledger.ops.measure.campaign_file import read_campaign

    read_campaign(directory / "campaign.yml")


def _read_calibration(directory: Path, _rng: random.Random) -> None:
    from gpuledger.collect.sampling.calibrate import CardKey, load_profile, read_profiles

    place = directory / "calibration.json"
    profiles, _ = read_profiles(place)
    for name in profiles:
        key = CardKey(name, "x", "x", "x", "x")
        found = load_profile(key, place)
        if found.profile is not None:
            found.profile.library_bytes(trained=True), found.profile.increments()
    load_profile(CardKey("x", "x", "x", "x", "x"), place)


TARGETS = (
    _format("torch-snapshot", _snapshots),
    _format("memory-csv", _files("memory_csv")),
    _format("mxnet", _files("mxnet")),
    _format("tbd-log", _files("tbd")),
    _format("nvidia-smi", _smi),
    _format("time-log", _files("time_log")),
    Target("pyproject", lambda: [_alone("pyproject.toml", PYPROJECT)], _bytes_of_all, _read_settings),
    Target("budget", _with_run("b.toml", BUDGET), _only("b.toml"), _inside("check", RUN, "--budget", "b.toml")),
    Target("keywords", _with_run("k.toml", KEYWORDS), _only("k.toml"), _inside("group", RUN, "--keywords", "k.toml")),
    Target(
        "keywords-setme",
        _with_run("SETME.py", (DATA / "mxnet" / "SETME.py").read_bytes()),
        _only("SETME.py"),
        _inside("group", RUN, "--keywords", "SETME.py"),
    ),
    Target("diff-manifest", lambda: run_seeds()[:1], damage_manifest, _inside("diff", RUN, RUN)),
    Target(
        "workload", _database_tree, lambda rng, tree: _text_or_value(rng, tree, "w.workload.json"), _look_at_workload
    ),
    Target("database-sqlite", _database_tree, _damage_database, _look_at_database),
    Target(
        "database-parquet",
        lambda: [_alone("x.parquet", _database_parquet())],
        lambda rng, tree: _alone(
            "x.parquet", (damage_parquet if rng.random() < 0.8 else damage_bytes)(rng, tree["x.parquet"])
        ),
        _look_at_exchange,
    ),
    Target("campaign", lambda: [_alone("campaign.yml", CAMPAIGN)], _bytes_of_all, _read_campaign),
    Target(
        "operator-list",
        lambda: [_alone("list.txt", LIST)],
        _bytes_of_all,
        _inside("ops", "import", "tritonbench", "list.txt"),
    ),
    Target(
        "printed-rows",
        lambda: [
            _alone(
                "rows.txt", b"".join((DATA / "operator_energy" / "results_A30.txt").read_bytes().splitlines(True)[:4])
            )
        ],
        _bytes_of_all,
        _inside("ops", "import", "printed-rows", "rows.txt", "--gpu", "NVIDIA A30", "--database", "new.db"),
    ),
    Target(
        "calibration",
        lambda: [_alone("calibration.json", to_json(CALIBRATION))],
        lambda rng, tree: _text_or_value(rng, tree, "calibration.json"),
        _read_calibration,
    ),
)

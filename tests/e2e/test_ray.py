"""Ray: its train workers are ranks of one run, a merge on it is that without it, and its workers measure operators."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from card_recordings import record_journal
from click.testing import CliRunner
from many_ranks import make_summaries
from object_storage import Storage, object_storage
from operator_keys import key_for, tasks_of_keys
from present import present
from programs import environment, recorded, write_script
from synthetic import make_run

import gpuledger
from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError
from gpuledger.model.run_directory import MANIFEST, rank_directories
from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.measure.campaign import run_campaign
from gpuledger.ops.measure.measure import Progress
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.plan import missing_tasks
from gpuledger.ops.measure.ray_crew import RayCrew
from gpuledger.processes.ray_cluster import connected
from gpuledger.services.merges.merging import merge_runs
from gpuledger.services.merges.on_ray import NodeError, RankOrder, _receive, prepare_rank
from gpuledger.services.remote_runs import upload_run

LOST = """
import pathlib, time
pathlib.Path(__file__).with_name("started").touch()
time.sleep(600)
"""


TRAIN = """
import os, sys
import ray, torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

def train():
    model = prepare_model(torch.nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = 64 * (1 + ray.train.get_context().get_world_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(rows, 16)).sum().backward()
        optimizer.step()

if sys.argv[1] == "own":
    ray.init(include_dashboard=False, log_to_driver=False)
if sys.argv[1] == "variables":
    names = [name for name in os.environ if name.startswith("GPULEDGER_") or name == "PYTHONPATH"]
    ray.init(runtime_env={"env_vars": {name: os.environ[name] for name in names}})
results = RunConfig(storage_path=os.getcwd() + "/results")
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=results).fit()
sys.exit(7)
"""
INPUTS = [64 * 16 * 4, 128 * 16 * 4]
HEAD_CPUS = 3
MOST_S = 1200
"""Ray takes its time to start on a machine that is busy with other tests."""

pytestmark = pytest.mark.timeout(2 * MOST_S)


@dataclass(frozen=True)
class Ray:
    """A cluster of one node on this machine, to which this process is connected, and an object storage."""

    cluster: Any
    storage: Storage


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    library = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    needed = {"num_cpus": HEAD_CPUS, "include_dashboard": False, "include_log_monitor": False}
    with object_storage() as storage, pytest.MonkeyPatch.context() as patch:  # first: the nodes inherit the variables
        patch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # no cloud takes nodes away here
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # each node would start a worker for each processor
        cluster = Cluster(initialize_head=True, head_node_args=needed)
        try:
            library.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield Ray(cluster, storage)
        finally:
            library.shutdown()
            cluster.shutdown()


@contextmanager
def occupied_head() -> Iterator[Callable[[], None]]:
    """Occupy all processors of the first node, so that tasks go to another one. Yield a function that releases them."""
    import ray as library

    class Occupant:
        def is_ready(self) -> bool:
            return True

    occupant = library.remote(num_cpus=HEAD_CPUS)(Occupant).remote()
    assert library.get(occupant.is_ready.remote())
    try:
        yield lambda: library.kill(occupant)
    finally:
        library.kill(occupant)


def hosts(place: Path) -> list[Path]:
    """Return the runs of two hosts: ranks with and without tables, with and without summaries, one damaged."""
    first = make_run(place / "a.ledger", blocks=50, ranks=2)
    record_journal("lstm", first / "rank-2")
    second = make_summaries(place / "b.ledger", 2, 6)
    for number in (1, 0):
        (second / f"rank-{number}").rename(second / f"rank-{number + 3}")
    record_journal("gpt2", second / "rank-5")
    (second / "rank-6").mkdir()
    (second / "rank-6" / MANIFEST).write_text("[]", encoding="utf-8")
    return [first, second]


def files_of(run: Path) -> dict[str, bytes]:
    return {place.relative_to(run).as_posix(): place.read_bytes() for place in run.rglob("*") if place.is_file()}


def assert_same(one: Path, other: Path) -> None:
    """Check that two merged runs have the same files, and the same manifest apart from name, id and paths."""
    here, there = files_of(one), files_of(other)
    manifests = [json.loads(files.pop(MANIFEST)) for files in (here, there)]
    assert sorted(here) == sorted(there)
    assert [name for name in here if here[name] != there[name]] == []
    for manifest in manifests:
        del manifest["run_id"], manifest["name"]
        manifest["notes"] = [re.sub(r"\S+/(?=\w+\.ledger)", "", note) for note in manifest["notes"]]
    assert manifests[0] == manifests[1]


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    """Return a merge without Ray of runs at the same path, which are then as they were before."""
    kept = hosts(tmp_path / "hosts")
    shutil.copytree(tmp_path / "hosts", tmp_path / "before")
    merge_runs([str(run) for run in kept], str(tmp_path / "expected"))
    shutil.rmtree(tmp_path / "hosts")
    shutil.copytree(tmp_path / "before", tmp_path / "hosts")
    return tmp_path / "expected.ledger"


def test_a_merge_on_ray_is_the_merge_without_it(ray: Ray, expected: Path, tmp_path: Path) -> None:
    words = ["merge", str(tmp_path / "hosts"), "--out", str(tmp_path / "merged"), "--ray", ray.cluster.address]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "merged 6 ranks of 2 runs" in done.stderr
    assert "Ray" not in done.stderr
    assert [number for number, _ in rank_directories(expected)] == [0, 1, 2, 3, 4, 5]
    assert_same(expected, tmp_path / "merged.ledger")
    assert files_of(tmp_path / "hosts") == files_of(tmp_path / "before")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["before", "expected.ledger", "hosts", "merged.ledger"]


def test_ranks_in_object_storage_are_prepared_from_there(ray: Ray, expected: Path, tmp_path: Path) -> None:
    for host in "ab":
        upload_run(tmp_path / "before" / f"{host}.ledger", f"{ray.storage.url}/job/{host}.ledger")
    said: list[str] = []
    merged = gpuledger.merge([f"{ray.storage.url}/job"], str(tmp_path / "merged"), ray="auto", say=said.append)
    assert said == []
    assert_same(expected, merged.path)


def test_a_node_without_gpuledger_is_named_and_its_ranks_are_prepared_here(
    ray: Ray, expected: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden" / "gpuledger"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'gpuledger'\")")
    said: list[str] = []
    with occupied_head():
        node = ray.cluster.add_node(num_cpus=2, env_vars={"PYTHONPATH": str(hidden.parent)})
        try:
            merged = gpuledger.merge([str(tmp_path / "hosts")], str(tmp_path / "merged"), ray="auto", say=said.append)
        finally:
            ray.cluster.remove_node(node)
    assert said[0] == "Ray prepared 0 of 7 ranks."
    assert len(said) == 2
    assert said[1].startswith("Prepared in this process, because the tasks on Ray failed: rank-")
    assert "Reason: gpuledger is not installed (node " in said[1]
    assert_same(expected, merged.path)


def test_a_node_that_is_lost_loses_no_rank(ray: Ray, expected: Path, tmp_path: Path) -> None:
    hanging = tmp_path / "hanging" / "gpuledger"
    hanging.mkdir(parents=True)
    (hanging / "__init__.py").write_text(LOST)
    seen: list[bool] = []

    def lose(node: Any, release: Callable[[], None]) -> None:
        deadline_s = time.monotonic() + MOST_S
        while not (hanging / "started").exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        seen.append((hanging / "started").exists())
        ray.cluster.remove_node(node, allow_graceful=False)
        release()

    said: list[str] = []
    with occupied_head() as release:
        node = ray.cluster.add_node(num_cpus=2, env_vars={"PYTHONPATH": str(hanging.parent)})
        loser = threading.Thread(target=lose, args=(node, release))
        loser.start()
        merged = gpuledger.merge([str(tmp_path / "hosts")], str(tmp_path / "merged"), ray="auto", say=said.append)
        loser.join()
    assert seen == [True]
    assert said == []
    assert_same(expected, merged.path)


def test_a_damaged_rank_fails_as_without_ray_and_leaves_nothing(ray: Ray, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a.ledger", blocks=50, ranks=2)
    next((run / "rank-1" / "blocks").iterdir()).write_bytes(b"PAR1")
    messages = []
    for address in (None, "auto"):
        with pytest.raises(InputError) as refused:
            merge_runs([str(run)], str(tmp_path / "all"), ray=address)
        messages.append(refused.value.message)
    assert messages[0] == messages[1]
    assert [place.name for place in tmp_path.iterdir()] == ["a.ledger"]
    with pytest.raises(UsageError, match="already exists"):
        merge_runs([str(run)], str(run), ray="auto")


@pytest.mark.torch
@pytest.mark.parametrize("way", ["own", "variables"])
def test_the_workers_of_ray_train_are_ranks_of_one_run(ray: Ray, tmp_path: Path, way: str) -> None:
    """Of a program that starts Ray itself, and of one that gives its variables to the workers of a running cluster."""
    program = write_script(tmp_path, TRAIN)
    where = {"RAY_ADDRESS": "local" if way == "own" else ray.cluster.address, "RAY_TRAIN_V2_ENABLED": "1"}
    where["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(MOST_S)  # Ray starts later workers again, without end
    options = ("-q", "--out", "two", "--force")
    how: dict[str, Any] = {"options": options, "env": environment(**where), "timeout_s": MOST_S}
    for _ in range(3):
        ended = recorded([str(program), way], tmp_path, **how)
        assert ended.status == 7, ended.stderr.decode()
        if all(rank.manifest.signal != signal.SIGKILL for rank in gpuledger.load(tmp_path / "two.ledger").ranks):
            break  # Ray has not waited in vain for a worker to end, as on a busy machine
    run = gpuledger.load(tmp_path / "two.ledger")
    told = [(rank.number, present(rank.manifest.world), rank.manifest) for rank in run.ranks]
    assert [(number, world.rank, world.size) for number, world, _ in told] == [(0, 0, 2), (1, 1, 2)]
    assert [one.status for _, _, one in told] == ["closed", "closed"]
    assert [one.is_ended_by_parent for _, _, one in told] == [True, True]
    assert (
        min(one.steps_seen or 0 for _, _, one in told) >= 3
    )  # Ray kills its workers, so the last steps can be missing
    assert run.manifest.notes == ()
    ranks = present(build_rank_set(run))
    assert ranks.problems == ()
    assert list(ranks.matrix[[one.name for one in ranks.categories].index("input")]) == INPUTS


def order_for(run: Path, target: Path, rank: str) -> RankOrder:
    return RankOrder(str(run), (run / MANIFEST).read_text(encoding="utf-8"), rank, str(target))


def test_a_node_without_the_new_runs_folder_sends_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a.ledger", blocks=50, ranks=2)
    seen, unseen = tmp_path / "seen" / "a.ledger", tmp_path / "unseen" / "a.ledger"
    seen.mkdir(parents=True)
    assert prepare_rank(order_for(run, seen, "rank-1")) == {}
    order = order_for(run, unseen, "rank-1")
    files = prepare_rank(order)
    assert not unseen.exists()
    _receive(order, files)
    assert files_of(unseen) == files_of(seen)
    assert any(name.startswith("rank-1/rank_summary/") for name in files)
    for name in ("../out", "rank-0/manifest.json", "/etc/passwd"):
        with pytest.raises(InputError, match="is not the name of a file of rank-1"):
            _receive(order, {name: b""})


def test_a_node_with_another_run_at_the_path_or_another_version_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a.ledger", blocks=20, ranks=1)
    order = order_for(run, tmp_path / "all" / "a.ledger", "rank-0")
    other = json.dumps(json.loads(order.manifest) | {"run_id": "another"})
    for lacking in (replace(order, manifest=other), replace(order, source=str(tmp_path / "none.ledger"))):
        with pytest.raises(NodeError, match=r"the run .*\.ledger is not there"):
            prepare_rank(lacking)
    with pytest.raises(NodeError, match=r"is installed, but the merging process has 0\.0\.1"):
        prepare_rank(replace(order, version="0.0.1"))


def test_rays_workers_measure_and_come_back_when_one_is_killed(ray: Ray, tmp_path: Path) -> None:
    method = Method(target_frac=0.9, warm_up_ns=10_000, block_ns=10_000, least_blocks=2, most_blocks=3, energy=False)
    keys = [key_for(torch.ops.aten.relu.default, torch.ones(size)) for size in range(1, 7)]
    tasks = tasks_of_keys(keys)
    killed: list[int] = []
    with closing(open_database(tmp_path / "operators.db")) as database, connected(ray.cluster.address) as library:
        crew = RayCrew(library, "cpu", method)
        victim = library.get(crew.actors[0].process.remote())

        def kill_one(_progress: Progress) -> None:
            if not killed:
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)

        done = run_campaign(crew, database, lambda _: tasks, on_progress=kill_one, clock_ns=time.time_ns)
        assert killed == [victim]
        assert (done.measured, done.failed) == (6, 0)
        device = Device("cpu", crew.environments[0], 1, lambda: 0)
        assert missing_tasks(tasks, database, device, need_energy=False) == []
        assert len(database.records()) == 6 + done.repeated  # a busy processor drifts

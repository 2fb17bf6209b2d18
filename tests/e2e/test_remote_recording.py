"""``gpuledger run --out URL`` and ``gpuledger merge``: the program ends as without it, whatever the storage does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_storage import SCHEMES, Storage, object_storage
from programs import TRAIN, Ended, environment, execute, write_script
from quick import quick_gpuledger, recorded, recorded_alone

from gpuledger.model.run_directory import MANIFEST

pytestmark = pytest.mark.torch

CLIENTS = {"fsspec", "s3fs", "botocore", "gcsfs", "google.auth", "aiohttp"}
LOADED = f"print(sorted(name for name in {CLIENTS} if name in sys.modules))"
PROGRAM = f"{TRAIN}\nfor _ in range(4): step()\nimport sys\n{LOADED}\n"


@pytest.fixture
def storage() -> Iterator[Storage]:
    with object_storage() as served:
        yield served


def gpuledger(words: list[str], directory: Path) -> Ended:
    return execute([*quick_gpuledger(), *words], directory, environment())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("ending", "status", "record"),
    [
        ("sys.exit(7)", 7, recorded),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, recorded_alone),
    ],
)
def test_a_run_is_uploaded_after_the_program_has_ended(
    scheme: str, tmp_path: Path, ending: str, status: int, record: Callable[..., Ended]
) -> None:
    write_script(tmp_path, PROGRAM + "sys.stdout.flush()\n" + ending)
    with object_storage(scheme) as storage:
        ended = record(["train.py"], tmp_path, options=("--devices", "cpu", "--out", f"{storage.url}/job/host-a"))
        assert (ended.status, ended.stdout) == (status, b"[]\n")
        assert f"gpuledger: uploaded host-a.ledger to {storage.url}/job/host-a.ledger (" in ended.stderr.decode()
        assert "bucket type" not in ended.stderr.decode()  # gcsfs says this of a server on this machine
        shown = gpuledger(["show", f"{storage.url}/job"], tmp_path)
    assert shown.status == 0
    assert f"gpuledger report {storage.url}/job/host-a.ledger --open" in shown.stderr.decode()


def test_without_storage_the_local_run_stays_and_merge_uploads_it(storage: Storage, tmp_path: Path) -> None:
    write_script(tmp_path, PROGRAM + "sys.exit(7)")
    url, storage.left = f"{storage.url}/job/host-a", 0
    ended = recorded(["train.py"], tmp_path, options=("--devices", "cpu", "-q", "--out", url))
    lines = ended.stderr.decode().splitlines()
    assert (ended.status, ended.stdout) == (7, b"[]\n")
    assert lines[1] == "gpuledger: the program runs, and the upload is tried when it has ended"
    command = f"gpuledger merge host-a.ledger --out {url}.ledger"
    assert lines[-1] == f"  hint: The run is in host-a.ledger. Upload it with: {command}"
    assert (tmp_path / "host-a.ledger" / MANIFEST).is_file()
    storage.left = None
    merged = gpuledger(command.split()[1:], tmp_path)
    assert (merged.status, merged.stdout.decode()) == (0, f"{url}.ledger\n")
    assert f"job/host-a.ledger/{MANIFEST}" in storage.names()
    refused = recorded(["train.py"], tmp_path, options=("--devices", "cpu", "--out", url))
    assert (refused.status, refused.stdout) == (2, b"")
    assert "already exists" in refused.stderr.decode()


def test_repeats_are_uploaded_one_by_one(storage: Storage, tmp_path: Path) -> None:
    write_script(tmp_path, PROGRAM)
    options = ("--devices", "cpu", "-q", "--repeat", "2", "--out", f"{storage.url}/train")
    assert recorded(["train.py"], tmp_path, options=options).status == 0
    assert [name for name in storage.names() if name.count("/") == 1] == [
        f"train-1.ledger/{MANIFEST}",
        f"train-2.ledger/{MANIFEST}",
    ]
    unknown = gpuledger(["show", "nothing://bucket/train"], tmp_path)
    assert unknown.status == 2
    assert unknown.stderr.decode().startswith("gpuledger: error: nothing://bucket/train: Protocol not known")

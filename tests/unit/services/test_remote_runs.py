"""Runs in object storage: uploaded whole or not at all, read from a URL, and nothing is lost when the storage fails."""

from __future__ import annotations

import io
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.registry import _registry
from many_ranks import make_summaries
from object_storage import BUCKET, SCHEMES, Storage, object_storage
from synthetic import make_run

import gpuledger
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.model.run_directory import MANIFEST, choose_directory
from gpuledger.services.merges.merging import merge_runs
from gpuledger.services.remote_runs import LaterUpload, download_run, find_runs, later_upload, upload_run, uploaded_to
from gpuledger.services.runs import open_run, runs_inside

LARGE_BYTES = 6 << 20
"""gcsfs announces a file of at least 5 MiB before it sends it."""


@pytest.fixture(params=SCHEMES)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with object_storage(request.param) as served:
        yield served


def test_a_run_is_the_same_after_it_was_uploaded(storage: Storage, tmp_path: Path) -> None:
    local = make_run(tmp_path / "train.ledger", blocks=50, ranks=2)
    upload_run(local, f"{storage.url}/job/train.ledger")
    for url in (f"{storage.url}/job/train.ledger", f"{storage.url}/job/train", f"{storage.url}/job/"):
        run = open_run(url)
        assert run.name == "train"
        here, there = gpuledger.load(local), gpuledger.load(url)
        for rank in (0, 1):
            assert there.table("blocks", rank).equals(here.table("blocks", rank))
            assert there.rank(rank).manifest == here.rank(rank).manifest


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # aiohttp says it of gcsfs
def test_a_large_file_is_the_same_after_it_was_uploaded(storage: Storage, tmp_path: Path) -> None:
    local = make_summaries(tmp_path / "train.ledger", 1, 2)
    content = random.Random(0).randbytes(LARGE_BYTES)
    (local / "rank-0" / "large.bin").write_bytes(content)
    upload_run(local, f"{storage.url}/train.ledger")
    there = download_run(f"{storage.url}/train", tmp_path / "there")
    assert (there / "rank-0" / "large.bin").read_bytes() == content


def test_runs_of_several_hosts_are_merged_from_and_to_a_bucket(storage: Storage, tmp_path: Path) -> None:
    for host, first in (("a", 0), ("b", 2)):
        run = make_summaries(tmp_path / f"{host}.ledger", 2, 6)
        for number in (1, 0):
            (run / f"rank-{number}").rename(run / f"rank-{number + first}")
        upload_run(run, f"{storage.url}/job/{host}.ledger")
    urls = runs_inside(f"{storage.url}/job")
    assert urls == [f"{storage.url}/job/{host}.ledger" for host in "ab"]
    with uploaded_to(f"{storage.url}/all", force=False) as place:
        merge_runs(urls, place)
    assert [rank.number for rank in gpuledger.load(f"{storage.url}/all").ranks] == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="a folder of 2 runs, but one run is expected"):
        open_run(f"{storage.url}/job")


def test_the_same_rank_twice_names_both_urls(storage: Storage, tmp_path: Path) -> None:
    urls = [f"{storage.url}/{host}.ledger" for host in "ab"]
    for url in urls:
        upload_run(make_summaries(tmp_path / url[-8:], 1, 2), url)
    with pytest.raises(UsageError, match=rf"rank 0: is in {urls[0]} and in {urls[1]}"):
        merge_runs(urls, str(tmp_path / "all"))


def test_a_run_is_replaced_whole_and_only_if_forced(storage: Storage, tmp_path: Path) -> None:
    url = f"{storage.url}/train.ledger"
    upload_run(make_summaries(tmp_path / "old.ledger", 3, 2), url)
    with pytest.raises(UsageError, match="already exists"), uploaded_to(url, force=False):
        pytest.fail("refused before the block runs")
    with uploaded_to(url, force=True) as place:
        make_summaries(Path(place), 1, 2)
    assert [rank.number for rank in gpuledger.load(url).ranks] == [0]
    assert not [name for name in storage.names() if "rank-1" in name or "rank-2" in name]


def test_a_folder_that_is_not_a_run_loses_no_file(tmp_path: Path) -> None:
    there = tmp_path / "there.ledger"
    (there / "rank-7").mkdir(parents=True)
    for name in ("data.csv", "rank-7/manifest.json"):
        (there / name).write_text("{}")
    upload_run(make_summaries(tmp_path / "train.ledger", 1, 2), f"file://{there}")
    assert (there / "data.csv").read_text() == "{}"
    assert [rank.number for rank in gpuledger.load(there).ranks] == [0]


@pytest.mark.parametrize("requests", [0, 4, 8])
def test_a_connection_that_is_lost_while_uploading(storage: Storage, tmp_path: Path, requests: int) -> None:
    local = make_summaries(tmp_path / "train.ledger", 3, 2)
    url = f"{storage.url}/train.ledger"
    storage.left = requests
    said: list[str] = []
    LaterUpload(url, "train", finished=[local]).run(said.append, said.append)
    assert said[0].startswith(f"gpuledger: error: {url}: ")
    assert said[1:] == [
        f"  hint: The run is in {local}. Upload it with: gpuledger merge {local} --out {url}",
    ]
    assert len(gpuledger.load(local).ranks) == 3
    assert f"train.ledger/{MANIFEST}" not in storage.names()
    storage.left = None
    if requests == 8:
        with pytest.raises(InputError, match="was not uploaded completely"):
            gpuledger.load(url)
    LaterUpload(url, "train", finished=[local]).run(said.append, said.append)
    assert said[-1].startswith(f"gpuledger: uploaded {local} to {url} (10 files, ")
    assert len(gpuledger.load(url).ranks) == 3


def test_a_connection_that_is_lost_while_downloading(storage: Storage, tmp_path: Path) -> None:
    url = f"{storage.url}/train.ledger"
    upload_run(make_summaries(tmp_path / "train.ledger", 3, 2), url)
    storage.left = 5
    with pytest.raises(InputError, match=url) as lost:
        gpuledger.load(url)
    assert lost.value.hint is not None
    assert "connection" in lost.value.hint


def test_incomplete_runs_in_a_folder_are_named(storage: Storage, tmp_path: Path) -> None:
    run = make_summaries(tmp_path / "a.ledger", 1, 2)
    upload_run(run, f"{storage.url}/job/a.ledger")
    upload_run(run, f"{storage.url}/job/b.ledger")
    gone = f"job/b.ledger/{MANIFEST}"
    storage.filesystem.rm(f"{BUCKET}/{gone}")
    unread: list[str] = []
    assert find_runs(f"{storage.url}/job", unread) == [f"{storage.url}/job/a.ledger"]
    assert len(unread) == 1
    assert unread[0].startswith(f"{storage.url}/job/b.ledger: {MANIFEST} is missing")


def test_a_lost_connection_is_one_error_without_the_log_of_a_library(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(terminal))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest has some
    storage.left = 0
    with pytest.raises(InputError, match=f"{storage.url}/train: "):
        gpuledger.load(f"{storage.url}/train")
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("quick_children")
def test_storage_that_does_not_answer_is_reported_before_the_program_and_stops_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuledger.services.remote_runs.CHECK_S", 1)  # a client of Google's tries for half a minute
    storage.left = 0
    said: list[str] = []
    later_upload(f"{storage.url}/train").check(1, said.append)
    assert f"{storage.url}/train.ledger: " in said[0]
    assert "the upload is tried when it has ended" in said[1]


@pytest.mark.usefixtures("quick_children")
def test_a_run_that_exists_is_refused_before_the_program(storage: Storage, tmp_path: Path) -> None:
    upload_run(make_summaries(tmp_path / "a.ledger", 1, 2), f"{storage.url}/train-2.ledger")
    upload = later_upload(f"{storage.url}/train")
    said: list[str] = []
    with pytest.raises(UsageError, match=r"train-2.ledger: already exists"):
        upload.check(2, said.append)
    later_upload(f"{storage.url}/train", force=True).check(2, said.append)
    upload.check(1, said.append)
    assert said == []


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_another_host_uploaded_meanwhile_is_replaced_only_if_forced(
    storage: Storage, tmp_path: Path, force: bool
) -> None:
    url = f"{storage.url}/train.ledger"
    upload_run(make_summaries(tmp_path / "other.ledger", 2, 2), url)
    local = make_summaries(tmp_path / "train.ledger", 1, 2)
    said: list[str] = []
    LaterUpload(url, "train", force, [local]).run(said.append, said.append)
    assert (f"gpuledger: error: {url}: already exists" in said) is not force
    assert len(gpuledger.load(url).ranks) == (1 if force else 2)
    assert len(gpuledger.load(local).ranks) == 1


def test_no_such_run_and_no_such_bucket(storage: Storage) -> None:
    for url in (f"{storage.url}/none", f"{storage.scheme}://nobucket/none"):
        with pytest.raises(InputError, match="no such run"):
            gpuledger.load(url)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/.hidden", "s3://bucket/.."])
def test_a_url_without_a_name_of_a_run_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a run"):
        later_upload(url)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Protocol not known"):
        gpuledger.load("nothing://bucket/train")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match="fsspec is not installed") as missing:
        gpuledger.load("s3://bucket/train")
    assert missing.value.hint == "pip install 'gpuledger[remote]'"


@pytest.mark.parametrize("gone", ["fsspec", "gcsfs"])
def test_what_google_needs_is_named(monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    monkeypatch.delitem(_registry, "gs", raising=False)  # what a test before has loaded
    monkeypatch.setitem(sys.modules, gone, None)
    with pytest.raises(UsageError, match=gone) as missing:
        gpuledger.load("gs://bucket/train")
    assert missing.value.hint == "pip install 'gpuledger[remote]' gcsfs"


def test_other_commands_write_no_directory_that_is_named_as_a_url(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a URL, but this command writes a local directory"):
        choose_directory("s3://bucket/train", force=False, stem="train")


def test_files_of_other_programs_are_not_uploaded_and_links_are_refused(tmp_path: Path) -> None:
    local = make_summaries(tmp_path / "train.ledger", 1, 2)
    (local / ".hidden.tmp").write_text("half a file")
    url = f"file://{tmp_path}/far/away/train.ledger"
    upload_run(local, url)
    assert not (tmp_path / "far/away/train.ledger/.hidden.tmp").exists()
    assert len(gpuledger.load(url).ranks) == 1
    (local / "rank-0" / "blocks").symlink_to(tmp_path)
    with pytest.raises(GpuLedgerError, match="is a link"):
        upload_run(local, url)

"""Listings of object storage are untrusted: only names that a run's files have are downloaded, and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuledger.errors import InputError
from gpuledger.files.remote import RemoteFolder

ROOT = "bucket/train.ledger"


class Listing:
    """A file system that lists what a test says, and writes ``x`` for each file that is downloaded."""

    def __init__(self, entries: dict[str, dict[str, Any]]) -> None:
        self.entries = entries
        self.downloaded: list[str] = []

    def find(self, _root: str, *, detail: bool) -> dict[str, dict[str, Any]]:
        assert detail
        return self.entries

    def get(self, names: list[str], places: list[str]) -> None:
        self.downloaded += names
        for place in places:
            Path(place).write_text("x")


def folder(*names: str, **entry: object) -> tuple[RemoteFolder, Listing]:
    listing = Listing({name: {"type": "file", "size": 1} | entry for name in names})
    return RemoteFolder("s3://bucket/train.ledger", listing, ROOT), listing


@pytest.mark.parametrize(
    "name",
    [
        f"{ROOT}/../../evil",
        f"{ROOT}/rank-0/../../../evil",
        f"{ROOT}/./manifest.json",
        f"{ROOT}//etc/passwd",
        f"{ROOT}/rank-0//x",
        f"{ROOT}/.bashrc",
        f"{ROOT}/-rf",
        f"{ROOT}/a\\..\\b",
        f"{ROOT}/line\nbreak",
        f"{ROOT}/nul\0",
        f"{ROOT}/\x1b[2J",
        f"{ROOT}/{'x' * 300}",
        f"{ROOT}/{'/'.join('abcdefghi')}",
        "/etc/passwd",
        "bucket/other/manifest.json",
        "bucket/train.ledgerx/manifest.json",
        ROOT,
        "",
    ],
)
def test_names_that_no_run_has_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not the name of a file of a run") as refused:
        folder(f"{ROOT}/manifest.json", name)[0].files()
    assert "\x1b" not in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("entry", [{"type": "link"}, {"type": "other"}, {"type": "directory"}, {"islink": True}])
def test_other_kinds_of_files_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not a regular file"):
        folder(f"{ROOT}/manifest.json", **entry)[0].files()


def test_a_name_of_a_file_and_a_folder_is_refused() -> None:
    with pytest.raises(InputError, match="'rank-0' is both a file and a folder"):
        folder(f"{ROOT}/rank-0", f"{ROOT}/rank-0/manifest.json")[0].files()


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.files.remote.MOST_FILES", 2)
    with pytest.raises(InputError, match="3 files, but a run has at most 2"):
        folder(*(f"{ROOT}/{name}" for name in "abc"))[0].files()


def test_a_file_of_another_size_was_not_downloaded_completely(tmp_path: Path) -> None:
    place, listing = folder(f"{ROOT}/manifest.json", size=2)
    with pytest.raises(InputError, match=r"manifest\.json was not downloaded completely"):
        place.download(place.files(), tmp_path / "new")
    whole, listing = folder(f"{ROOT}/rank-0/manifest.json")
    whole.download(whole.files(), tmp_path / "other")
    assert (tmp_path / "other/rank-0/manifest.json").read_text() == "x"
    assert listing.downloaded == [f"{ROOT}/rank-0/manifest.json"]

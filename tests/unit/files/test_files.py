"""Files are written whole, where the user said, and through no link that the user did not name."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synthetic import make_run

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.files.writing import is_special, is_taken, output, refuse_links, replaced, write_whole
from gpuledger.live.watched_run import WatchedRun
from gpuledger.model.journal.journal import JournalWriter, Part
from gpuledger.model.manifest import RankManifest, read_json, write_rank_manifest
from gpuledger.model.run import read_run, write_table
from gpuledger.model.run_directory import LISTENING, write_json
from gpuledger.model.schema.tables import TABLES
from gpuledger.services import runs

SAFE = "the owner's own"
"""What a victim of a link holds before and after."""


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(SAFE)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "budget.toml").write_text("[limits]\npeak_allocated_bytes = '1 TiB'\n")
    return make_run(tmp_path / "a.ledger", blocks=20)


def unposted(directory: Path) -> Path:
    """Return a run with a journal that nobody has posted, as one that was copied from elsewhere."""
    path = directory / "b.ledger"
    JournalWriter(path / "rank-0" / "journal").write(Part())
    write_json(path / "manifest.json", {"schema_version": 1, "name": "b", "notes": [], "settings": {}})
    return path


# -- one file -------------------------------------------------------------------------------------------------------


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "a"
    with pytest.raises(TypeError), replaced(place) as stream:
        stream.writelines([b"half", "no bytes"])  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []
    write_whole(place, b"whole")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert place.read_bytes() == b"whole"


def test_a_link_at_the_place_is_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    place = tmp_path / "a"
    place.symlink_to(victim)
    write_whole(place, b"new")
    assert (place.is_symlink(), place.read_bytes(), victim.read_text()) == (False, b"new", SAFE)


def test_the_name_of_the_new_file_cannot_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for _ in range(2):
        with replaced(tmp_path / "a"):
            seen.append({one.name for one in tmp_path.iterdir() if one.name != "a"})
    assert len(seen[0]) == 1
    assert seen[0] != seen[1]
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f".{bytes(8).hex()}.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", b"")
    assert not (tmp_path / "victim").exists()


def test_permissions_of_a_replaced_file_stay(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.write_text("old")
    for mode in (0o600, 0o640, 0o4755):
        place.chmod(mode)
        write_whole(place, b"new")
        assert stat.S_IMODE(place.stat().st_mode) == mode & 0o777


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "none" / "a", b"")
    assert caught.value.filename == str(tmp_path / "none" / "a")


def test_directories_below_one_are_made_and_links_among_them_refused(tmp_path: Path) -> None:
    inside, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    inside.mkdir()
    elsewhere.mkdir()
    write_whole(inside / "a" / "b" / "file", b"1", inside=inside)
    assert (inside / "a" / "b" / "file").read_bytes() == b"1"
    (inside / "link").symlink_to(elsewhere)
    (inside / "a" / "link").symlink_to(elsewhere)
    (inside / "file").touch()
    for place in ("link/file", "a/link/file", "link/c/file", "file/file", "../elsewhere/file", "a/../../elsewhere/f"):
        with pytest.raises(InputError):
            write_whole(inside / place, b"2", inside=inside)
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(tmp_path: Path) -> None:
    inside, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (inside / "blocks").mkdir(parents=True)
    with replaced(inside / "blocks" / "part", inside=inside) as stream:
        (inside / "blocks").rename(inside / "aside")
        (inside / "blocks").symlink_to(elsewhere)
        stream.write(b"x")
    assert list(elsewhere.iterdir()) == []
    assert (inside / "aside" / "part").read_bytes() == b"x"


# -- somebody else's run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["rank-0/blocks", "rank-0/journal/more", "samples", "rank-1", "rank-0/manifest.json"])
def test_a_run_with_a_link_is_refused_and_what_it_leads_to_stays(tmp_path: Path, victim: Path, place: str) -> None:
    path, elsewhere = unposted(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (path / place).symlink_to(victim if place.endswith(".json") else elsewhere)
    done = invoke("show", path)
    assert done.exit_code == 3, done.output
    assert f"{place} is a link" in done.stderr
    assert victim.read_text() == SAFE
    assert list(elsewhere.iterdir()) == []
    with pytest.raises(InputError, match="is a link"):
        read_run(path)


def test_links_with_the_names_that_we_once_made_up_are_not_written_through(tmp_path: Path, victim: Path) -> None:
    path = unposted(tmp_path)
    for number in range(os.getpid(), os.getpid() + 50):
        (path / "rank-0" / f"manifest.json.{number}.tmp").symlink_to(victim)
    assert invoke("show", path).exit_code == 3
    assert victim.read_text() == SAFE


def test_tables_and_manifests_are_not_written_through_links(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "rank-0" / "spans").rename(run / "rank-0" / "aside")
    (run / "rank-0" / "spans").symlink_to(elsewhere)
    (run / "rank-7").symlink_to(elsewhere)
    table = TABLES["spans"].arrow_schema().empty_table()
    with pytest.raises(InputError):
        write_table(run / "rank-0", table, "spans")
    with pytest.raises(InputError):
        write_table(run / "rank-7", table, "spans")
    with pytest.raises(InputError):
        write_rank_manifest(run / "rank-7", RankManifest(schema_version=1))
    assert list(elsewhere.iterdir()) == []


def test_a_pipe_in_a_run_is_refused(run: Path) -> None:
    os.mkfifo(run / "rank-0" / "notes.txt")
    with pytest.raises(InputError, match=r"rank-0/notes\.txt is not a regular file"):
        runs.load(run)


def test_a_run_behind_a_link_that_the_user_names_is_read_and_posted(tmp_path: Path) -> None:
    (tmp_path / "link.ledger").symlink_to(unposted(tmp_path))
    assert runs.load(tmp_path / "link.ledger").ranks
    assert (tmp_path / "b.ledger" / "rank-0" / "manifest.json").is_file()


def test_asking_a_run_writes_through_no_link(tmp_path: Path, victim: Path) -> None:
    path = unposted(tmp_path)
    write_json(path / "manifest.json", {**read_json(path / "manifest.json"), "status": "running"})
    (path / LISTENING).touch()
    (path / "asked").symlink_to(tmp_path / "made")
    watched = WatchedRun(path)
    watched.ask()
    watched.close()
    assert not (tmp_path / "made").exists()
    refuse_links(path)


# -- what the user named ----------------------------------------------------------------------------------------------


def commands(run: Path) -> dict[str, list[str]]:
    """Return every command of a run that writes a file, up to the file's name."""
    check = ["check", str(run), "--budget", str(run.parent / "budget.toml")]
    return {
        "report": ["report", str(run), "-o"],
        "trace": ["trace", str(run), "-o"],
        "budget": ["budget", str(run), "-o"],
        "plot": ["plot", str(run), "-o"],
        "diff": ["diff", str(run), str(run), "--html"],
        "export json": ["export", str(run), "--to", "json", "-o"],
        "export parquet": ["export", str(run), "--to", "parquet", "--table", "blocks", "-o"],
        "export csv": ["export", str(run), "--to", "csv", "--table", "blocks", "-o"],
        "export snapshot": ["export", str(run), "--to", "torch-snapshot", "-o"],
        "check junit": [*check, "--junit"],
        "check markdown": [*check, "--markdown"],
        "group": ["group", str(run), "--write-keywords"],
        "sweep": ["ops", "sweep", "relu", "-o"],
    }


NAMES = sorted(commands(Path("/tmp/a.ledger")))


@pytest.mark.parametrize("name", NAMES)
def test_a_device_stays_a_device(name: str, run: Path, tmp_path: Path) -> None:
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    for words in ([*commands(run)[name], str(null), "--force"], [*commands(run)[name], str(null)]):
        done = invoke(*words)
        assert done.exit_code == 0, done.output
        assert null.is_char_device()
        assert null.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_gets_what_a_file_would(name: str, run: Path, tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe.png", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = invoke(*commands(run)[name], pipe)
    reader.join(20)
    assert done.exit_code == 0, done.output
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    file = tmp_path / "file.png"
    assert invoke(*commands(run)[name], file).exit_code == 0
    assert got == [file.read_bytes()]


@pytest.mark.parametrize("name", NAMES)
def test_a_link_stays_and_the_file_behind_it_is_replaced(name: str, run: Path, victim: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.png"
    (tmp_path / "between").symlink_to("victim")
    link.symlink_to(tmp_path / "between")
    victim.chmod(0o600)
    refused = invoke(*commands(run)[name], link)
    assert (refused.exit_code, victim.read_text()) == (2, SAFE)
    done = invoke(*commands(run)[name], link, "--force")
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    assert victim.read_bytes() != SAFE.encode()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_files_in_a_folder_that_the_user_named_are_written_through_no_link(run: Path, victim: Path) -> None:
    folder = run.parent / "folder"
    folder.mkdir()
    (folder / "blocks.csv").symlink_to(victim)
    done = invoke("export", run, "--to", "csv", "-o", folder, "--force")
    assert done.exit_code == 0, done.output
    assert victim.read_text() == SAFE
    assert (folder / "blocks.csv").stat().st_size > 0


def test_an_open_descriptor_is_written_into_where_it_stands(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as stream:
        stream.write(b"before ")
        stream.flush()
        with output(Path(f"/dev/fd/{stream.fileno()}")) as into:
            into.write(b"written")
        stream.write(b" after")
    assert (tmp_path / "a").read_bytes() == b"before written after"


def test_what_is_special_and_what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    found = {name: (is_special(tmp_path / name), is_taken(tmp_path / name)) for name in ("file", "none", "dangling")}
    assert found == {"file": (False, True), "none": (False, False), "dangling": (False, True)}
    assert (is_special(tmp_path / "pipe"), is_taken(tmp_path / "pipe")) == (True, False)
    with pytest.raises(OSError, match="symbolic links"):
        is_taken(tmp_path / "circle")


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as raised, replaced(tmp_path / "page.html"):
        raise full
    assert raised.value.filename == str(tmp_path / "page.html")
    other = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(OSError, match="Input/output") as raised, replaced(tmp_path / "page.html"):
        raise other  # of what is read, perhaps
    assert raised.value.filename is None
    assert list(tmp_path.iterdir()) == []

"""Logs of nvidia-smi: the five old ones to the digit, and every way in which such a file is not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from folders import DATA
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.formats.nvidia_smi import looks_like
from gpuledger.formats.readers import find_format, read_files
from gpuledger.model.imported import ImportedRun

MIB = 1 << 20
HEADER = "memory.used [MiB]\n"
FULL_HEADER = "timestamp, index, name, memory.used [MiB], memory.total [MiB], power.draw [W], utilization.gpu [%]\n"
FULL_ROW = "2020/11/05 12:34:56.789, 0, Tesla T4, 230 MiB, 15109 MiB, 28.54 W, 35 %\n"
FC6_MIB = 392
"""The weight of VGG's first fully connected layer: the old logs end with a peak of this over the plateau."""

OLD_LOGS = {
    # samples, leading zeros, trailing zeros, active, peak, peak before the fully connected layers, mean while active
    "direct": (2402, 410, 100, 1892, 622, 262, 218.7),
    "im2col": (723, 353, 99, 271, 622, 406, 199.9),
    "fft": (2254, 354, 100, 1800, 6247, 6247, 2182.1),
    "winograd": (2120, 357, 100, 1663, 4406, 4406, 2419.6),
    "cudnn": (720, 357, 100, 263, 622, 262, 195.6),
}


def read(place: Path, content: str | bytes, **options: str) -> ImportedRun:
    path = place / "log.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_files("nvidia-smi", (path,), "log", options)


def column(run: ImportedRun, name: str, device_idx: int | None = None) -> list[Any]:
    rows = run.ranks[0].tables["samples"].to_pylist()
    return [row[name] for row in rows if device_idx in (None, row["device_idx"])]


def used_mib(run: ImportedRun) -> list[float]:
    return [value / MIB for value in column(run, "used_bytes") if value is not None]


@pytest.mark.parametrize("name", OLD_LOGS)
def test_the_five_old_logs_to_the_digit(name: str) -> None:
    samples, leading, trailing, active, peak, before, mean = OLD_LOGS[name]
    run = read_files("nvidia-smi", (DATA / "nvidia_smi" / f"memory_{name}.txt",), name, {})
    values = used_mib(run)
    above = [number for number, value in enumerate(values) if value > 0]
    assert (len(values), above[0], len(values) - 1 - above[-1], len(above)) == (samples, leading, trailing, active)
    assert max(values) == peak
    plateau = 249 if name == "fft" else 230
    phase = next(n for n, value in enumerate(values) if value == plateau + FC6_MIB and values[n + 1 :].count(plateau))
    assert max(values[:phase]) == before
    assert sum(values) / len(above) == pytest.approx(mean, abs=0.0501)
    assert column(run, "t_ns") == [number * 10_000_000 for number in range(samples)]
    assert run.unread == ()
    assert any("10 ms" in note for note in run.ranks[0].notes)


def test_the_interval_is_asked_for(tmp_path: Path) -> None:
    run = read(tmp_path, HEADER + "1 MiB\n2 MiB\n3 MiB\n", interval="100ms")
    assert column(run, "t_ns") == [0, 100_000_000, 200_000_000]


@pytest.mark.parametrize("interval", ["0ms", "5 parsecs", "ten", "-5ms", ""])
def test_a_bad_interval_is_refused(tmp_path: Path, interval: str) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, HEADER + "1 MiB\n", interval=interval)


def test_every_column_finds_its_place_and_unit(tmp_path: Path) -> None:
    run = read(tmp_path, FULL_HEADER + FULL_ROW)
    (row,) = run.ranks[0].tables["samples"].to_pylist()
    assert row["used_bytes"] == 230 * MIB
    assert row["total_bytes"] == 15109 * MIB
    assert row["power_average_w"] == 28.54
    assert row["utilization_frac"] == pytest.approx(0.35)
    assert row["t_ns"] == 1_604_579_696_789_000_000
    assert row["energy_j"] is None
    assert row["temperature_c"] is None
    assert run.ranks[0].facts["devices"] == [{"name": "Tesla T4", "total_bytes": 15109 * MIB, "device_idx": 0}]


def test_nounits_and_noheader_say_the_same(tmp_path: Path) -> None:
    bare = ", ".join(word.split(" [")[0] for word in FULL_HEADER.strip().split(", "))
    nounits = read(tmp_path, bare + "\n" + "2020/11/05 12:34:56.789, 0, Tesla T4, 230, 15109, 28.54, 35\n")
    noheader = read(tmp_path, FULL_ROW, columns=bare.replace(" ", ""))
    whole = read(tmp_path, FULL_HEADER + FULL_ROW)
    for run in (nounits, noheader):
        assert run.ranks[0].tables["samples"].equals(whole.ranks[0].tables["samples"])


def test_without_header_columns_are_told_by_their_units(tmp_path: Path) -> None:
    run = read(tmp_path, "2020/11/05 12:34:56.789, 230 MiB, 28.54 W, 35 %, 1590 MHz\n")
    assert used_mib(run) == [230]
    assert column(run, "power_average_w") == [28.54]
    assert column(run, "sm_clock_mhz") == [1590]
    assert any("no header" in note for note in run.ranks[0].notes)
    assert used_mib(read(tmp_path, "230\n622\n")) == [230, 622]


@pytest.mark.parametrize("key", ["index", "uuid"])
def test_several_gpus_in_one_file_are_told_apart(tmp_path: Path, key: str) -> None:
    names = ["0", "1"] if key == "index" else ["GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2"]
    lines = [f"{names[n % 2]}, {n} MiB" for n in range(10)]
    run = read(tmp_path, f"{key}, memory.used [MiB]\n" + "\n".join(lines) + "\n")
    assert column(run, "used_bytes", 0) == [n * MIB for n in range(0, 10, 2)]
    assert column(run, "used_bytes", 1) == [n * MIB for n in range(1, 10, 2)]
    assert column(run, "t_ns", 1) == [n * 10_000_000 for n in range(5)]
    assert [device["device_idx"] for device in run.ranks[0].facts["devices"]] == [0, 1]


def test_an_index_is_nvidia_smis_own(tmp_path: Path) -> None:
    run = read(tmp_path, "index, memory.used [MiB]\n3, 5 MiB\n1, 7 MiB\n")
    assert column(run, "used_bytes", 3) == [5 * MIB]
    assert column(run, "used_bytes", 1) == [7 * MIB]


@pytest.mark.parametrize(
    "word", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "ERR!", ""]
)
def test_what_nvidia_smi_does_not_know_is_null(tmp_path: Path, word: str) -> None:
    run = read(tmp_path, f"memory.used [MiB], power.draw [W]\n230 MiB, {word}\n231 MiB, 30.00 W\n")
    assert column(run, "power_average_w") == [None, 30.0]
    assert used_mib(run) == [230, 231]
    assert run.unread == ()


@pytest.mark.parametrize("end", ["62", "622", "622 M", "622 Mi"])
def test_a_cut_last_line_is_named_and_the_rest_kept(tmp_path: Path, end: str) -> None:
    run = read(tmp_path, HEADER + "230 MiB\n231 MiB\n" + end)
    assert used_mib(run) == [230, 231]
    (line,) = run.unread
    assert "line 4: cut off" in line


def test_a_last_line_without_end_but_whole_is_kept(tmp_path: Path) -> None:
    run = read(tmp_path, HEADER + "230 MiB\n622 MiB")
    assert used_mib(run) == [230, 622]
    assert run.unread == ()


def test_a_cut_row_of_several_columns_is_named(tmp_path: Path) -> None:
    run = read(tmp_path, FULL_HEADER + FULL_ROW + FULL_ROW[:40])
    assert used_mib(run) == [230]
    assert "cut off" in run.unread[0]
    assert "expected 7" in run.unread[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("230", "2\x0030").encode() + b"\0" * 100,
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: ("\n\n" + text.replace("\n", "\n\n")).encode(),
        lambda text: (text + text).encode(),
    ],
    ids=["CRLF", "NUL bytes", "UTF-8 mark", "UTF-16 of PowerShell", "empty lines", "two logs in one file"],
)
def test_bytes_that_do_not_belong_there_are_passed_over(tmp_path: Path, change: Any) -> None:
    run = read(tmp_path, change(HEADER + "230 MiB\n622 MiB\n"))
    assert used_mib(run)[:2] == [230, 622]
    assert run.unread == ()


def test_nul_bytes_are_noted(tmp_path: Path) -> None:
    assert any("NUL" in note for note in read(tmp_path, HEADER + "\x00\x00230 MiB\n").ranks[0].notes)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, power.draw [W], memory.used [MiB]\n2020/11/05 12:34:56,789, 28,54 W, 230 MiB\n",
        "power.draw [W];memory.used [MiB]\n28,54 W;230 MiB\n",
        "power.draw, memory.used\n28,54, 230\n",
    ],
    ids=["units", "semicolons", "no units"],
)
def test_another_languages_decimal_comma(tmp_path: Path, text: str) -> None:
    run = read(tmp_path, text)
    assert column(run, "power_average_w") == [28.54]
    assert used_mib(run) == [230]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("\n\n", "only a header"),
        (HEADER, "only a header"),
        ("fan.speed [%]\n35 %\n", "imports none of its columns"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            "no valid nvidia-smi rows found",
        ),
    ],
)
def test_a_file_without_a_reading_is_refused_with_the_reason(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, content)


def test_a_message_between_readings_is_named(tmp_path: Path) -> None:
    text = HEADER + "230 MiB\nUnable to determine the device handle for GPU 0000:01:00.0: GPU is lost.\n231 MiB\n"
    run = read(tmp_path, text)
    assert used_mib(run) == [230, 231]
    assert len(run.unread) == 1
    assert "line 3" in run.unread[0]
    assert "Unable to determine" in run.unread[0]


def test_very_many_bad_lines_are_counted(tmp_path: Path) -> None:
    run = read(tmp_path, HEADER + "1 MiB\n" + "?\n" * 5000)
    assert len(run.unread) == 101
    assert run.unread[-1].endswith("and 4,900 more lines")


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    run = read(tmp_path, "memory.used [MiB], fan.speed [%], pstate\n1 MiB, 35 %, P0\n")
    assert used_mib(run) == [1]
    assert any("fan.speed, pstate" in note for note in run.ranks[0].notes)


def test_used_bytes_follow_from_free_ones(tmp_path: Path) -> None:
    run = read(tmp_path, "memory.total [MiB], memory.reserved [MiB], memory.free [MiB]\n1000 MiB, 100 MiB, 250 MiB\n")
    assert used_mib(run) == [650]


def test_times_that_step_back_are_put_in_order(tmp_path: Path) -> None:
    rows = [f"2020/10/25 0{hour}:59:59.000, {hour} MiB\n" for hour in (2, 1, 3)]
    run = read(tmp_path, "timestamp, memory.used [MiB]\n" + "".join(rows))
    assert used_mib(run) == [1, 2, 3]
    assert any("go backwards" in note for note in run.ranks[0].notes)


def test_columns_that_name_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gpuledger imports none of these columns"):
        read(tmp_path, "230\n", columns="fan.speed")


def test_several_files_are_ranks_and_a_bad_one_is_named(tmp_path: Path) -> None:
    good, empty, missing = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"
    good.write_text(HEADER + "1 MiB\n")
    empty.write_text("")
    run = read_files("nvidia-smi", (missing, good, empty, good), "logs", {})
    assert [rank.number for rank in run.ranks] == [0, 1]
    assert [line.partition(": ")[0] for line in run.unread] == [str(missing), str(empty)]


@pytest.mark.parametrize(
    ("head", "like"),
    [
        (HEADER + "0 MiB\n", True),
        ("0 MiB\n0 MiB\n", True),
        ("2020/11/05 12:34:56.789, 230 MiB\n", True),
        (FULL_ROW, False),
        ("230\n231\n", False),
        ("DIRECT, 1, TOTAL, 29.9\n", False),
        ("tag,12.5\n", False),
        ("[mem] Allocate 4 MB GPU memory (x).\n", False),
        ("a.b, c.d\n", False),
        ("", False),
        ("\x80\x04\x95", False),
    ],
)
def test_only_a_log_looks_like_one(tmp_path: Path, head: str, like: bool) -> None:
    assert looks_like(tmp_path / "log.txt", head.encode("latin-1")) is like


def test_content_tells_the_format(tmp_path: Path) -> None:
    log = tmp_path / "whatever.dat"
    log.write_text(HEADER + "1 MiB\n")
    assert find_format(log) == "nvidia-smi"
    assert find_format(tmp_path) == "nvidia-smi"


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("memory.used [MiB]", "-5 MiB"),
        ("memory.used [MiB]", "9" * 40 + " MiB"),
        ("index", "99999999999"),
        ("temperature.gpu", "1e9"),
        ("clocks.sm [MHz]", "99999999999 MHz"),
        ("clocks_throttle_reasons.active", "0xFFFFFFFFFFFFFFFF"),
        ("timestamp", "9999/01/01 00:00:00.000"),
        ("timestamp", "2020/13/45 00:00:00.000"),
        ("memory.used [MiB]", "5 parsecs"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_line(tmp_path: Path, name: str, cell: str) -> None:
    run = read(tmp_path, f"{name}, power.draw [W]\n{cell}, 1.00 W\n[N/A], 2.00 W\n")
    assert column(run, "power_average_w") == [2.0]
    assert "line 2" in run.unread[0]
    assert name.split(" ")[0] in run.unread[0]


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=50), st.sampled_from([" MiB", ""]), st.booleans())
def test_any_series_comes_back(tmp_path_factory: pytest.TempPathFactory, mib: list[int], unit: str, crlf: bool) -> None:
    end = "\r\n" if crlf else "\n"
    text = (HEADER.strip() + end) + "".join(f"{value}{unit}{end}" for value in mib)
    assert used_mib(read(tmp_path_factory.mktemp("log"), text)) == mib


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, with_header: bool
) -> None:
    place = tmp_path_factory.mktemp("log")
    told, used_bytes = "", []
    try:
        used_bytes = column(read(place, HEADER.encode() * with_header + content), "used_bytes")
    except GpuLedgerError as error:
        told = error.message
    assert str(place) in told or (not told and all(isinstance(value, int | None) for value in used_bytes))

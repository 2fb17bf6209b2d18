"""``gpuledger group`` and ``show --unknown`` as a user and a script see them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from quick import quick_python
from random_runs import Life, block_rows, written
from synthetic import make_run

from gpuledger.analyze.memory.entries import Entry
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.memory.unknown import list_unknown
from gpuledger.cli.main import main
from gpuledger.model.run import read_run
from gpuledger.report.text.group_table import entry_label

AMOUNT = re.compile(r"(?:< )?([\d,]+\.\d+)  +(?:< )?\d+\.\d %")
GROUP_KEYS = {
    "schema_version", "rank", "device_idx", "device_name", "instant", "allocated_bytes", "untrackable_bytes",
    "untrackable", "overlaps", "notes",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one.ledger", blocks=600)
    make_run(place / "two.ledger", ranks=2, blocks=300)
    make_run(place / "cpu.ledger", cuda=False, blocks=300)
    make_run(place / "hostile.ledger", hostile_names=True, blocks=300)
    return place


def ask(*words: object, columns: int | None = None) -> Result:
    env = {"COLUMNS": str(columns) if columns else None}
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def document(*words: object) -> dict[str, Any]:
    result = ask(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def tables(text: str) -> list[list[str]]:
    """Return the lines of each dictionary's table."""
    return [part.splitlines() for part in re.split(r"^by .*\n", text, flags=re.MULTILINE)[1:]]


def amount(line: str) -> float:
    found = AMOUNT.search(line)
    assert found, line
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("name", ["one", "cpu", "hostile"])
def test_the_groups_of_a_table_sum_to_its_total_and_entries_to_their_group(runs: Path, name: str, top: int) -> None:
    for lines in tables(ask("group", runs / name, "-n", top).stdout):
        rows = [line for line in lines if AMOUNT.search(line)]
        heads = [place for place, line in enumerate(rows) if not line.startswith("  ")]
        sizes = [amount(rows[place]) for place in heads]
        assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.05 * len(sizes))
        for first, following in pairwise(heads):
            inner = [amount(line) for line in rows[first + 1 : following]]
            assert len(inner) <= top + 1 or rows[first].startswith("Untrackable")
            assert not inner or sum(inner) == pytest.approx(amount(rows[first]), abs=0.05 * (len(inner) + 1))


def test_an_entry_is_named_by_its_module_and_tensor_beside_its_category(runs: Path) -> None:
    lines = ask("group", runs / "one", "-n", 1000).stdout.splitlines()
    names = {one["name"] for group in document("group", runs / "one")["layer"] for one in group["entries"]}
    assert names
    assert not [line for line in lines if any(name in line for name in names)]
    rows = {tuple(re.split(r"  +", line.strip())[:2]) for line in lines if line.startswith("  ")}
    for name in names - {"rounding:::"}:
        category, module, _, tensor = name.split(":")
        labels = (tensor, f"{module} {tensor}", f"{module or '(outside modules)'} (unnamed)")
        assert rows & {(label, category) for label in labels}, name
    assert not [line for line in ask("group", runs / "one", "-n", 0).stdout.splitlines() if "category" in line]


@pytest.mark.parametrize(
    ("entry", "label"),
    [
        (Entry("", "weight", "a.0", "", "", 1, 1, "a.0.weight"), "a.0.weight"),
        (Entry("", "input", "Net", "", "", 1, 1, "x"), "Net x"),
        (Entry("", "activation", "a.0", "loss", "", 1, 1, ""), "a.0 (Linear) (unnamed) [loss]"),
        (Entry("", "activation", "", "", "", 1, 1, "losses[*]"), "losses[*]"),
        (Entry("", "temporary", "", "", "", 1, 1, ""), "(outside modules) (unnamed)"),
        (Entry("", "rounding", "", "", "", 1, 1, ""), "(rounding)"),
        (Entry("fwd:conv:x", "other", "", "", "fwd:conv:x", 1, 1, "fwd:conv:x"), "fwd:conv:x"),
    ],
)
def test_the_label_of_an_entry(entry: Entry, label: str) -> None:
    assert entry_label(entry, {"a.0": "Linear"}) == label


def test_json_holds_every_byte_once_per_dictionary_and_is_never_cut(runs: Path) -> None:
    found = document("group", runs / "one", "-n", 1)
    assert set(found) == GROUP_KEYS | {"layer", "data structure"}
    for name in ("layer", "data structure"):
        groups = found[name]
        assert [set(group) for group in groups] == [{"group", "bytes", "blocks", "entries"}] * len(groups)
        assert sum(group["bytes"] for group in groups) == found["allocated_bytes"]
        for group in groups:
            assert sum(entry["bytes"] for entry in group["entries"]) == group["bytes"]
            sizes = [entry["bytes"] for entry in group["entries"]]
            assert sizes == sorted(sizes, reverse=True)
    assert max(len(group["entries"]) for group in found["layer"]) > 1
    assert found["untrackable_bytes"] == sum(line["bytes"] for line in found["untrackable"]["lines"])
    assert [one["group"] for one in found["overlaps"]["layer"]]


def test_the_groups_are_those_of_show(runs: Path) -> None:
    for words in (["--at", "end"], ["--step", 2], ["--at", "300ms", "--device", 0]):
        shown, grouped = document("show", runs / "one", *words), document("group", runs / "one", *words)
        assert grouped["instant"] == shown["instant"]
        assert grouped["allocated_bytes"] == shown["allocated_bytes"]
        weights = next(group["bytes"] for group in grouped["data structure"] if group["group"] == "Weights")
        assert weights == sum(one["bytes"] for one in shown["breakdown"] if one["category"] == "weight")


def test_several_ranks_are_all_there(runs: Path) -> None:
    found = document("group", runs / "two")
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert found["allocated_bytes"] == max(one["allocated_bytes"] for one in found["ranks"])
    assert "ranks" not in document("group", runs / "two", "--rank", 1)
    assert ask("group", runs / "two").stdout.count("by layer") == 2


def test_expected_is_gib_where_it_is_bare(runs: Path) -> None:
    found = document("group", runs / "one", "--reported-memory", "20")
    assert found["untrackable_bytes"] == (20 << 30) - found["allocated_bytes"]
    assert found["untrackable"] == {
        "source": "--reported-memory",
        "lines": [],
        "driver_bytes": None,
        "with_driver_bytes": None,
    }


def test_expected_below_the_sum_is_said_and_nothing_is_negative(runs: Path) -> None:
    result = ask("group", runs / "one", "--reported-memory", "1MiB", "-n", 0)
    assert result.exit_code == 0
    assert "--reported-memory 1.0 MiB is" in result.stderr
    assert "less than the sum of the entries" in result.stderr
    assert "Untrackable" not in result.stdout
    assert "-" not in "".join(AMOUNT.findall(result.stdout))
    assert document("group", runs / "one", "--reported-memory", "1MiB")["untrackable_bytes"] is None


def test_cpu_tensors_have_nothing_untrackable(runs: Path) -> None:
    assert document("group", runs / "cpu")["untrackable_bytes"] is None
    assert "Untrackable" not in ask("group", runs / "cpu").output


def test_a_file_of_the_users_own(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_text('[parts]\n"Heads & co" = ["re:(^|[:.])head[:.]"]\nNone = ["no such name"]\n')
    found = document("group", runs / "one", "--keywords", tmp_path / "k.toml")
    assert set(found) == GROUP_KEYS | {"parts"}
    heads, none, others = found["parts"]
    assert (heads["group"], none, others["group"]) == (
        "Heads & co",
        {"group": "None", "bytes": 0, "blocks": 0, "entries": []},
        "Others",
    )
    assert all(re.search("(^|[:.])head[:.]", entry["name"]) for entry in heads["entries"])
    assert not any(re.search("(^|[:.])head[:.]", entry["name"]) for entry in others["entries"])
    text = ask("group", runs / "one", "--keywords", tmp_path / "k.toml").stdout
    assert "empty: None" in text


def test_an_old_setme_gives_dictionaries_and_the_expected_sum(runs: Path, tmp_path: Path) -> None:
    setme = 'layer_kw_dict = {"Head": ["head"]}\ndata_struct_kw_dict = {"W": ["weight:"]}\nexpected_sum = 30\n'
    (tmp_path / "SETME.py").write_text(setme)
    found = document("group", runs / "one", "--keywords", tmp_path / "SETME.py")
    assert found["untrackable_bytes"] == (30 << 30) - found["allocated_bytes"]
    given = document("group", runs / "one", "--keywords", tmp_path / "SETME.py", "--reported-memory", "40")
    assert given["untrackable_bytes"] == found["untrackable_bytes"] + (10 << 30)
    (tmp_path / "SETME.py").write_text(setme.replace('{"Head": ["head"]}', '{"untouched"}'))
    noted = ask("group", runs / "one", "--keywords", tmp_path / "SETME.py", "-n", 0)
    assert "layer_kw_dict is an empty template" in noted.stderr


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ('[layer]\nA = ["re:("]\n', 3, "line 2"),
        ("[layer]\nA = []\n", 3, "line 2"),
        ("top = 1\n", 3, "line 1"),
        (None, 3, "No such file"),
    ],
)
def test_a_wrong_file_ends_the_command_with_its_line(
    runs: Path, tmp_path: Path, content: str | None, code: int, words: str
) -> None:
    if content is not None:
        (tmp_path / "k.toml").write_text(content)
    result = ask("group", runs / "one", "--keywords", tmp_path / "k.toml")
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert "hint: " in result.stderr


@pytest.mark.parametrize("name", ["one", "cpu", "hostile"])
def test_a_proposed_file_groups_the_run_it_came_from(runs: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "proposed.toml"
    assert ask("group", runs / name, "--write-keywords", file).exit_code == 0
    found = document("group", runs / name, "--keywords", file)
    structure = {group["group"]: group["bytes"] for group in found["data structure"]}
    assert structure.get("Others", 0) == 0
    assert sum(group["bytes"] for group in found["layer"]) == found["allocated_bytes"]
    refused = ask("group", runs / name, "--write-keywords", file)
    assert (refused.exit_code, "already exists" in refused.stderr) == (2, True)
    again = ask("group", runs / name, "--write-keywords", "-")
    assert again.stdout == file.read_text(encoding="utf-8")
    assert ask("group", runs / name, "--write-keywords", file, "--force").exit_code == 0


def test_hostile_names_reach_the_terminal_escaped_and_json_as_they_are(runs: Path) -> None:
    text = ask("group", runs / "hostile", columns=100).stdout
    assert not {"\x00", "\u202e", "\t"} & set(text)
    names = {e["name"] for group in document("group", runs / "hostile")["layer"] for e in group["entries"]}
    assert any("\x00" in name for name in names)


# What has no name yet


def life(requested: int, category: str = "other", module: int = -1, name: int = -1, before: bool = False) -> Life:
    return Life(requested, 0, category, "between", module, name, 0, before, 0, None, None)


STACKS = [
    (0, "/usr/lib/python3.12/site-packages/torch/nn/functional.py", 10, "pad"),
    (1, "/home/me/train.py", 41, "build_mask"),
    (2, "/home/me/train.py", 90, "<module>"),
]


def test_unknown_is_what_has_no_module_name_or_scope_most_bytes_first() -> None:
    drawn = [life(10), life(400, module=1), life(300, name=1), life(20), life(1000, "input"), life(7, before=True)]
    rows = block_rows(drawn)
    rows[3]["scope_id"] = 2
    rows[0]["step"] = 3
    with written(rows) as rank:
        found = list_unknown(rank, resolve_instant(rank, "end"))
    assert [(one.bytes, one.category) for one in found.items] == [(1000, "input"), (10, "other"), (7, "other")]
    assert (found.bytes, found.blocks, found.allocated_bytes) == (1017, 3, 1737)
    assert "has no stacks" in found.items[0].advice
    assert all("--stacks" in one.advice for one in found.items[:2])
    assert not any("--steps" in one.advice for one in found.items)
    assert "before the recording began" in found.items[2].advice


def test_a_stack_leads_to_the_line_of_the_program_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from random_runs import to_table

    from gpuledger.model.run import write_table
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.unknown_text import FRAMES, unknown_lines

    rows = block_rows([life(1 << 20), life(1 << 20), life(50)])
    rows[0]["stack_id"] = rows[1]["stack_id"] = 0
    frames = [
        {"stack_id": 0, "frame_idx": k, "file": file, "line": line, "function": function}
        for k, file, line, function in STACKS
    ]
    with written(rows) as rank:
        write_table(rank.directory, to_table("stacks", frames), "stacks")
        found = list_unknown(rank, resolve_instant(rank, "end"))
    first = found.items[0]
    assert (first.bytes, first.blocks) == (2 << 20, 2)
    assert [frame.own for frame in first.stack] == [False, True, True]
    assert first.advice == 'with gpuledger.scope("build_mask"): around line 41 of train.py'
    text = "\n".join(unknown_lines(found, 1, Terminal()))
    assert "torch/nn/functional.py:10  pad" in text
    assert text.index("train.py:41  build_mask") < text.index("train.py:90")
    assert "… 1 more, 50 B" in text
    deep = replace(first, stack=first.stack[:1] * (FRAMES + 1))
    lines = "\n".join(unknown_lines(replace(found, items=(deep,)), 1, Terminal()))
    assert "… 1 more frame" in lines
    assert "frames" not in lines


@pytest.mark.parametrize(
    ("tag", "unknown"),
    [("unknown:a.cc+12:b.cc+3:Alloc", True), ("<unk>:_head_grad_0", True), ("untagged", True), ("in_arg:w", False)],
)
def test_an_old_tag_that_says_unknown_is_unknown(tag: str, unknown: bool) -> None:
    from random_runs import to_table

    from gpuledger.model.run import write_table

    with written(block_rows([life(10, name=0)]), recorder="mxnet") as rank:
        write_table(rank.directory, to_table("names", [{"name_id": 0, "name": tag}]), "names")
        found = list_unknown(rank, resolve_instant(rank, "end"))
    assert [one.tag for one in found.items] == ([tag] if unknown else [])


@pytest.mark.parametrize(("name", "unknown"), [("train.py:12 forward", True), ("my tensor", False)])
def test_a_line_is_no_name_for_a_block_of_a_snapshot(name: str, unknown: bool) -> None:
    from random_runs import to_table

    from gpuledger.model.run import write_table

    with written(block_rows([life(10, name=0)]), recorder="torch-snapshot") as rank:
        write_table(rank.directory, to_table("names", [{"name_id": 0, "name": name}]), "names")
        found = list_unknown(rank, resolve_instant(rank, "end"))
    assert ["gpuledger run" in one.advice for one in found.items] == [True] * unknown


def test_show_unknown_on_the_command_line(runs: Path) -> None:
    found = document("show", runs / "one", "--unknown", "-n", 1)
    assert found["unknown_bytes"] == sum(one["bytes"] for one in found["unknown"])
    assert found["unknown_blocks"] == sum(one["blocks"] for one in found["unknown"])
    assert {"category", "phase", "step", "tag", "bytes", "blocks", "stack", "advice"} == set(found["unknown"][0])
    sizes = [one["bytes"] for one in found["unknown"]]
    assert sizes == sorted(sizes, reverse=True)
    rank = read_run(runs / "one.ledger").rank()
    assert found["unknown_bytes"] == list_unknown(rank, resolve_instant(rank)).bytes
    text = ask("show", runs / "one", "--unknown", "-n", 1, columns=80).stdout
    assert text.count("→") == 1
    assert [one["rank"] for one in document("show", runs / "two", "--unknown")["ranks"]] == [0, 1]


@pytest.mark.parametrize("words", [["--by", "module"], ["--depth", 2]])
def test_unknown_refuses_what_it_cannot_do(runs: Path, words: list[object]) -> None:
    result = ask("show", runs / "one", "--unknown", *words)
    assert (result.exit_code, result.stdout) == (2, "")


def test_where_everything_has_a_name_it_is_said() -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.unknown_text import unknown_lines

    with written(block_rows([life(10, module=1)])) as rank:
        found = list_unknown(rank, resolve_instant(rank, "end"))
    assert "all of it has a name" in unknown_lines(found, 5, Terminal())[-1]


@pytest.mark.torch
def test_a_scope_gives_the_unknown_a_name(tmp_path: Path) -> None:
    program = """import torch, gpuledger
with gpuledger.record(out="run", devices="cpu"):
    before = torch.zeros(1024)
    with gpuledger.scope("caches"), gpuledger.scope("of keys"):
        named = torch.zeros(4096)
"""  # in a process of its own: no tensors of other tests die while it records
    subprocess.run([quick_python(), "-c", program], cwd=tmp_path, check=True, timeout=600)
    run = tmp_path / "run.ledger"
    unknown = document("show", run, "--unknown")
    assert [one["bytes"] for one in unknown["unknown"]] == [4096]
    (tmp_path / "k.toml").write_text('[scope]\n"My caches" = ["*:caches/of keys:*"]\n')
    groups = document("group", run, "--keywords", tmp_path / "k.toml")["scope"]
    assert [(group["group"], group["bytes"]) for group in groups] == [("My caches", 16384), ("Others", 4096)]

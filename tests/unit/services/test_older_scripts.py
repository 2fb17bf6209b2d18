"""What the scripts beside the older profilers computed, computed here again as they did, is what our commands print."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main

GIB, MIB = 1 << 30, 1 << 20
CSV, SETME = DATA / "mxnet" / "mxnet_gpu_memory_profiler.csv", DATA / "mxnet" / "SETME.py"
KEYWORDS = (
    *("in_arg", "arg_grad", "aux_state", "optimizer", "workspace", "rnn", "embed", ":_mul", "rsqrt", ":mean", "att"),
    *(":split", "logit", "swapaxes", "square", "softmax", "sequencereverse", "dot", ":broadcast", "zeros", "sum"),
    *("transpose", ":dropout", "slice", "cnn", "arange", "fullyconnected", "sequencemask", "conv", "activation"),
    *("reshape", "transformer", "relu", "pool", "bn", ":id", ":fc", "_sc", "_equal_scalar", "(source)", "(target)"),
    *("(target_label)", "(data)", "dropout", "untagged", "warning!,ctx_source_unclear"),
)
"""The list of memory_analysis.py: the first that is a part of a tag wins; it had "dot" twice."""
NAMES = {"bn": "Batch Norm", "in_arg": "Weights", "arg_grad": "Weight Gradients", "workspace": "Workspace"}
TAGS = (
    "forward_features:stage1_unit1_bn1",
    "forward_features:stage2_unit1_bn2",
    "in_arg:encoder_embed_weight",
    "arg_grad:encoder_embed_weight",
    "aux_state:stage1_unit1_bn1_moving_mean",
    "_optimizer_weight_update_3",
    "workspace:cudnn_rnn-inl.h",
    "workspace,linalg_impl",
    "forward_features:encoder_rnn_l0_t0",
    "forward_features:decoder_att_dot0",
    "forward_features:logit0",
    "forward_features:x_dropout",
    "softmax_label",
    "source",
    "target_label",
    "untagged",
    "warning!,ctx_source_unclear",
    "cpu_to_gpu:comm",
)


def ask(*words: object) -> Result:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


def document(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(*words, "--json").stdout)
    return found


# -- profile_analyzer.py, two_bar_plot.py and pprint_top_entries.py of MXNet's profiler --------------------------------


def setme() -> dict[str, Any]:
    """Return the variables of the SETME.py."""
    body = ast.parse(SETME.read_text("utf-8")).body
    return {one.targets[0].id: ast.literal_eval(one.value) for one in body if isinstance(one, ast.Assign)}  # type: ignore[attr-defined]


def analyze(keywords: dict[str, list[str]]) -> dict[str, tuple[float, list[tuple[str, float]]]]:
    """Return each category's GiB and entries, as ``profile_analyzer.analyze`` did."""
    found: dict[str, list[tuple[str, float]]] = {name: [] for name in (*keywords, "Others")}
    for line in CSV.read_text("utf-8").splitlines():
        tag, size = line.rsplit(",", 1)
        names = [name for name, words in keywords.items() if any(word in tag for word in words)]
        for name in names or ["Others"]:
            found[name].append((tag, float(size) / 1024))
    return {name: (sum(size for _, size in entries), entries) for name, entries in found.items()}


@pytest.mark.parametrize(
    ("variable", "dictionary"), [("layer_kw_dict", "layer"), ("data_struct_kw_dict", "data structure")]
)
def test_groups_are_those_of_the_analyzer_with_the_same_setme(variable: str, dictionary: str) -> None:
    expected = {name: size for name, (size, entries) in analyze(setme()[variable]).items() if entries}
    groups = document("group", CSV, "--keywords", SETME)[dictionary]
    found = {row["group"]: row["bytes"] / GIB for row in groups if row["blocks"]}
    assert found == pytest.approx(expected, abs=1e-9)  # six digits of MiB in the file


def test_untrackable_is_that_of_the_analyzer() -> None:
    total = sum(size for size, _ in analyze({}).values())
    for words, given in (((), setme()["expected_sum"]), (("--reported-memory", "2.25"), 2.25)):
        found = document("group", CSV, "--keywords", SETME, *words)
        assert found["untrackable_bytes"] / GIB == pytest.approx(given - total, abs=1e-9)


def test_two_bars_are_drawn_from_the_csv_and_the_setme(tmp_path: Path) -> None:
    picture = tmp_path / "mxnet_gpu_memory_profile.svg"
    assert ask("plot", CSV, "--kind", "two-bar", "--keywords", SETME, "-o", picture).stdout == f"{picture}\n"
    text = picture.read_text("utf-8")
    for name in ("Parameters", "Data Entries", "Workspace", "RNN", "Batch norm", "Others", "Untrackable", "1.5 GiB"):
        assert name in text


def test_the_largest_entries_are_those_that_pprint_top_entries_printed() -> None:
    expected = analyze(setme()["data_struct_kw_dict"])
    groups = document("group", CSV, "--keywords", SETME, "-n", 20)["data structure"]
    for row in groups:
        top = sorted(expected[row["group"]][1], key=lambda entry: (-entry[1], entry[0]))[:20]
        assert [entry["name"] for entry in row["entries"]] == [tag for tag, _ in top]
    text = ask("group", CSV, "--keywords", SETME, "-n", 20).stdout
    assert all(tag in text for tag, _ in expected["Data Entries"][1])


# -- memory_analysis.py of TBD's patched MXNet -------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of one training step, as the patched allocator wrote it beside the program's own output."""
    path = tmp_path / "sockeye.log"
    lines = [f"[mem] Allocate {1024 * (place + 3)} bytes GPU memory ({tag}).\n" for place, tag in enumerate(TAGS)]
    path.write_text("[INFO:root] Sockeye 1.12.3\n" + "".join(lines) + "[mem] finished binding.\n", encoding="utf-8")
    return path


def memory_analysis(path: Path) -> tuple[dict[str, tuple[float, int]], list[str]]:
    """Return keyword -> (bytes, count) and the tags without a keyword, as ``memory_analysis.py`` did."""
    sums: dict[str, tuple[float, int]] = {}
    unknown = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if "Allocate" not in line:
            continue
        words = line.split(" ")
        tag, size = words[6], float(words[2])
        keyword = next((keyword for keyword in KEYWORDS if keyword in tag), None)
        if keyword is None:
            unknown.append(tag)
            continue
        before, count = sums.get(keyword, (0.0, 0))
        sums[keyword] = (before + size, count + 1)
    return sums, unknown


def test_categories_and_counts_are_those_of_memory_analysis(log: Path) -> None:
    assert len(KEYWORDS) == 46
    expected, _ = memory_analysis(log)
    groups = {
        row["group"]: (row["bytes"], row["blocks"]) for row in document("group", log, "--keywords", "tbd")["category"]
    }
    found = sorted(value for name, value in groups.items() if value[1] and name != "Others")
    assert found == sorted(expected.values())
    assert {word: groups[name] for word, name in NAMES.items()} == {word: expected[word] for word in NAMES}


def test_the_summary_of_memory_analysis(log: Path) -> None:
    sums, unknown = memory_analysis(log)
    shown = document("show", log, "--by", "category")
    size = {row["category"]: row["bytes"] for row in shown["breakdown"]}
    weights = sum(sums[word][0] for word in ("in_arg", "arg_grad"))
    assert size["weight"] + size["gradient"] == weights
    lines = [int(line.split()[2]) for line in log.read_text().splitlines() if "Allocate" in line]
    assert shown["allocated_bytes"] == sum(lines) == sum(value for value, _ in sums.values()) + lines[-1]
    blocks = sum(row["blocks"] for row in shown["breakdown"])
    assert blocks == sum(count for _, count in sums.values()) + len(unknown) == len(TAGS)


def test_unknown_tags_are_listed_and_in_the_total(log: Path) -> None:
    """The old script printed ``UNKNOWN TAG: (x).`` and left them out of its total."""
    _, unknown = memory_analysis(log)
    assert unknown == ["(cpu_to_gpu:comm).\n"]
    found = document("group", log, "--keywords", "tbd")
    (others,) = [row for row in found["category"] if row["group"] == "Others"]
    assert [entry["name"] for entry in others["entries"]] == ["cpu_to_gpu:comm"]
    assert sum(row["bytes"] for row in found["category"]) == found["allocated_bytes"]


# -- process_log_file of ml-operator-profiling -------------------------------------------------------------------------


def test_the_power_log_of_an_operator_is_read_with_the_names_of_its_columns(tmp_path: Path) -> None:
    path = DATA / "operator_energy" / "current_A30.log"
    columns = "timestamp,utilization.gpu,power.draw,memory.used,memory.total"
    run = tmp_path / "a30"
    ask("import", "nvidia-smi", path, "--columns", columns, "--out", run)
    watts = [float(line.split(", ")[2]) for line in path.read_text("utf-8").splitlines()]
    query = "select count(*) as n, avg(power_average_w) as mean, max(used_bytes) as used from samples"
    (row,) = json.loads(ask("sql", run, query, "--json").stdout)
    assert row["n"] == len(watts)
    assert row["mean"] == pytest.approx(sum(watts) / len(watts))
    assert row["used"] == 4396 * MIB
    picture = tmp_path / "power.png"
    ask("plot", run, "--metric", "power", "-o", picture)
    assert picture.stat().st_size > 1000


# -- what the pages say is better --------------------------------------------------------------------------------------


def test_a_tag_in_two_groups_was_counted_twice() -> None:
    keywords = {"RNN": ["rnn"], "Parameters": ["in_arg", "arg_grad", "optimizer_state"]}
    total = sum(size for size, _ in analyze({}).values())
    assert round(100 * sum(size for size, _ in analyze(keywords).values()) / total) == 108
    found = document("group", CSV)
    assert sum(row["bytes"] for row in found["layer"]) == found["allocated_bytes"]


def test_the_log_of_faster_r_cnn_broke_the_older_script() -> None:
    log = DATA / "tbd" / "rcnn.log"
    with pytest.raises(IndexError):
        memory_analysis(log)
    shown = document("show", log)
    assert shown["allocated_bytes"] == 15 * MIB + 1000
    megabytes = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("Allocate")]
    assert sum(map(int, megabytes)) == 18


def test_lines_that_threads_broke_were_lost() -> None:
    log = DATA / "tbd" / "sockeye.log"
    found = document("group", log, "--keywords", "tbd")["category"]
    assert sum(row["blocks"] for row in found) == log.read_text("utf-8").count("Allocate") == 9


def test_a_log_without_its_last_letters_broke_the_older_analyzer(tmp_path: Path) -> None:
    text = (DATA / "nvidia_smi" / "memory_cudnn.txt").read_text("utf-8")
    path = tmp_path / "memory_cudnn.txt"
    path.write_text(text.rstrip("\n") + "\n ", encoding="utf-8")
    with pytest.raises(ValueError, match="could not convert"):
        [float(row.split(" ")[0]) for row in path.read_text().split("\n")[1:]]
    path.write_text(text.rstrip("\n").removesuffix(" MiB"), encoding="utf-8")
    found = CliRunner().invoke(main, ["show", str(path)])
    assert found.exit_code == 3
    assert "719 samples" in found.stdout
    assert "line 721: " in found.stderr

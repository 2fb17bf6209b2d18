"""The logs of older profilers in groups: the old tags, the old dictionaries, and Untrackable as they knew it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuledger.cli.main import main

MIB = 1 << 20
AMEND_BYTES = 1_074_790_400
FINAL_CSV = f'''"Attribute Name","Requested Size","Device","Actual Size","Reuse?"
"<unk>:_head_grad_0","16777216","0","16777216","0"
"init:_random_uniform","33554432","0","33554432","1"
"resource:temp_space (sample_op.h +365)","8","0","4096","0"
"symbol:arg_grad:unknown","8388608","0","8388608","0"
"hybridsequential:dense0:in_arg:weight","5120","0","8192","0"
"nvml_amend","{AMEND_BYTES}","0","{AMEND_BYTES}","0"
'''
FIRST_CSV = """in_arg:embed_weight,12.5
arg_grad:embed_weight,12.5
data_entry:rnn_l0_oedge0,100.25
unknown:a.cc+3:b.cc+9:Alloc,0.5
workspace:fc,1
"""
TBD_LOG = """[mem] Allocate 4194304 bytes GPU memory (forward_features:stage1_unit1_bn1).
[mem] Allocate 1048576 bytes GPU memory (in_arg:conv0_weight).
[mem] Allocate 2097152 bytes GPU memory (source).
Allocate 4 MB GPU memory (proposal_workspace).
"""


def grouped(place: Path, name: str, text: str, *words: object) -> dict[str, Any]:
    (place / name).write_text(text)
    result = CliRunner().invoke(main, ["group", str(place / name), "--json", *map(str, words)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sizes(found: dict[str, Any], dictionary: str) -> dict[str, int]:
    return {group["group"]: group["bytes"] for group in found[dictionary] if group["bytes"]}


def test_the_final_csv_in_mxnets_words_with_its_amendment_as_untrackable(tmp_path: Path) -> None:
    found = grouped(tmp_path, "gpu_memory_profile-pid_77.csv", FINAL_CSV)
    assert found["untrackable_bytes"] == AMEND_BYTES
    actual = 16_777_216 + 33_554_432 + 4_096 + 8_388_608 + 8_192
    assert found["allocated_bytes"] == actual
    assert sizes(found, "data structure") == {
        "Others": 33_554_432,
        "Data Entries": 16_777_216,
        "Parameters": 8_388_608 + 5_120,
        "Workspace": 8,
        "Rounding": 4_088 + 3_072,
    }
    assert sum(sizes(found, "layer").values()) == actual
    names = {entry["name"] for group in found["layer"] for entry in group["entries"]}
    assert "hybridsequential:dense0:in_arg:weight" in names
    assert "nvml_amend" not in names


def test_the_first_csv_with_its_setme_and_what_nvidia_smi_said(tmp_path: Path) -> None:
    (tmp_path / "SETME.py").write_text(
        'layer_kw_dict = {"RNN": ["rnn"], "Embed": ["embed"]}\n'
        'data_struct_kw_dict = {"Parameters": ["in_arg", "arg_grad", "optimizer_state"],'
        ' "Data Entries": ["data_entry"], "Workspace": ["workspace"]}\n'
        'memory_profile_path = "/nowhere"\nexpected_sum = 0.625\n'
    )
    found = grouped(tmp_path, "mxnet.csv", FIRST_CSV, "--keywords", tmp_path / "SETME.py")
    assert sizes(found, "layer") == {"RNN": 100.25 * MIB, "Embed": 25 * MIB, "Others": 1.5 * MIB}
    assert sizes(found, "data structure") == {
        "Data Entries": 100.25 * MIB,
        "Parameters": 25 * MIB,
        "Workspace": 1 * MIB,
        "Others": 0.5 * MIB,
    }
    assert found["untrackable_bytes"] == (640 - 126.75) * MIB


def test_the_tbd_log_in_its_own_categories(tmp_path: Path) -> None:
    found = grouped(tmp_path, "sockeye.log", TBD_LOG, "--keywords", "tbd")
    assert sizes(found, "category") == {
        "Batch Norm": 4 * MIB,
        "Workspace": 4 * MIB,
        "Source": 2 * MIB,
        "Weights": 1 * MIB,
    }


@pytest.mark.parametrize("kind", ["two-bar", "categories"])
def test_old_logs_are_drawn(tmp_path: Path, kind: str) -> None:
    for name, text in {"a.csv": FINAL_CSV, "b.csv": FIRST_CSV, "c.log": TBD_LOG}.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv", "c.log")]
    result = CliRunner().invoke(main, ["plot", *files, "--kind", kind, "-o", str(tmp_path / "x.png")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "x.png").stat().st_size > 10_000

"""Every byte is in exactly one group: the first that fits; what no entry holds is what the balance says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_recordings import RECORDED, post_recording
from folders import RECORDINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Life, block_rows, lives, written

from gpuledger.analyze.keywords.keyword_file import (
    OTHERS,
    Dictionary,
    Keyword,
    KeywordGroup,
    parse_keyword,
    parse_keyword_file,
)
from gpuledger.analyze.keywords.keyword_groups import group_entries, group_rank
from gpuledger.analyze.keywords.keyword_proposal import propose_keywords
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.entries import Entry, classes_by_path, list_entries
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.model.accounts import ROUNDING
from gpuledger.model.run import read_run
from gpuledger.services.grouping import read_keywords

MIB = 1 << 20

LETTERS = "ab:."
names = st.text(LETTERS, max_size=6)
entries_of_names = st.lists(
    st.builds(lambda name, size: Entry(name, "other", "", "", name, size, 1), name=names, size=st.integers(0, 1 << 50)),
    max_size=20,
).map(tuple)
group_lists = st.lists(
    st.lists(st.text(LETTERS, min_size=1, max_size=2), min_size=1, max_size=3), min_size=1, max_size=5
)


def dictionary(words: list[list[str]]) -> Dictionary:
    groups = [
        KeywordGroup(f"g{place}", tuple(Keyword("name", "substring", word) for word in group))
        for place, group in enumerate(words)
    ]
    return Dictionary("d", tuple(groups))


@given(entries=entries_of_names, words=group_lists)
def test_each_entry_is_in_the_first_group_that_fits_and_in_no_other(
    entries: tuple[Entry, ...], words: list[list[str]]
) -> None:
    (found,) = group_entries(entries, (dictionary(words),), {})
    fits = {
        entry: [f"g{k}" for k, group in enumerate(words) if any(w in entry.name for w in group)] for entry in entries
    }
    for group in found.groups:
        assert all((fits[entry] or [OTHERS])[0] == group.name for entry in group.entries)
        assert group.bytes == sum(entry.bytes for entry in group.entries)
    held = [entry for group in found.groups for entry in group.entries]
    assert sorted(held, key=id) == sorted(entries, key=id)
    assert [(one.entry, one.group, list(one.also)) for one in found.overlaps] == [
        (entry, fits[entry][0], fits[entry][1:]) for entry in entries if len(fits[entry]) > 1
    ]


@given(entries=entries_of_names, words=group_lists)
def test_groups_are_the_largest_first_and_others_last(entries: tuple[Entry, ...], words: list[list[str]]) -> None:
    (found,) = group_entries(entries, (dictionary(words),), {})
    own = [group.bytes for group in found.groups if group.name != OTHERS]
    assert own == sorted(own, reverse=True)
    assert [group.name for group in found.groups].index(OTHERS) == len(own) if len(own) < len(found.groups) else True
    assert len(own) == len(words)


@settings(max_examples=12)
@given(drawn=lives, at=st.sampled_from(("peak", "end")))
def test_entries_sum_to_the_allocated_bytes_and_so_does_every_dictionary(drawn: list[Life], at: str) -> None:
    shipped = tuple(one for name in ("layer", "data_structure", "tbd") for one in read_keywords(name).dictionaries)
    with written(block_rows(drawn)) as rank:
        for device in device_indices(rank):
            breakdown = break_down(rank, resolve_instant(rank, at, device))
            grouping = group_rank(rank, shipped, at=at, device_idx=device)
            assert grouping.allocated_bytes == breakdown.allocated_bytes
            for one in grouping.dictionaries:
                assert sum(group.bytes for group in one.groups) == breakdown.allocated_bytes
            structure = {e.category: e.bytes for e in books_by_category(grouping.dictionaries[1].groups)}
            sizes: dict[str, int] = {}
            for account in breakdown.accounts:
                sizes[account.category] = sizes.get(account.category, 0) + account.bytes
            assert {k: v for k, v in structure.items() if v} == {k: v for k, v in sizes.items() if v}


def books_by_category(groups: Any) -> list[Entry]:
    """Return one entry per category, its bytes summed over ``groups``; each group but Others holds one category."""
    sizes: dict[str, int] = {}
    for group in groups:
        assert group.name == OTHERS or len({entry.category for entry in group.entries}) <= 1
        for entry in group.entries:
            sizes[entry.category] = sizes.get(entry.category, 0) + entry.bytes
    return [Entry("", category, "", "", "", size, 1) for category, size in sizes.items()]


def one_block(**columns: Any) -> dict[str, Any]:
    life = Life(1000, 24, "weight", "forward", -1, -1, 0, False, 0, None, None)
    return block_rows([life])[0] | columns


@pytest.mark.parametrize(
    ("columns", "recorder", "name"),
    [
        ({}, "cuda-history", "weight:::"),
        ({"module_id": 3, "name_id": 1}, "cuda-history", "weight:a.b.c::name 1"),
        ({"module_id": 3, "scope_id": 2}, "dispatch", "weight:a.b.c:name 2:"),
        ({"name_id": 1}, "mxnet", "name 1"),
        ({"name_id": 1, "module_id": 3}, "tbd-log", "name 1"),
        ({}, "mxnet", "weight:::"),
        ({"name_id": 1}, "memory-csv", "weight:::name 1"),
    ],
)
def test_the_full_name_of_an_entry(columns: dict[str, Any], recorder: str, name: str) -> None:
    with written([one_block(**columns)], recorder=recorder) as rank:
        first, second = list_entries(rank, resolve_instant(rank))
        assert (first.name, first.bytes, first.blocks) == (name, 1000, 1)
        assert (second.name, second.bytes, second.category) == ("rounding:::", 24, ROUNDING)


def test_classes_are_those_of_the_module_and_of_its_holders_but_the_outermost() -> None:
    with written([one_block()]) as rank:
        classes = classes_by_path(rank)
    assert classes["a.b.c"] == {"c", "b", "a"}
    assert classes["a"] == {"a"}
    assert classes["Net"] == {"t"}


def test_a_ring_of_modules_ends() -> None:
    class Ring:
        def table(self, *_: object) -> Any:
            return self

        def to_pylist(self) -> list[dict[str, Any]]:
            return [
                {"module_id": k, "parent_id": (k + 1) % 3, "path": f"p{k}", "class_name": f"C{k}"} for k in range(3)
            ]

    assert classes_by_path(Ring()) == {f"p{k}": {"C0", "C1", "C2"} for k in range(3)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "classes", "group"),
    [
        ("transformer.h.0.attn.c_attn", {"Conv1D", "GPT2Attention", "GPT2Block"}, "Attention"),
        ("transformer.h.0.mlp.c_fc", {"Conv1D", "GPT2MLP", "GPT2Block"}, "Feed-forward"),
        ("transformer.wte", {"Embedding"}, "Embedding"),
        ("transformer.ln_f", {"LayerNorm"}, "Normalization"),
        ("lm_head", {"Linear"}, "Output head"),
        ("model.layers.3.self_attn.q_proj", {"Linear", "LlamaAttention", "LlamaDecoderLayer"}, "Attention"),
        ("model.layers.3.mlp.gate_proj", {"Linear", "LlamaMLP", "LlamaDecoderLayer"}, "Feed-forward"),
        ("model.norm", {"LlamaRMSNorm"}, "Normalization"),
        ("bert.encoder.layer.2.intermediate.dense", {"Linear", "BertIntermediate", "BertLayer"}, "Feed-forward"),
        ("bert.encoder.layer.2.attention.output.dense", {"Linear", "BertSelfOutput", "BertAttention"}, "Attention"),
        ("layer1.0.conv1", {"Conv2d", "Bottleneck"}, "Convolution"),
        ("layer1.0.bn1", {"BatchNorm2d", "Bottleneck"}, "Normalization"),
        ("layer1.0.relu", {"ReLU", "Bottleneck"}, "Activation function"),
        ("avgpool", {"AdaptiveAvgPool2d"}, "Pooling"),
        ("fc", {"Linear"}, "Output head"),
        ("features.0.1", {"GELU"}, "Activation function"),
        ("lstm", {"LSTM"}, "Recurrent"),
        ("drop", {"Dropout"}, "Dropout"),
        ("criterion", {"CrossEntropyLoss"}, "Loss"),
        ("fusion", {"Linear"}, "Linear"),
        ("blocks.1", {"Block"}, "Block"),
        ("encoder.layers.0.linear1", {"Linear", "TransformerEncoderLayer"}, "Feed-forward"),
        ("encoder.layers.0", {"TransformerEncoderLayer", "ModuleList"}, "Block"),
        ("encoder.layers.encoder_layer_0.mlp.0", {"Linear", "MLPBlock"}, "Feed-forward"),
        ("decoder.block.0.layer.2.DenseReluDense.wi", {"Linear", "T5DenseActDense", "T5LayerFF"}, "Feed-forward"),
        ("decoder.final_layer_norm", {"T5LayerNorm", "T5Stack"}, "Normalization"),
        ("model.layers.0.mlp.experts", {"MixtralExperts", "MixtralSparseMoeBlock"}, "Feed-forward"),
        ("cls.predictions.transform.dense", {"Linear", "BertPredictionHeadTransform"}, "Output head"),
        ("embed_out", {"Linear"}, "Output head"),
        ("decoder", {"Linear"}, "Output head"),
        ("BertForMaskedLM", {"BertForMaskedLM"}, "Loss"),
        ("LlamaForCausalLM", {"LlamaForCausalLM"}, "Loss"),
        ("GPT2LMHeadModel", {"GPT2LMHeadModel"}, "Loss"),
        ("NeuMF", {"NeuMF"}, "Model"),
        ("", set(), "(outside modules)"),
        ("gate", {"Gate"}, OTHERS),
    ],
)
def test_the_layers_of_known_models(path: str, classes: set[str], group: str) -> None:
    entry = Entry(f"activation:{path}::", "activation", path, "", "", 1, 1)
    (found,) = group_entries((entry,), read_keywords("layer").dictionaries, {path: frozenset(classes)})
    assert [one.name for one in found.groups if one.entries] == [group]


@pytest.mark.parametrize("name", RECORDED)
def test_others_are_at_most_5_percent_of_recorded_models(name: str, tmp_path: Path) -> None:
    """GPT-2, a ResNet, an LSTM and a GAN, as an H200 recorded them."""
    rank = post_recording(name, tmp_path / name)
    grouping = group_rank(rank, read_keywords("layer", "data_structure").dictionaries)
    for one in grouping.dictionaries:
        others = sum(group.bytes for group in one.groups if group.name == OTHERS)
        assert others <= 0.05 * grouping.allocated_bytes


def test_a_transformer_is_divided_into_its_parts(tmp_path: Path) -> None:
    grouping = group_rank(post_recording("gpt2", tmp_path / "gpt2"), read_keywords("layer").dictionaries)
    shares = {group.name: group.bytes / grouping.allocated_bytes for group in grouping.dictionaries[0].groups}
    found = {name: round(100 * share) for name, share in shares.items() if share > 0.01}
    assert found == {
        "Feed-forward": 43,
        "Loss": 32,
        "Attention": 13,
        "Embedding": 6,
        "Block": 4,
        "Output head": 2,
    }


def test_memory_outside_modules_with_a_name_is_no_group_s() -> None:
    entry = Entry("activation:::feature maps", "activation", "", "", "", 1, 1)
    (found,) = group_entries((entry,), read_keywords("layer").dictionaries, {})
    assert [one.name for one in found.groups if one.entries] == [OTHERS]


@pytest.mark.parametrize(
    ("tag", "group"),
    [
        ("in_arg:source_target_embed_weight", "Weights"),
        ("arg_grad:encoder_rnn_l0_i2h_weight", "Weight Gradients"),
        ("aux_state:bn_data_moving_mean", "Auxiliary State"),
        ("_optimizer_weight_update_3", "Optimizer State"),
        ("workspace,linalg_impl", "Workspace"),
        ("forward_features:stage1_unit1_bn1", "Batch Norm"),
        ("forward_features:dropout0", "Dropout"),
        ("forward_features:x_dropout", "Dropout (other)"),
        ("forward_features:cnn_dropout", "CNN Layer"),
        ("softmax_label", "SoftMax"),
        ("source", "Source"),
        ("(target)", "Target"),
        ("target_label", "Target Label"),
        ("data", "Data"),
        ("untagged", "Unknown (From Python Side)"),
        ("warning!,ctx_source_unclear", "Unknown (From C++ side)"),
        ("cpu_to_gpu:comm", OTHERS),
    ],
)
def test_tags_fall_where_the_tbd_scripts_put_them(tag: str, group: str) -> None:
    (found,) = group_entries((Entry(tag, "other", "", "", tag, 1, 1),), read_keywords("tbd").dictionaries, {})
    assert [one.name for one in found.groups if one.entries] == [group]


@pytest.mark.parametrize(
    ("tag", "layer", "structure"),
    [
        ("in_arg:rnn_l0_i2h_weight", "RNN", "Parameters"),
        ("optimizer_state:embed_weight", "Embed", "Parameters"),
        ("data_entry:att_dot_oedge0", OTHERS, "Data Entries"),
        ("head_grad:data_entry:x", OTHERS, "Data Entries"),
        ("workspace:fully_connected-inl.h", OTHERS, "Workspace"),
        ("hybridsequential:dense0:in_arg:weight", "Fully Connected", "Parameters"),
        (
            "hybridsequential:dense0:activation0:hybridsequential_dense0_activation0_fwd",
            "Fully Connected",
            "Data Entries",
        ),
        ("resource:cudnn_dropout_state (dropout-inl.h +256)", "Dropout", "Workspace"),
        ("init:_random_uniform", OTHERS, OTHERS),
    ],
)
def test_tags_of_every_mxnet_version_are_known(tag: str, layer: str, structure: str) -> None:
    entry = Entry(tag, "other", "", "", tag, 1, 1)
    found = group_entries((entry,), read_keywords("mxnet").dictionaries, {})
    assert [[one.name for one in each.groups if one.entries] for each in found] == [[layer], [structure]]


def test_untrackable_is_the_sum_of_the_device_lines(tmp_path: Any) -> None:
    from synthetic import load_run

    rank = load_run(tmp_path / "r", blocks=500).rank()
    for step in (None, 2):
        grouping = group_rank(rank, read_keywords("layer").dictionaries, step=step)
        balance = build_balance(rank, None, "peak", step)
        inside = sum(line.bytes or 0 for line in balance.lines if line.level == 1 and line.name != "allocated")
        driver = next(line.bytes or 0 for line in balance.lines if line.name == "driver")
        assert grouping.instant == balance.instant
        assert grouping.untrackable.bytes == inside == sum(one.bytes or 0 for one in grouping.untrackable.lines)
        assert grouping.total_bytes == balance.used_bytes
        assert grouping.untrackable.driver_bytes == driver
        assert grouping.untrackable.with_driver_bytes == inside + driver


def test_untrackable_of_neumf_on_the_h200_is_used_less_allocated_and_both_figures_are_named() -> None:
    """The old definition: what nvidia-smi calls used, less the sum of the entries."""
    rank = read_run(RECORDINGS / "passes" / "neumf-training.ledger").rank()
    grouping = group_rank(rank, read_keywords("data_structure").dictionaries)
    found = grouping.untrackable
    assert found.bytes is not None
    assert found.with_driver_bytes is not None
    assert round(found.bytes / MIB, 1) == 1061.6
    assert round(found.with_driver_bytes / MIB, 1) == 1676.7
    balance = build_balance(rank)
    assert balance.used_bytes == found.bytes + grouping.allocated_bytes
    (note,) = [note for note in grouping.notes if note.startswith("Untrackable is")]
    assert "1,061.6 MiB" in note
    assert "1,676.7 MiB" in note


def test_expected_takes_the_place_of_the_balance_and_may_be_too_small(tmp_path: Any) -> None:
    from synthetic import load_run

    rank = load_run(tmp_path / "r", blocks=500).rank()
    layer = read_keywords("layer").dictionaries
    allocated = group_rank(rank, layer).allocated_bytes
    more = group_rank(rank, layer, expected_bytes=allocated + 5)
    assert (more.untrackable.bytes, more.untrackable.lines, more.notes) == (5, (), ())
    assert group_rank(rank, layer, expected_bytes=allocated).untrackable.bytes == 0
    less = group_rank(rank, layer, expected_bytes=allocated - (5 << 20))
    assert (less.untrackable.bytes, less.total_bytes) == (None, allocated)
    assert "5.0 MiB less than the sum of the entries" in less.notes[0]


def test_untrackable_is_absent_where_nothing_tells_it(tmp_path: Any) -> None:
    from synthetic import load_run

    cpu = group_rank(load_run(tmp_path / "cpu", blocks=300, cuda=False).rank(), read_keywords("layer").dictionaries)
    assert (cpu.untrackable.bytes, cpu.notes) == (None, ())
    with written([one_block()]) as rank:
        unread = group_rank(rank, read_keywords("layer").dictionaries)
    assert unread.untrackable.bytes is None
    assert "PyTorch used 512 B more than the entries: fragmented 512 B." in unread.notes[0]


@settings(max_examples=12)
@given(drawn=lives)
def test_a_proposed_file_takes_every_module_once(drawn: list[Life]) -> None:
    with written(block_rows(drawn)) as rank:
        entries = list_entries(rank, resolve_instant(rank, "end"))
        file = parse_keyword_file(propose_keywords(entries), "proposed") if entries else None
        classes = classes_by_path(rank)
    for one in group_entries(entries, file.dictionaries, classes) if file else ():
        assert not one.overlaps
        left = [entry for group in one.groups if group.name == OTHERS for entry in group.entries]
        assert all(one.dictionary == "layer" and not entry.module and entry.bytes >= 0 for entry in left)


def test_a_module_without_bytes_of_its_own_has_its_group() -> None:
    """It holds modules, and one is large enough to be taken apart."""
    sizes = {"net": 0, "net.body": 0, "net.body.first": 900, "net.body.second": 50, "net.head": 50}
    entries = tuple(Entry(f"weight:{path}::", "weight", path, "", "", size, 1) for path, size in sizes.items())
    file = parse_keyword_file(propose_keywords(entries), "proposed")
    (layer,) = [one for one in group_entries(entries, file.dictionaries, {}) if one.dictionary == "layer"]
    held = {entry.module: group.name for group in layer.groups for entry in group.entries}
    assert held == {path: path for path in sizes}


@given(tags=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=20, unique=True))
def test_a_file_proposed_for_any_tags_is_read_back(tags: list[str]) -> None:
    entries = [Entry(tag, "other", "", "", tag, 10, 1) for tag in tags]
    text = propose_keywords(entries)
    assert all(character.isprintable() or character == "\n" for character in text)
    if "[" in text.replace("#", ""):
        parse_keyword_file(text, "proposed")


def test_tags_are_proposed_by_what_they_have_in_common() -> None:
    tags = [
        "in_arg:encoder_rnn_l0_weight",
        "arg_grad:encoder_rnn_l1_weight",
        "dense:dense0:in_arg:weight",
        "workspace:fc",
    ]
    text = propose_keywords([Entry(tag, "other", "", "", tag, 1 << 20, 1) for tag in tags])
    layer, structure = parse_keyword_file(text, "proposed").dictionaries
    assert {group.name for group in layer.groups} == {"encoder_rnn_l", "dense", "fc"}
    assert {group.name for group in structure.groups} == {"in_arg", "arg_grad", "workspace"}
    assert parse_keyword("encoder_rnn_l") in {keyword for group in layer.groups for keyword in group.keywords}

"""Keyword files: how keywords match, what ships, and what is said of a wrong file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.analyze.keywords.keyword_file import MAX_FILE_BYTES, Keyword, parse_keyword, parse_keyword_file
from gpuledger.cli.inspect.keywords import parse_reported
from gpuledger.errors import InputError, UsageError
from gpuledger.formats.setme import read_setme
from gpuledger.services.grouping import SHIPPED, read_keywords

TBD_LIST = [
    "in_arg", "arg_grad", "aux_state", "optimizer", "workspace", "rnn", "embed", ":_mul", "rsqrt", ":mean", "att",
    ":split", "logit", "swapaxes", "square", "softmax", "sequencereverse", "dot", ":broadcast", "zeros", "sum",
    "transpose", ":dropout", "slice", "cnn", "arange", "dot", "fullyconnected", "sequencemask", "conv",
    "activation", "reshape", "transformer", "relu", "pool", "bn", ":id", ":fc", "_sc", "_equal_scalar",
    "(source)", "(target)", "(target_label)", "(data)", "dropout", "untagged", "warning!,ctx_source_unclear",
]  # fmt: skip
"""The list of the TBD project's memory_analysis.py, in its order."""


def finds(keyword: str, text: str) -> bool:
    return bool(parse_keyword(keyword).find(pa.array([text]))[0])


@pytest.mark.parametrize(
    ("keyword", "text", "found"),
    [
        ("attn", "weight:layers.0.attn.q::w", True),
        ("Attn", "weight:layers.0.attn.q::w", False),
        ("layers.0", "weight:layersX0::", False),
        ("weight:*", "weight:embed::w", True),
        ("weight:*", "gradient:weight:x", False),
        ("*:layers.*.attn:*", "weight:layers.11.attn::w", True),
        ("*:layers.*.attn:*", "weight:layers.11.attn.q::w", False),
        ("*", "", True),
        ("a*b", "a\nx\nb", True),
        ("(x*", "(xyz", True),
        ("re:^a.*b$", "a--b", True),
        ("re:(?i)ATTN", "attn", True),
        ("re:l[0-9]+", "l12", True),
        ("re:l[0-9]+", "lx", False),
        ("🔥", "a🔥b", True),
        ("a\\d", "a1", False),
    ],
)
def test_a_keyword_is_a_substring_a_glob_or_an_expression(keyword: str, text: str, found: bool) -> None:
    assert finds(keyword, text) is found


@pytest.mark.parametrize(
    ("keyword", "field", "word", "found"),
    [
        ("class:Linear", "class", "Linear", True),
        ("class:Linear", "class", "LazyLinear", False),
        ("class:*Linear", "class", "LazyLinear", True),
        ("class:re:Norm$", "class", "LayerNorm", True),
        ("category:gradient", "category", "activation_gradient", False),
        ("category:*gradient", "category", "activation_gradient", True),
    ],
)
def test_class_and_category_are_asked_as_whole_words(keyword: str, field: str, word: str, found: bool) -> None:
    assert parse_keyword(keyword).field == field
    assert finds(keyword, word) is found


def test_no_expression_takes_more_than_linear_time() -> None:
    """Python's own matcher would take 2^60 steps here."""
    assert not finds("re:(a+)+$", "a" * 60 + "b")
    assert not finds("re:(a|aa)+$", "a" * 1_000_000 + "b")
    assert finds("*a*a*a*a*a*a*a*a*b", "a" * 10_000 + "b")


BAD = {
    '[layer]\nRNN = ["re:("]': (2, "not a regular expression: missing )"),
    "[layer]\nA = ['a']\nRNN = ['re:(?=x)']": (3, "invalid perl operator"),
    "[layer]\nA = ['a']\nB = [\n  'b',\n  're:[',\n]": (5, "missing ]"),
    "[layer]\nA = ['re:a{1000}{1000}']": (2, "bad repetition"),
    "# A = []\n[layer]\nA = []": (3, "A has no keywords"),
    "[layer]\nA = ['']": (2, "the keyword is empty"),
    "[layer]\nA = ['re:']": (2, "the keyword is empty"),
    "[layer]\nA = ['class:']": (2, "the keyword is empty"),
    "[layer]\nA = [1]": (2, "a keyword must be a string"),
    "[layer]\nA = 'rnn'": (2, "unknown key 'A', expected a list"),
    "[layer]\nA = ['a']\n[layer.B]\nkeywords = ['b']": (3, "unknown key 'B'"),
    "expected = 3\n[layer]\nA = ['a']": (1, "unknown key 'expected', expected a table"),
    "[layer]\n[other]\nA = ['a']": (1, "dictionary 'layer' has no groups"),
    "[layer]\nOthers = ['a']": (2, "'Others' is reserved"),
    "\n[rank]\nA = ['a']": (2, "'rank' is reserved"),
    "[layer]\nA = ['a'": (2, "not a keyword file"),
    "[layer]\nA = ['a']\nA = ['b']": (3, "not a keyword file"),
}


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_file_is_refused_with_the_line_and_a_hint(text: str) -> None:
    line, reason = BAD[text]
    with pytest.raises(InputError) as caught:
        parse_keyword_file(text, "my.toml")
    assert caught.value.message.startswith("my.toml: ")
    assert f"line {line}" in caught.value.message
    assert reason in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "[" * 16_000,
        "a = " + "[" * 16_000,
        "a = " + "[\n" * 100_000,
        "a." * 100_000 + "a = 1",
        ("a." * 8_000 + "a = 1\n") * 16,
        "[a]\nA = [{" + "a." * 8_000 + "a = 1}]",
    ],
    ids=range(8),
)
def test_an_empty_or_a_bottomless_file_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^my\.toml: "):
        parse_keyword_file(text, "my.toml")


def test_a_list_may_go_over_many_lines() -> None:
    text = "[layer]\nA = [\n" + "'rnn', # a recurrent one\n" * 4_000 + "]"
    (dictionary,) = parse_keyword_file(text, "my.toml").dictionaries
    assert len(dictionary.groups[0].keywords) == 4_000


@given(st.text(st.sampled_from("ab[]=\"'#\n.,*:(re\\{}\0é"), max_size=60))
def test_no_text_ends_in_anything_but_a_file_or_a_refusal(text: str) -> None:
    try:
        file = parse_keyword_file(text, "my.toml")
    except InputError:
        return
    assert all(group.keywords for one in file.dictionaries for group in one.groups)


@given(st.binary(max_size=60) | st.text(st.sampled_from("ab={}[]'\",:\n()-+1*_"), max_size=60).map(str.encode))
def test_nothing_but_literals_is_taken_for_a_setme(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "SETME.py"
        path.write_bytes(b"layer_kw_dict = " + content)
        try:
            file = read_setme(path)
        except InputError:
            return
    assert file.dictionaries


@pytest.mark.parametrize("content", [b"\xff\xfe[layer]", b"\x80", b"# " + b"x" * MAX_FILE_BYTES])
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"k\.toml"):
        read_keywords(str(tmp_path / "k.toml"))


def test_more_keywords_than_anybody_writes_are_refused() -> None:
    with pytest.raises(InputError, match="more than 5,000"):
        parse_keyword_file("[layer]\nA = [" + '"a",\n' * 5_001 + "]", "my.toml")


def test_a_file_that_is_not_there_names_the_ones_that_ship(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_keywords(str(tmp_path / "no.toml"))
    assert "mxnet, tbd" in str(caught.value.hint)


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_bytes("\ufeff[layer]\r\nRNN = [\r\n'rnn'\r\n]\r\n".encode())
    (dictionary,) = read_keywords(str(tmp_path / "k.toml")).dictionaries
    assert [group.name for group in dictionary.groups] == ["RNN"]


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_is_read(name: str) -> None:
    file = read_keywords(name)
    assert all(group.keywords for dictionary in file.dictionaries for group in dictionary.groups)


def test_tbd_has_the_47_keywords_of_its_list_in_order() -> None:
    """Names in brackets stood for whole tags; "dot" stood twice and the second never had a turn."""
    (dictionary,) = read_keywords("tbd").dictionaries
    patterns = [keyword.pattern for group in dictionary.groups for keyword in group.keywords]
    wanted = [word for place, word in enumerate(TBD_LIST) if word != "dot" or place < 20]
    wanted.insert(wanted.index("dot"), "dot")
    whole = {f"({word})": rf"^\(?{word}\)?$" for word in ("source", "target", "target_label", "data")}
    assert patterns == [whole.get(word, word) for word in wanted]
    assert len(patterns) == len(TBD_LIST) == 47


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [("11.2GiB", 12_025_908_429), ("11.2", 12_025_908_429), ("2", 2 << 30), (".5", 1 << 29), ("512MiB", 512 << 20)],
)
def test_a_bare_expected_size_is_gib(text: str, expected_bytes: int) -> None:
    assert parse_reported(text) == expected_bytes


@pytest.mark.parametrize("text", ["-1", "many", "", "1e400", "nan", "GiB", "99999999999999"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--reported-memory"):
        parse_reported(text)


SETME = """
layer_kw_dict = {"RNN": ["rnn"], "Embed": ["embed*", "re:x"]}
data_struct_kw_dict = {"Parameters": ["in_arg", "arg_grad", "optimizer_state"], "Workspace": ["workspace"]}
memory_profile_path = ""
expected_sum = 7.5
"""


def test_a_setme_is_read_as_literals(tmp_path: Path) -> None:
    (tmp_path / "SETME.py").write_text(SETME)
    file = read_keywords(str(tmp_path / "SETME.py"))
    layer, structure = file.dictionaries
    assert (layer.name, structure.name) == ("layer", "data structure")
    assert layer.groups[1].keywords == (
        Keyword("name", "substring", "embed*"),
        Keyword("name", "substring", "re:x"),
    )
    assert [group.name for group in structure.groups] == ["Parameters", "Workspace"]
    assert file.expected_bytes == 7.5 * (1 << 30)


def test_a_backslash_in_a_setme_is_a_backslash(tmp_path: Path) -> None:
    (tmp_path / "SETME.py").write_text('layer_kw_dict = {"a": ["\\d"]}')
    assert read_setme(tmp_path / "SETME.py").dictionaries[0].groups[0].keywords[0].pattern == "\\d"


def test_nothing_in_a_setme_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').close()\nimport os\nos.mkdir({str(tmp_path / 'made')!r})\n"
    (tmp_path / "SETME.py").write_text(code + SETME)
    assert len(read_setme(tmp_path / "SETME.py").dictionaries) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SETME.py"]


def test_the_set_that_setme_came_with_is_left_out_with_a_note(tmp_path: Path) -> None:
    came = SETME.replace('{"RNN": ["rnn"], "Embed": ["embed*", "re:x"]}', '{ """E.g., "RNN": ["rnn"]""" }')
    (tmp_path / "SETME.py").write_text(came.replace("7.5", "None"))
    file = read_setme(tmp_path / "SETME.py")
    assert [dictionary.name for dictionary in file.dictionaries] == ["data structure"]
    assert file.expected_bytes is None
    assert "layer_kw_dict is an empty template" in file.notes[0]


BAD_SETME = {
    "layer_kw_dict = __import__('os').listdir()": "line 1: layer_kw_dict: expected a literal value",
    "layer_kw_dict = {'a': ['a'] * 9 ** 9}": "expected a literal",
    "layer_kw_dict = {'a': []}": "a: expected a list of keywords",
    "layer_kw_dict = {'a': [1]}": "a keyword must be a valid string",
    "layer_kw_dict = {'a': ['\\ud800']}": "a keyword must be a valid string",
    "layer_kw_dict = {'\\ud800': ['a']}": "cannot be used as a group's name",
    "layer_kw_dict = {'a': ['']}": "at least one letter",
    "layer_kw_dict = {1: ['a']}": "cannot be used as a group's name",
    "layer_kw_dict = {}": "the dictionary is empty",
    "layer_kw_dict = 3": "expected a dictionary",
    "layer_kw_dict = {'a': ['a']}\nexpected_sum = -1": "line 2: expected_sum",
    "layer_kw_dict = {'a': ['a']}\nexpected_sum = True": "expected_sum",
    "layer_kw_dict = {'a': ['a']}\nexpected_sum = 1e300": "expected_sum",
    "x = 1": "does not define layer_kw_dict",
    "layer_kw_dict = {": "line 1: not Python",
    "x = " + "(" * 5_000: "not Python",
    "layer_kw_dict = " + "-" * 100_000 + "1": "not Python",
    "\0": "not Python",
}


@pytest.mark.parametrize("text", BAD_SETME, ids=range(len(BAD_SETME)))
def test_a_wrong_setme_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "SETME.py").write_text(text)
    with pytest.raises(InputError, match=r"SETME\.py: ") as caught:
        read_setme(tmp_path / "SETME.py")
    assert BAD_SETME[text] in caught.value.message

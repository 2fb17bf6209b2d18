"""The options of all commands: one word for each thing, and one declaration for each option."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest

from gpuledger.cli.main import main
from gpuledger.errors import UsageError

Place = tuple[str, click.Option]
OWN_TEXT = {
    "--output": "says what is written",
    "--out": "a run, or a folder of several",
    "--gpu": "says which GPUs the command knows",
    "--rows": "says what the rows are of",
    "--by": "each command has groupings of its own",
    "--repeat": "of a program, or of each variant",
    "--quiet": "of a program that is followed, not run, the output is dropped",
    "--pid": "a process to watch, or whose bytes are shown beside the others'",
    "--interval": "of a file's samples it is only known to the user",
    "--step": "of a recorded run, or the one to capture",
    "--batch": "one number, or several where a command takes them",
    "--ranks": "ranks to simulate, or to keep events of",
}
"""Options whose help differs from command to command, and why."""
OWN_TYPE = {
    ("--batch", "ops predict"): "a range that is doubled",
    ("--batch", "ops sweep"): "a list, as all of its sizes",
    ("--gpu", "watch"): "numbers of this machine's GPUs",
    ("--steps", "run"): "the first and the last step to record; an estimate follows so many",
    ("--markdown", "check"): "a file beside the answer",
    ("--to", "export"): "forms of a run",
    ("--to", "ops export"): "forms of an operator database",
    ("--by", "ops list"): "layers or operators",
    ("--by", "ops predict"): "modules only",
    ("--by", "show"): "also operators and kernels",
}
"""Options that take something else in a command, and what."""
REPLACED = {
    "--card": "--gpu",
    "--overwrite": "--force",
    "--precision-of-interval": "--confidence",
    "--top": "-n",
    "--target-ci": "--precision",
    "--energy-share": "--energy-coverage",
    "--target": "--min-coverage",
    "--until-target": "--measure-missing",
    "--expected": "--reported-memory",
    "--hot": "--warm-cache",
}


def commands(group: click.Command = main, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, those below ``ops`` too."""
    if isinstance(group, click.Group):
        for one in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), one)
            assert command is not None
            yield from commands(command, f"{name} {one}".strip())
    else:
        yield name, group


def options() -> Mapping[str, list[Place]]:
    """Return every option by its longest word, with the commands that have it."""
    found = defaultdict(list)
    for name, command in commands():
        for one in command.params:
            if isinstance(one, click.Option):
                word = max(one.opts, key=len)
                found["--rows" if word == "-n" else word].append((name, one))
    return found


OPTIONS = options()
SHARED = sorted(word for word, places in OPTIONS.items() if len(places) > 1)


def text_of(option: click.Option) -> str:
    """Return the help of an option without its default, which may be each command's own."""
    return re.sub(r"\s*\[default: [^\]]*\]$", "", option.help or "")


def kind_of(option: click.Option) -> tuple[object, ...]:
    """Return how an option is declared, but for its default."""
    choices = tuple(option.type.choices) if isinstance(option.type, click.Choice) else ()
    metavar = None if "--output" in option.opts else option.metavar  # a file, a folder, or either
    words = tuple(sorted(option.opts))
    return words, option.type.name, metavar, choices, option.is_flag, option.multiple, option.envvar


@pytest.mark.parametrize("word", SHARED)
def test_an_option_says_the_same_in_every_command(word: str) -> None:
    if word in OWN_TEXT:
        return
    texts = {text_of(option): name for name, option in OPTIONS[word] if (word, name) not in OWN_TYPE}
    assert len(texts) <= 1, texts


@pytest.mark.parametrize("word", SHARED)
def test_an_option_takes_the_same_in_every_command(word: str) -> None:
    kinds = {kind_of(option): name for name, option in OPTIONS[word] if (word, name) not in OWN_TYPE}
    assert len(kinds) <= 1, kinds


@pytest.mark.parametrize("word", REPLACED)
def test_there_is_one_word_for_one_thing(word: str) -> None:
    assert word not in OPTIONS


def test_force_overwrites_and_nothing_else() -> None:
    assert {option.help for _, option in OPTIONS["--force"]} == {"Overwrite existing output."}


def test_a_device_is_one_of_torchs_and_a_gpu_a_model_or_a_number() -> None:
    assert all((option.help or "").startswith("PyTorch device: ") for _, option in OPTIONS["--device"])
    assert all("GPU" in (option.help or "") for _, option in OPTIONS["--gpu"])


def test_the_exceptions_are_needed() -> None:
    assert set(OWN_TEXT) <= set(SHARED)
    assert {word for word, _ in OWN_TYPE} <= set(SHARED)
    assert {name for _, name in OWN_TYPE} <= {name for name, _ in commands()}
    assert all(len({text_of(option) for _, option in OPTIONS[word]}) > 1 for word in OWN_TEXT)


def test_every_option_has_a_help_text() -> None:
    assert all(one.help for _, command in commands() for one in command.params if isinstance(one, click.Option))


@pytest.mark.parametrize(
    ("text", "index"), [("cpu", -1), ("-1", -1), ("cuda", 0), ("cuda:1", 1), ("2", 2), (None, None)]
)
def test_a_torch_device_or_its_index_is_taken(text: str | None, index: int | None) -> None:
    words = [] if text is None else ["--device", text]
    show = dict(commands())["show"]
    assert show.make_context("show", ["a.ledger", *words]).params["device_idx"] == index


@pytest.mark.parametrize("text", ["h200", "cuda:", "cuda:-1", "mps", "-2", ""])
def test_what_is_no_torch_device_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a PyTorch device"):
        dict(commands())["diff"].make_context("diff", ["a", "b", "--device", text])


def flags_of(command: click.Command) -> type[Any] | None:
    """Return the dataclass that a command takes its values as; None for one that takes them one by one."""
    inner = getattr(command.callback, "__wrapped__", None)
    kind = None if inner is None else inner.__globals__[inner.__annotations__["flags"]]
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def type_of(one: click.Parameter) -> str:
    """Return the type of what click gives for a parameter, as the source says it."""
    kind = {"boolean": "bool", "integer": "int", "integer range": "int"}.get(one.type.name, "str")
    if one.multiple or one.nargs < 0:
        return f"tuple[{kind}, ...]"
    has_default = isinstance(one.default, str | int) or (kind == "bool" and one.default is not None)
    return kind if one.required or has_default else f"{kind} | None"


WITH_FLAGS = [(name, command, kind) for name, command in commands() if (kind := flags_of(command))]


@pytest.mark.parametrize(("name", "command", "kind"), WITH_FLAGS, ids=[name for name, _, _ in WITH_FLAGS])
def test_a_commands_dataclass_has_a_field_for_each_parameter(
    name: str, command: click.Command, kind: type[Any]
) -> None:
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    assert fields.keys() == {one.name for one in command.params}
    # What a callback makes of the text is the callback's.
    types = {one.name: type_of(one) for one in command.params if one.name and one.callback is None}
    assert {name: fields[name] for name in types} == types
    assert kind.__dataclass_params__.frozen


def test_commands_of_many_parameters_take_a_dataclass() -> None:
    assert {"diff", "group", "plot", "show", "watch", "ops campaign", "ops sum"} <= {name for name, _, _ in WITH_FLAGS}

"""A keyword file proposed from a run's entries: something that fits, to be renamed and merged by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.keywords.keyword_file import RESERVED_GROUPS
from gpuledger.model.accounts import ROUNDING
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.entries import Entry

Groups = dict[str, tuple[str, int]]
"""Name of a group -> its keyword and its bytes."""
Path = tuple[str, ...]
"""A module path in parts, numbers as ``*``."""

MOST_GROUPS = 24
LARGE_FRAC = 0.25
"""A part of the model that holds more than this share is taken apart."""
_TAG_KINDS = (
    "in_arg", "arg_grad", "aux_state", "optimizer", "head_grad", "data_entry", "forward_features", "workspace",
    "resource", "init", "symbol",
)  # fmt: skip
_HEAD = """\
# Proposed by gpuledger from a run: rename the groups, merge them, put what shall win first.
# A keyword is a text found anywhere in an entry's name, a whole name with * in it, or an expression after re:
"""


def propose_keywords(entries: Sequence[Entry]) -> str:
    """Return a keyword file in TOML for these entries, the largest groups first.

    Modules that are numbered alike (``layers.0``, ``layers.1``) go into one group, and so do tags.
    """
    ours = [entry for entry in entries if not entry.tag and entry.category != ROUNDING]
    tagged = [entry for entry in entries if entry.tag]
    tables = {
        "layer": _module_groups(ours) | _groups_by(tagged, lambda entry: _same(_layer_of(entry.tag))),
        "data structure": _groups_by(tagged, lambda entry: _same(_kind_of(entry.tag)))
        | _groups_by([entry for entry in entries if not entry.tag], _category_of),
        "scope": _groups_by(ours, _scope_of),
    }
    return _HEAD + "".join(_table(name, groups) for name, groups in tables.items() if groups)


def _table(name: str, groups: Groups) -> str:
    order = sorted(groups.items(), key=lambda item: (-item[1][1], item[0]))[:MOST_GROUPS]
    lines = [
        f"{_key(f'{group} (so named)' if group in RESERVED_GROUPS else group)} = [{_quoted(keyword)}]  # "
        f"{format_bytes(size)}"
        for group, (keyword, size) in order
    ]
    return f"\n[{_key(name)}]\n" + "\n".join(lines) + "\n"


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text, re.ASCII) else _quoted(text)


def _quoted(text: str) -> str:
    """Return ``text`` as a TOML string, with everything escaped that a terminal or an editor would obey or hide."""
    escaped = (f"\\U{ord(one):08x}" if not one.isprintable() else f"\\{one}" if one in '"\\' else one for one in text)
    return f'"{"".join(escaped)}"'


def _groups_by(entries: Iterable[Entry], group_of: Callable[[Entry], tuple[str, str]]) -> Groups:
    """Return the groups that ``group_of`` gives entries, as (name, keyword); an entry with no name has none."""
    groups: Groups = {}
    for entry in entries:
        name, keyword = group_of(entry)
        if name:
            groups[name] = (keyword, groups.get(name, ("", 0))[1] + entry.bytes)
    return groups


def _same(text: str) -> tuple[str, str]:
    return text, text


def _category_of(entry: Entry) -> tuple[str, str]:
    return entry.category.replace("_", " ").capitalize(), f"category:{entry.category}"


def _scope_of(entry: Entry) -> tuple[str, str]:
    return entry.scope, f"re:^[^:]*:[^:]*:{re.escape(entry.scope)}:"


def _kind_of(tag: str) -> str:
    """Return what kind of data a tag speaks of: a word the profilers used, else what stands before a colon."""
    return next((kind for kind in _TAG_KINDS if kind in tag), "") or tag.partition(":")[0]


def _layer_of(tag: str) -> str:
    """Return the layer a tag speaks of: the name after its kind up to the first number, or its scope's."""
    parts = [part for part in tag.split(":") if part and not any(kind in part for kind in _TAG_KINDS)]
    if not parts:
        return ""
    scoped = len(parts) > 1 and parts[-1] in ("weight", "bias", "gamma", "beta", "running_mean", "running_var")
    word = parts[-2] if scoped else parts[-1]
    numbered = re.match(r"(.*?[A-Za-z])[_.]?[0-9]", word)
    return numbered[1] if numbered else re.sub(r"_(weight|bias|gamma|beta|label|moving_\w+|output)$", "", word)


def _module_groups(entries: Iterable[Entry]) -> Groups:
    """Return groups of module paths; what holds a large share is taken apart into the modules inside it."""
    sizes: dict[Path, int] = {}
    for entry in entries:
        if entry.module:
            path = tuple("*" if part.isdecimal() else part for part in entry.module.split("."))
            sizes[path] = sizes.get(path, 0) + entry.bytes
    whole, apart = {path[:1] for path in sizes}, set[Path]()
    while len(whole) < MOST_GROUPS and (large := [prefix for prefix in whole if _to_take_apart(prefix, sizes)]):
        prefix = max(large, key=lambda one: (_below(one, sizes), one))
        whole.remove(prefix)
        apart.add(prefix)
        whole |= {path[: len(prefix) + 1] for path in sizes if path[: len(prefix)] == prefix and path != prefix}
    return {
        **{".".join(path): (_path_keyword(path, ":"), sizes[path]) for path in apart if path in sizes},
        **{".".join(path): (_path_keyword(path, "[.:]"), _below(path, sizes)) for path in whole},
    }


def _to_take_apart(prefix: Path, sizes: dict[Path, int]) -> bool:
    inside = {path[len(prefix)] for path in sizes if path[: len(prefix)] == prefix and path != prefix}
    numbered = prefix[-1] == "*" or inside == {"*"}
    return bool(inside) and (numbered or _below(prefix, sizes) > LARGE_FRAC * sum(sizes.values()))


def _below(prefix: Path, sizes: dict[Path, int]) -> int:
    return sum(size for path, size in sizes.items() if path[: len(prefix)] == prefix)


def _path_keyword(path: Path, end: str) -> str:
    parts = ["[0-9]+" if part == "*" else re.escape(part) for part in path]
    return f"re:^[^:]*:{'[.]'.join(parts)}{end}"

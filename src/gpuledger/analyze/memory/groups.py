"""Memory summed by category, module, phase, scope, tensor or source line, as in the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.tree import OUTSIDE_PATH, ROUNDING_PATH
from gpuledger.analyze.module_paths import common_pattern, without_number
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuledger.analyze.memory.breakdown import Account

UNNAMED = "(unnamed)"
NO_SCOPE = "(outside scopes)"


@dataclass(frozen=True)
class Group:
    """One row: ``bytes`` of ``label``, and their split into categories, largest first."""

    label: str
    bytes: int
    blocks: int
    by_category: tuple[tuple[str, int], ...]


def group_accounts(accounts: Iterable[Account], group_by: str) -> tuple[Group, ...]:
    """Return one group per distinct ``group_by``, largest first.

    ``group_by`` is one of those of :func:`~gpuledger.analyze.memory.breakdown.break_down`. The groups' bytes sum to the
    accounts'.
    """
    parts: dict[str, dict[str, int]] = {}
    blocks: dict[str, int] = {}
    for account in accounts:
        label = label_of(account, group_by)
        part = parts.setdefault(label, {})
        part[account.category] = part.get(account.category, 0) + account.bytes
        blocks[label] = blocks.get(label, 0) + account.blocks
    groups = (Group(label, sum(part.values()), blocks[label], _largest_first(part)) for label, part in parts.items())
    return tuple(sorted(groups, key=lambda group: (-group.bytes, group.label)))


def label_of(account: Account, group_by: str) -> str:
    """Return the label of an account in a table by ``group_by``."""
    if group_by == "category":
        return account.category
    if account.category == ROUNDING:
        return ROUNDING_PATH
    if group_by == "module":
        return account.module or OUTSIDE_PATH
    if group_by == "scope":
        return account.scope or NO_SCOPE
    if group_by in ("line", "function"):
        return account.line or account.function
    return account.phase or "(no phase)" if group_by == "phase" else account.name or UNNAMED


def module_label(path: str, classes: Mapping[str, str]) -> str:
    """Return a module's label: its path, followed by its class if the path ends in a number, ``0 (Linear)``.

    Args:
        path: The module's path; "" is outside modules.
        classes: Module path -> class.
    """
    class_name = classes.get(path, "") if path.rpartition(".")[2].isdecimal() else ""
    return f"{path} ({class_name})" if class_name else path or OUTSIDE_PATH


def combine_layers(sizes: Mapping[str, int], classes: Mapping[str, str]) -> dict[str, int]:
    """Return module -> bytes. Equal modules of several layers are combined: ``4 × blocks.*.mlp.0 (Linear)``.

    The layers themselves are combined if all of a list have one class: ``4 × blocks.*``.

    Args:
        sizes: Module path -> bytes.
        classes: Module path -> class.
    """
    in_lists: dict[str, set[str]] = {}
    for path in sizes:
        above, _, last = path.rpartition(".")
        if last.isdecimal():
            in_lists.setdefault(above, set()).add(classes.get(path, ""))
    members: dict[str, list[str]] = {}
    for path in sizes:
        above, _, last = path.rpartition(".")
        is_layer = last.isdecimal() and len(in_lists[above]) == 1 and "" not in in_lists[above]
        parts = [*map(without_number, above.split(".")), "*" if is_layer else last] if above else [last]
        pattern = ".".join(parts)
        members.setdefault(module_label(pattern, {pattern: classes.get(path, "")}), []).append(path)
    found: dict[str, int] = {}
    for paths in members.values():
        pattern = common_pattern(paths)
        label = module_label(pattern, {pattern: classes.get(paths[0], "")})
        name = label if len(paths) == 1 else f"{len(paths)} × {label}"
        found[name] = sum(sizes[path] for path in paths)
    return found


def _largest_first(part: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(part.items(), key=lambda item: (-item[1], item[0])))

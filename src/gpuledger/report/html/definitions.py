"""Definitions of a report's terms: from the columns of the tables if there is one, otherwise from the section."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.accounts import CATEGORIES, IDENTITY_CATEGORY, LIFETIME_RULES, ROUNDING
from gpuledger.model.schema.tables import TABLES


@dataclass(frozen=True)
class Definition:
    """One term: its title, its meaning, and the source of the number."""

    title: str
    meaning: str
    source: str


def of_column(title: str, table: str, name: str, meaning: str = "") -> Definition:
    """Return the definition of a table's column; ``meaning`` replaces the column's own description."""
    known = next(one for one in TABLES[table].columns if one.name == name)
    return Definition(title, meaning or known.meaning, known.source)


def define_categories() -> dict[str, Definition]:
    """Return the definition of every category and of rounding, under ``category.NAME``."""
    rounding = Definition(
        "Rounding",
        "bytes the allocator adds to round a request up to its block size",
        "allocated minus requested (exact)",
    )
    return {f"category.{name}": _define_category(name) for name in CATEGORIES} | {f"category.{ROUNDING}": rounding}


def _define_category(category: str) -> Definition:
    seen = [kind for kind, name in IDENTITY_CATEGORY.items() if name == category]
    ways = ["identified by the address of its storage"] if seen else []
    ways += [f"{rule.why} ({', '.join(rule.phases)})" for rule in LIFETIME_RULES if rule.category == category]
    title = category.replace("_", " ").capitalize()
    return Definition(title, "; or ".join(ways), "identity of the storage, otherwise its lifetime across phases")

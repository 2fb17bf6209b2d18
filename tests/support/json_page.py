"""The keys that docs/json.md lists."""

from __future__ import annotations

import re

from folders import ROOT


def documented_keys(title: str) -> set[str]:
    """Return the keys in the first column of a section."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}

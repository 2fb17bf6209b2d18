"""Command lines without their secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_SECRET = re.compile(r"^--?[\w.-]*(key|token|password|passwd|secret|credential)[\w.-]*$", re.IGNORECASE)


def redact(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the values of ``--*key*``, ``--*token*``, ``--*password*``, ``--*secret*`` hidden."""
    kept = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            kept.append(HIDDEN)
            hide_next = False
        elif _SECRET.match(name):
            kept.append(f"{name}={HIDDEN}" if equals else argument)
            hide_next = not equals
        else:
            kept.append(argument)
            hide_next = False
    return kept

"""Command lines without their secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_NAME = r"[\w.-]*(key|token|password|passwd|secret|credential)[\w.-]*"
_SECRET_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)


def redact(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the values of ``--*key*``, ``--*token*``, ``--*password*``, ``--*secret*`` hidden.

    ``--x=v``, ``--x v`` and ``x=v`` are known. Rather one word too many is hidden than one too few: what follows such
    an option is hidden unless it begins with ``--``.
    """
    kept: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = _SECRET_OPTION.fullmatch(name) or (equals and _SECRET_NAME.fullmatch(name))
        if hide_next and not argument.startswith("--"):
            kept.append(HIDDEN)
            hide_next = False
        elif secret:
            kept.append(f"{name}={HIDDEN}" if equals else argument)
            hide_next = not equals
        else:
            kept.append(argument)
            hide_next = False
    return kept

"""Names as a trace shows them."""

from __future__ import annotations

from gpuledger.report.base.terminal import printable

_BACKSLASH_AS = "\N{REVERSE SOLIDUS OPERATOR}"


def shown(text: str) -> str:
    """Return a name with everything escaped that would be obeyed or hidden, and without a backslash.

    Perfetto (52) refuses a whole trace for one text that ends in a backslash, and shows JSON's escapes undone.
    """
    return printable(text).replace("\\", _BACKSLASH_AS)

"""Which source files are the program's own, which are of libraries, and which of PyTorch and Python."""

from __future__ import annotations

import re

PACKAGES = r"[/\\](site|dist)-packages[/\\]"
"""Pattern of the directory that installed packages are in."""

_LIBRARY = re.compile(rf"{PACKAGES}|[/\\]lib(64)?[/\\]python3", re.ASCII)
_FRAMEWORK = re.compile(
    rf"{PACKAGES}((torch|functorch|triton)[/\\]|typing_extensions\.py$)"
    r"|[/\\]lib(64)?[/\\]python3[^/\\]*[/\\](?!site-packages|dist-packages)|[/\\]torchinductor_[^/\\]*[/\\]",
    re.ASCII,
)
"""``typing_extensions`` has parts of later standard libraries. Its decorator calls what PyTorch has deprecated."""
_TYPED_IN = re.compile(r"^<(stdin|ipython-input-.*)>$", re.ASCII)


def is_own(file: str, function: str) -> bool:
    """Return whether code is the program's, not of a library."""
    if file.startswith("<"):  # not a file: typed in, or generated
        return _TYPED_IN.match(file) is not None or (file == "<string>" and function == "<module>")
    return _LIBRARY.search(file) is None and not is_framework(file, function)


def is_framework(file: str, function: str) -> bool:
    """Return whether code is of PyTorch or of Python's standard library, or generated."""
    return not is_own(file, function) if file.startswith("<") else _FRAMEWORK.search(file) is not None

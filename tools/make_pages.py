"""Puts the measured figures into the pages, from the results that the scripts in bench/ wrote.

``tools/pages`` has a function for each block of a page. Without ``--check`` the pages are written.

Usage: python tools/make_pages.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys

import pages as makers
from pages.blocks import FILES, ROOT, pages, wanted_of

for found in pkgutil.iter_modules(makers.__path__):
    importlib.import_module(f"{makers.__name__}.{found.name}")  # each registers its blocks


def main() -> int:
    """Write the pages, or with ``--check`` say which are not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a page differs")
    check = parser.parse_args().check
    stale = [place for place in [*pages(), *FILES] if place.read_text(encoding="utf-8") != wanted_of(place)]
    for place in stale:
        if check:
            print(f"{place.relative_to(ROOT)} differs from the results: run make pages", file=sys.stderr)
        else:
            place.write_text(wanted_of(place), encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

"""Fetch the vendored libraries again and verify them: `python tools/vendor.py`.

Reads src/gpuledger/report/assets/vendor/VENDOR.toml, takes each package from the npm registry, checks the archive's
sha512 and each file's sha256, and puts the files in place. A new version is taken by editing VENDOR.toml first.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parent.parent / "src/gpuledger/report/assets/vendor"
TIMEOUT_S = 60


class VendorError(Exception):
    """What was fetched is not what VENDOR.toml says."""


def packages(directory: Path = VENDOR) -> list[dict[str, Any]]:
    """Return the packages of VENDOR.toml."""
    described: list[dict[str, Any]] = tomllib.loads((directory / "VENDOR.toml").read_text(encoding="utf-8"))["package"]
    return described


def unpack(package: dict[str, Any], archive: bytes) -> dict[str, bytes]:
    """Return the wanted files of a package's archive by their name here.

    Raises:
        VendorError: the archive or a file in it has another hash.
    """
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode("ascii")
    if found != package["sha512"]:
        raise VendorError(f"{package['source']}: {found}, expected {package['sha512']}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for name, wanted in package["files"].items():
            member = tar.extractfile(wanted["from"])
            content = member.read() if member else b""
            if hashlib.sha256(content).hexdigest() != wanted["sha256"]:
                raise VendorError(f"{package['name']}: {wanted['from']}: not the file VENDOR.toml describes")
            files[name] = content
    return files


def main() -> int:
    """Return the exit status: 0 all fetched and verified, 1 something differs."""
    for package in packages():
        if not package["source"].startswith("https://registry.npmjs.org/"):
            print(f"vendor: error: {package['source']}: not the npm registry", file=sys.stderr)
            return 1
        with urllib.request.urlopen(package["source"], timeout=TIMEOUT_S) as answer:
            archive = answer.read()
        try:
            files = unpack(package, archive)
        except VendorError as error:
            print(f"vendor: error: {error}", file=sys.stderr)
            return 1
        for name, content in files.items():
            (VENDOR / name).write_bytes(content)
        print(f"{package['name']} {package['version']}: {len(files)} files verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which code is the program's own."""

from __future__ import annotations

import pytest

from gpuledger.model.source_files import is_own


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("/home/me/libraries/models/net.py", False),
        ("/home/me/libraries_of_mine/net.py", True),
        ("/home/me/lib/python3.12/site-packages/models/net.py", False),
    ],
)
def test_packages_of_another_folder_are_not_the_programs_own(file: str, own: bool) -> None:
    assert is_own(file, "forward", ["/home/me/libraries"]) is own

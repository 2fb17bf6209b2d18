"""Parts of PyTorch's memory snapshots that are read without making objects of them."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.formats.snapshot.pickle_records import _little
from gpuledger.formats.snapshot.snapshot_columns import _fetched


@given(st.lists(st.integers(0, 1 << 31)), st.booleans())
def test_a_list_names_what_it_fetches_in_its_order(numbers: list[int], marked: bool) -> None:
    """Numbers below 256 are written in one byte, others in four; a mark and the appending are no numbers."""
    fetched = [
        pickle.BINGET + bytes([number]) if number < 256 else pickle.LONG_BINGET + number.to_bytes(4, "little")
        for number in numbers
    ]
    piece = b"".join([pickle.MARK, *fetched, pickle.APPENDS] if marked else fetched)
    assert _fetched(piece) == numbers


@given(st.binary(min_size=1, max_size=8), st.booleans())
def test_numbers_of_any_size_are_read_as_they_were_written(data: bytes, signed: bool) -> None:
    array = np.frombuffer(b"\xff" + data + b"\xff", dtype=np.uint8)
    expected = int.from_bytes(data, "little", signed=signed or len(data) == 8)
    assert _little(array, np.array([1]), len(data), signed=signed).tolist() == [expected]

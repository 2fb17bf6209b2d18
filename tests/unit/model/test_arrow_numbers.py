"""Arrow values as NumPy arrays are those that Arrow's own functions return, with nulls, slices and chunks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_run

from gpuledger.model.arrow_numbers import decoded_texts, known_numbers, text_lengths, to_floats, to_numbers

KINDS = {pa.int8(): 100, pa.int32(): 1 << 30, pa.int64(): 1 << 60}
MISSING = -7


@st.composite
def integers(draw: st.DrawFn) -> pa.ChunkedArray:
    """Return a column of integers: some null, each chunk a slice of an array."""
    kind = draw(st.sampled_from(sorted(KINDS, key=str)))
    value = st.none() | st.integers(-KINDS[kind], KINDS[kind])
    arrays = draw(st.lists(st.lists(value, max_size=20), max_size=3))
    skipped = draw(st.integers(0, 9))
    return pa.chunked_array([pa.array(one, kind).slice(skipped) for one in arrays], kind)


@given(integers())
def test_numbers_are_the_values_of_the_column(column: pa.ChunkedArray) -> None:
    values = column.to_pylist()
    numbers = to_numbers(column, MISSING)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [MISSING if value is None else value for value in values]
    floats = to_floats(column)
    assert floats.dtype == np.float64
    np.testing.assert_array_equal(floats, np.array([np.nan if value is None else value for value in values], float))
    known = [number for chunk in column.chunks for number in known_numbers(chunk).tolist()]
    assert known == [value for value in values if value is not None]


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 20))
def test_truth_values_are_zero_and_one(values: list[bool | None], skipped: int) -> None:
    numbers = to_numbers(pa.array(values, pa.bool_()).slice(skipped), MISSING).tolist()
    assert numbers == [MISSING if value is None else int(value) for value in values[skipped:]]


@given(st.lists(st.none() | st.text(max_size=5), max_size=30), st.integers(0, 9))
def test_coded_texts_are_decoded_and_counted(texts: list[str | None], skipped: int) -> None:
    coded = pa.array(texts, pa.string()).dictionary_encode().slice(skipped)
    assert decoded_texts(coded).to_pylist() == texts[skipped:]
    words = coded.dictionary
    assert text_lengths(words).tolist() == [len(word.encode()) for word in words.to_pylist()]
    assert text_lengths(words.slice(2)).tolist() == text_lengths(words).tolist()[2:]


@pytest.mark.parametrize("arguments", [{}, {"ranks": 9}], ids=["one rank", "nine ranks"])
def test_show_imports_neither_computing_library(tmp_path: Path, arguments: dict[str, Any]) -> None:
    run = make_run(tmp_path / "one.ledger", **arguments)
    code = (
        "import sys; sys.modules['pyarrow.compute'] = sys.modules['numpy.ma'] = None\n"
        "sys.argv.insert(1, 'show'); from gpuledger.__main__ import start; start()"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(run)], check=False, capture_output=True, text=True)
    assert (shown.returncode, "error" in shown.stderr) == (0, False), shown.stderr

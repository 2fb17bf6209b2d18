"""What is printed can be read back, up to the digits printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import UsageError
from gpuledger.units import format_bytes, format_ns, format_seconds, parse_bytes, parse_duration_ns


@given(st.integers(0, 1 << 58))
def test_bytes_survive_printing(value: int) -> None:
    text = format_bytes(value)
    assert abs(parse_bytes(text) - value) <= 0.0511 * max(value, 1) if value >= 1024 else parse_bytes(text) == value
    assert float(text.split()[0]) < 1024


@given(st.integers(0, 10**17))
def test_times_survive_printing(value: int) -> None:
    assert abs(parse_duration_ns(format_ns(value)) - value) <= 0.0051 * value + (0 if value < 1000 else 5)


@given(st.integers(1, 1 << 58))
def test_negative_values_print_as_the_positive_ones(value: int) -> None:
    assert format_bytes(-value) == f"-{format_bytes(value)}"
    assert format_ns(-value) == f"-{format_ns(value)}"


@given(st.floats(0, 1e6))
def test_seconds_are_nanoseconds(value: float) -> None:
    assert format_seconds(value) == (format_ns(value * 1e9) if value else "0 s")


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_usage_error(text: str) -> None:
    for parse in (parse_bytes, parse_duration_ns):
        try:
            value = parse(text)
        except UsageError as error:
            assert error.message  # noqa: PT017
        else:
            assert value >= 0


@pytest.mark.parametrize("decimals", [0, 1, 2, 3])
@given(value=st.integers(1024, 1 << 58))
def test_more_decimals_are_closer(decimals: int, value: int) -> None:
    unit = parse_bytes("1 " + format_bytes(value, decimals).split()[1])
    assert abs(parse_bytes(format_bytes(value, decimals)) - value) <= unit * 0.5 / 10**decimals + 1

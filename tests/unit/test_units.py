from __future__ import annotations

import pytest

from gpuledger.errors import UsageError
from gpuledger.units import (
    format_bytes,
    format_frac,
    format_joules,
    format_ns,
    format_seconds,
    parse_bytes,
    parse_duration_ns,
    parse_frac,
    parse_joules,
    share_frac,
    signal_name,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (76_450_000_000, "71.2 GiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (1 << 60, "1024.0 PiB"),
        (-1536, "-1.5 KiB"),
        (None, "n/a"),
    ],
)
def test_bytes_are_printed_in_binary_units(value: int | None, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (17_840_000, "17.84 ms"),
        (999_999, "1.00 ms"),
        (1_000, "1.00 µs"),
        (119_990_000_000, "119.99 s"),
        (600_000_000_000, "10.00 min"),
        (3 * 3_600 * 10**9, "3.00 h"),
        (None, "n/a"),
    ],
)
def test_times_are_printed_with_their_unit(value: int | None, text: str) -> None:
    assert format_ns(value) == text


def test_seconds_and_shares() -> None:
    assert format_seconds(0.5) == "500.00 ms"
    assert format_seconds(None) == "n/a"
    assert format_seconds(0.0) == "0 s"
    assert format_frac(0.8844) == "88.4 %"
    assert format_frac(None) == "n/a"
    assert format_frac(share_frac(1, 3), 0) == "33 %"
    assert share_frac(1, 0) is None
    assert share_frac(None, 3) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("512", 512), ("20MiB", 20 << 20), ("80GB", 80 * 10**9), (" 2.5 gib ", 5 << 29), ("0", 0), ("1TiB", 1 << 40)],
)
def test_sizes_are_read(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5s", 1_500_000_000), ("350ms", 350_000_000), ("20us", 20_000), ("20 µs", 20_000), ("2min", 120 * 10**9)],
)
def test_durations_are_read(text: str, value: int) -> None:
    assert parse_duration_ns(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "1 2", "12 parsecs", "nan", "inf", "٣", "1G", "9" * 400])
def test_nonsense_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_bytes(text)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "peak", "1.5", "-1s", "5 days", "s", "9" * 40 + "h"])
def test_nonsense_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.30 mJ"),
        (2.442e-5, "24.42 µJ"),
        (251, "251.00 J"),
        (3_200, "3.20 kJ"),
        (-0.5, "-500.00 mJ"),
        (5e6, "5.00 MJ"),
        (None, "n/a"),
    ],
)
def test_joules_are_printed_in_the_unit_below_them(value: float | None, text: str) -> None:
    assert format_joules(value) == text


@pytest.mark.parametrize(
    ("text", "value"), [("251 J", 251), ("3.2kJ", 3200), ("80mJ", 0.08), ("3 µJ", 3e-6), ("2 Wh", 7200)]
)
def test_joules_are_read(text: str, value: float) -> None:
    assert parse_joules(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("90%", 0.9), ("0.9", 0.9), ("2.5 %", 0.025), (" 3% ", 0.03)])
def test_shares_are_read(text: str, value: float) -> None:
    assert parse_frac(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "J", "251", "3 parsecs", "-1 J", "1e9 J"])
def test_what_is_not_an_energy_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_joules(text)


@pytest.mark.parametrize("text", ["", "%", "5 %%", "5 % of it", "3x", "-1 %"])
def test_what_is_not_a_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_frac(text)


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (9, "SIGKILL"), (40, "signal 40")])
def test_a_signal_has_its_name(number: int, name: str) -> None:
    assert signal_name(number) == name


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (1.6, 0.00666, "1.600 ± 0.007 J"),
        (753.81, 3.14, "753.81 ± 3.14 J"),
        (0.0016, 2.0, "1.60 ± 2000.00 mJ"),
        (1_600, 0.5, "1.6000 ± 0.0005 kJ"),
        (5, 0, "5.00 ± 0.00 J"),
        (5, 1e-9, "5.00 ± 0.00 J"),
        (None, 0.1, "n/a"),
        (1.6, None, "1.60 J"),
    ],
)
def test_an_energy_and_its_uncertainty_have_one_unit(value: float | None, half: float | None, text: str) -> None:
    assert format_joules(value, half) == text


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [(4_570_000, 9_000, "4.570 ± 0.009 ms"), (12, 0.3, "12.0 ± 0.3 ns"), (90e9, 2e6, "90.000 ± 0.002 s")],
)
def test_a_time_and_half_its_interval_have_one_unit(value: float, half: float, text: str) -> None:
    assert format_ns(value, half) == text

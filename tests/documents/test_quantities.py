"""Quantities: exact integers in, one canonical spelling out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.documents.quantities import (
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_instant,
    parse_share,
    print_bandwidth,
    print_bytes,
    print_duration,
    print_instant,
)

S = 10**9
H = 3600 * S


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_duration, "90s", 90 * S),
        (parse_duration, "30m", 1800 * S),
        (parse_duration, "12h", 12 * H),
        (parse_duration, "7d", 168 * H),
        (parse_duration, "1d12h", 36 * H),
        (parse_duration, "0.7us", 700),
        (parse_duration, "1.2us", 1200),
        (parse_duration, "300ns", 300),
        (parse_duration, "5ms", 5_000_000),
        (parse_duration, "1.5h", 5400 * S),
        (parse_duration, "1m0.5s", 60 * S + S // 2),
        (parse_duration, "0s", 0),
        (parse_bytes, "512MiB", 512 << 20),
        (parse_bytes, "64Gi", 64 << 30),
        (parse_bytes, "1Ki", 1024),
        (parse_bytes, "1.5TiB", 3 << 39),
        (parse_bytes, "4096", 4096),
        (parse_bytes, "4096B", 4096),
        (parse_bandwidth, "64GBps", 512 * 10**9),
        (parse_bandwidth, "400Gbps", 400 * 10**9),
        (parse_bandwidth, "1Mbps", 10**6),
        (parse_bandwidth, "1.8TBps", 14_400 * 10**9),
        (parse_bandwidth, "9bps", 9),
        (parse_share, "25%", 250_000),
        (parse_share, "0.20", 200_000),
        (parse_share, "0.0001%", 1),
        (parse_share, "1", 1_000_000),
        (parse_share, "100%", 1_000_000),
        (parse_share, "0", 0),
        (parse_instant, "1970-01-01T00:00:00Z", 0),
        (parse_instant, "2026-12-05T08:00:00+00:00", 1_796_457_600 * S),
        (parse_instant, "2026-12-05T09:30:00+01:30", 1_796_457_600 * S),
        (parse_instant, "2026-12-04T23:00:00-09:00", 1_796_457_600 * S),
        (parse_instant, "1970-01-01T00:00:00.000000001Z", 1),
        (parse_instant, "1969-12-31T23:59:59.5Z", -S // 2),
    ],
)
def test_reads(parse: Callable[[str], int], text: str, value: int) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [
        *((parse_duration, text, "1d12h") for text in ("", "5", "s", "12h1d", "1h1h", "1.5h3m", "-5s", "1 h", "1w", "5S", "٣s", "5s\n", "01s")),
        (parse_duration, "0.5ns", "whole number"),
        (parse_duration, "9" * 100 + "s", "1d12h"),
        *((parse_bytes, text, "512MiB") for text in ("", "1GB", "1G", "1KB", "-1Ki", "1 MiB", "1mib", "1.Ki", "0x10")),
        (parse_bytes, "1.5", "whole number"),
        (parse_bytes, "0.3Ki", "whole number"),
        *((parse_bandwidth, text, "400Gbps") for text in ("", "400", "400G", "400GB/s", "400GiBps", "400gbps", "1Pbps")),
        (parse_bandwidth, "0.1bps", "whole number"),
        *((parse_share, text, "25%") for text in ("", "25 %", "-1%", ".5", "1/4", "101%", "1.1", "25")),
        (parse_share, "0.0000001", "whole number"),
        *((parse_instant, text, "RFC 3339") for text in (
            "", "2026-12-05", "2026-12-05T08:00:00", "2026-12-05 08:00:00Z", "2026-12-05T24:00:00Z",
            "2026-12-31T23:59:60Z", "2026-12-05T08:00:00+0100", "2026-12-05T08:00:00+24:00", "2026-12-05T08:00:00.1234567890Z",
        )),
        (parse_instant, "2026-02-29T00:00:00Z", "no such day"),
        (parse_instant, "2026-13-01T00:00:00Z", "no such day"),
    ],
)  # fmt: skip
def test_refuses_and_says_what_it_reads(parse: Callable[[str], int], text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse(text)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (print_duration, 0, "0s"),
        (print_duration, 36 * H, "1d12h"),
        (print_duration, 90 * S, "1m30s"),
        (print_duration, 60 * S + S // 2, "1m0.5s"),
        (print_duration, 1200, "1.2us"),
        (print_duration, 700, "700ns"),
        (print_duration, 5_000_000, "5ms"),
        (print_duration, S + 1, "1.000000001s"),
        (print_bytes, 0, "0B"),
        (print_bytes, 64 << 30, "64GiB"),
        (print_bytes, 1536, "1536B"),
        (print_bytes, 2048 << 40, "2048TiB"),
        (print_bandwidth, 0, "0bps"),
        (print_bandwidth, 400 * 10**9, "400Gbps"),
        (print_bandwidth, 1_000_001, "1000001bps"),
        (print_instant, 0, "1970-01-01T00:00:00+00:00"),
        (print_instant, -1, "1969-12-31T23:59:59.999999999+00:00"),
        (print_instant, 1_796_457_600 * S + 500_000_000, "2026-12-05T08:00:00.5+00:00"),
    ],
)
def test_writes(write: Callable[[int], str], value: int, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (print_duration, -1),
        (print_bytes, -1),
        (print_bandwidth, -1),
        (print_instant, 10**30),
    ],
)
def test_writes_nothing_that_could_not_be_read(write: Callable[[int], str], value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        write(value)


COUNT = st.integers(0, 10**24) | st.integers(0, 10**6)
INSTANT = st.integers(-62_135_596_800 * S, 253_402_300_800 * S - 1)


@given(COUNT)
def test_durations_come_back(value: int) -> None:
    assert parse_duration(print_duration(value)) == value


@given(COUNT | st.integers(0, 1000).map(lambda count: count << 30))
def test_bytes_come_back(value: int) -> None:
    assert parse_bytes(print_bytes(value)) == value


@given(COUNT | st.integers(0, 1000).map(lambda count: count * 10**9))
def test_bandwidths_come_back(value: int) -> None:
    assert parse_bandwidth(print_bandwidth(value)) == value


@given(st.integers(0, 1_000_000))
def test_shares_are_read_to_the_millionth(value: int) -> None:
    assert parse_share(f"{value // 10_000}.{value % 10_000:04}%") == value


@given(INSTANT)
def test_instants_come_back(value: int) -> None:
    assert parse_instant(print_instant(value)) == value


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001 - bounds are naive by contract
def test_instants_agree_with_the_standard_library(moment: datetime) -> None:
    offset = moment.utcoffset()
    if offset is None or offset % timedelta(minutes=1):
        return  # RFC 3339 has no seconds in an offset
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_instant(moment.isoformat()) == since // timedelta(microseconds=1) * 1000

"""The wire contract, to the byte: consumers in other languages depend on it."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from uuid import UUID

import pika.data
import pytest

from outbox_publisher import Event
from outbox_shared import headers
from outbox_shared.wire import (
    amqp_headers,
    format_time,
    header_text,
    headers_by_name,
    kafka_headers,
    read_headers,
    read_time,
    read_version,
)

EVERYTHING = Event(
    id=UUID("0190F0F0-0000-7000-8000-000000000001"),
    event_type="order-created",
    topic="orders",
    key="42",
    payload=b"{}",
    content_type="application/json",
    created_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    occurred_at=datetime(2026, 1, 31, 13, 30, tzinfo=timezone(timedelta(hours=1))),
    version=3,
    aggregate_type="Order",
    aggregate_id="42",
    correlation_id="req-ü",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    tracestate="a=b",
    baggage="user=1",
    headers={"tenant": "acme"},
)
LEAST = Event(
    id=UUID("0190f0f0-0000-7000-8000-000000000002"),
    event_type="order-created",
    topic="orders",
    key=None,
    payload=b"{}",
    content_type="application/json",
    created_at=datetime(2026, 1, 31, tzinfo=UTC),
)


def test_kafka_headers_are_these_bytes():
    assert kafka_headers(EVERYTHING) == [
        ("outbox_event_id", b"0190f0f0-0000-7000-8000-000000000001"),
        ("outbox_event_type", b"order-created"),
        ("content-type", b"application/json"),
        ("outbox_aggregate_type", b"Order"),
        ("outbox_aggregate_id", b"42"),
        ("outbox_correlation_id", b"req-\xc3\xbc"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", b"a=b"),
        ("baggage", b"user=1"),
        ("outbox_occurred_at", b"2026-01-31T12:30:00.000000Z"),
        ("outbox_event_version", b"3"),
        ("tenant", b"acme"),
    ]


def test_an_event_with_nothing_set_carries_the_three_required_headers_only():
    assert kafka_headers(LEAST) == [
        ("outbox_event_id", b"0190f0f0-0000-7000-8000-000000000002"),
        ("outbox_event_type", b"order-created"),
        ("content-type", b"application/json"),
    ]


def test_amqp_headers_are_these_bytes():
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, amqp_headers(LEAST))

    # a length, then per header: name length, name, 'S', value length, value
    assert b"".join(pieces).hex() == (
        "0000007f"
        "0f" + b"outbox_event_id".hex() + "5300000024" + b"0190f0f0-0000-7000-8000-000000000002".hex()
        + "11" + b"outbox_event_type".hex() + "530000000d" + b"order-created".hex()
        + "0c" + b"content-type".hex() + "5300000010" + b"application/json".hex()
    )  # fmt: skip


def test_every_name_that_the_library_writes_is_reserved():
    written = {name for name, _ in kafka_headers(EVERYTHING)} - {"tenant"}

    assert written == headers.RESERVED


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05.000000Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 120, tzinfo=UTC), "2026-01-02T03:04:05.000120Z"),
        (datetime(2026, 1, 2, 0, 30, tzinfo=timezone(timedelta(hours=2))), "2026-01-01T22:30:00.000000Z"),
    ],
)
def test_times_always_have_six_digits_and_a_z(moment, text):
    assert format_time(moment) == text


def test_the_last_of_repeated_headers_counts_and_null_is_absent():
    pairs = [
        ("a", b"old"),
        ("a", b"new"),
        ("b", b"x"),
        ("b", None),
        (b"c", "text"),
        ("d", 7),
        ("e", b"\xff"),
        ("f", [1]),
    ]

    assert read_headers(headers_by_name(pairs)) == {"a": "new", "c": "text", "d": 7, "e": b"\xff", "f": [1]}


@pytest.mark.parametrize(
    "container", [{"a": b"1"}, {b"a": b"1"}, MappingProxyType({"a": b"1"}), [("a", b"1")], (["a", b"1"],)]
)
def test_headers_come_in_either_container(container):
    assert headers_by_name(container) == {"a": b"1"}


@pytest.mark.parametrize("container", [None, {}, [], ()])
def test_a_message_without_headers_has_none(container):
    assert headers_by_name(container) == {}


@pytest.mark.parametrize(
    "container", ["text", 7, ["ab"], [("a", 1, 2)], [(1, 2)], {1: 2}, {"a": 1, None: 2}, object(), iter([])]
)
def test_what_is_no_headers_is_not_read_as_such(container):
    assert headers_by_name(container) is None


def test_a_container_is_never_changed():
    headers = {"a": b"1", b"b": None}

    read_headers(headers_by_name(headers))

    assert headers == {"a": b"1", b"b": None}


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (b"\xc3\xbc", "ü"), (b"\xff", None), (memoryview(b"a"), "a"), (7, "7"), (1.5, "1.5"),
     (Decimal("1.50"), "1.50"), (True, None), (None, None), ([1], None), ({"a": 1}, None), (object(), None), (10**5000, None)],
    ids=range(13),
)  # fmt: skip
def test_a_header_of_the_contract_is_text(value, text):
    assert header_text(value) == text


@pytest.mark.parametrize("written", [format_time(EVERYTHING.occurred_at), format_time(EVERYTHING.occurred_at).encode(),
                                     EVERYTHING.occurred_at, "2026-01-31T13:30:00+01:00"])  # fmt: skip
def test_a_time_is_read_in_utc(written):
    assert read_time(written) == datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
    assert read_time(written).tzinfo is UTC


@pytest.mark.parametrize(
    "written",
    [None, "", "soon", 7, b"\xff", "\ud800", "2026-01-31T12:00:00", datetime(2026, 1, 31), "x" * 1_000_000, {"a": 1},  # noqa: DTZ001
     "0001-01-01T00:00:00+14:00"],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_moment_is_none(written):
    assert read_time(written) is None


@pytest.mark.parametrize(("written", "version"), [("3", 3), (b"3", 3), (3, 3), ("0", 0), ("9999999999", 9_999_999_999)])
def test_a_version_is_read(written, version):
    assert read_version(written) == version


@pytest.mark.parametrize(
    "written",
    [
        None,
        "",
        "v3",
        "-1",
        -1,
        "1.5",
        1.5,
        "\N{SUPERSCRIPT TWO}",
        "\N{FULLWIDTH DIGIT ONE}",
        " 3",
        "1" * 5000,
        True,
        [3],
    ],
    ids=range(13),
)
def test_what_is_no_version_is_none(written):
    assert read_version(written) is None

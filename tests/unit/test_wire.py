"""The wire contract, to the byte: consumers in other languages depend on it."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pika.data
import pytest

from outbox_publisher import Event
from outbox_shared import headers
from outbox_shared.wire import amqp_headers, format_time, kafka_headers, read_headers

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
    read = read_headers(
        [("a", b"old"), ("a", b"new"), ("b", b"x"), ("b", None), (b"c", "text"), ("d", 7), ("e", b"\xff")]
    )

    assert read == {"a": "new", "c": "text", "d": "7", "e": b"\xff"}

"""What the peers' programs share: the events of the backlog, and the proof that each of them stands in the topic as it should."""

import argparse
import collections
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version

import confluent_kafka as ck
import psycopg

from benchmarks.reference.common import KAFKA, KEYS, PG, TOPIC, high_watermarks, payload

PAYLOADS = [payload(n) for n in range(1000)]


@dataclass(frozen=True, slots=True)
class Event:
    key: str
    headers: dict[str, str]
    payload: bytes


def event(number: int) -> Event:
    event_id = uuid.UUID(int=(0x0190F0F0 << 96) | (7 << 76) | (2 << 62) | number)
    headers = {
        "outbox_event_id": str(event_id),
        "outbox_event_type": "order-created",
        "content-type": "application/json",
        "outbox_aggregate_type": "Order",
        "outbox_aggregate_id": str(number),
    }
    return Event(f"k{number % KEYS}", headers, PAYLOADS[number % len(PAYLOADS)])


def events(count: int) -> Iterator[Event]:
    return map(event, range(count))


def fill(copy: str, rows: Iterator[tuple[object, ...]]) -> None:
    """COPY the rows into the peer's table, then leave it as the reference loops leave theirs."""
    with psycopg.connect(PG, autocommit=True) as connection:
        with connection.cursor().copy(copy) as into:
            for row in rows:
                into.write_row(row)
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def left(table: str) -> int:
    with psycopg.connect(PG, autocommit=True) as connection:
        row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def duplicates(count: int, additional: frozenset[str] = frozenset()) -> int:
    """How many messages the topic holds beyond one of each event; fails where an event is missing or not as the contract has it.

    `additional` names headers that the peer adds and cannot be kept from adding.
    """
    ends = high_watermarks()
    reader = ck.Consumer({"bootstrap.servers": KAFKA, "group.id": "reference", "enable.auto.commit": False})
    reader.assign([ck.TopicPartition(TOPIC, p, 0) for p, end in ends.items() if end > 0])
    seen: collections.Counter[int] = collections.Counter()
    while seen.total() < sum(ends.values()):
        messages = reader.consume(5000, 10)
        assert messages, f"{sum(ends.values()) - seen.total()} messages did not come"
        for message in messages:
            assert message.error() is None, message.error()
            headers = {name: value.decode() for name, value in message.headers()}
            number = int(headers["outbox_aggregate_id"])
            wanted = event(number)
            assert {name: headers[name] for name in headers.keys() - additional} == wanted.headers, headers
            assert (message.key().decode(), message.value()) == (wanted.key, wanted.payload)
            seen[number] += 1
    reader.close()
    missing, strange = set(range(count)) - seen.keys(), seen.keys() - set(range(count))
    assert not missing, f"{len(missing)} of {count} events are not in the topic"
    assert not strange, f"{len(strange)} events in the topic are not of this backlog"
    return seen.total() - count


def wanted_events(about: str | None) -> int:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--events", type=int, default=100_000)
    return int(parser.parse_args().events)


def print_result(peer: str, count: int, seconds: float, twice: int) -> None:
    line = {"events_per_s": round(count / seconds), "events": count, "duplicates": twice, "version": version(peer)}
    print(json.dumps(line))

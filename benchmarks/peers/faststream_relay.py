"""faststream-outbox at its defaults: the relay of its documentation, one subscriber with a Kafka publisher stacked on it.

Nothing is tuned: `subscriber()` fetches ten rows at a time for one worker, which deletes each row by itself; two lines are
logged for each message; `KafkaBroker()` sends with its client's own settings (acks 1). The handler is the documented one and
hands on the message's bytes, key and headers. The table has no column for a key, so the key travels among the row's headers.
"""

import asyncio
import json
from collections.abc import Iterator
from time import perf_counter

from faststream import FastStream
from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData, exists, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.peers import backlog
from benchmarks.reference.common import KAFKA, PG, TOPIC

QUEUE, KEY = "orders_outbox", "key"
COPY = "COPY outbox (queue, payload, headers) FROM STDIN"


def rows(count: int) -> Iterator[tuple[object, ...]]:
    for event in backlog.events(count):
        yield QUEUE, event.payload, json.dumps({**event.headers, KEY: event.key})


async def relay_all(engine: AsyncEngine, count: int) -> float:
    """Seconds from the relay's start until its table is empty."""
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await asyncio.to_thread(backlog.fill, COPY, rows(count))

    broker_outbox = OutboxBroker(engine, outbox_table=table)
    broker_kafka = KafkaBroker(KAFKA)
    handled, all_handled = 0, asyncio.Event()

    @broker_kafka.publisher(TOPIC)
    @broker_outbox.subscriber(QUEUE)
    async def relay(message: OutboxMessage) -> KafkaResponse:
        nonlocal handled
        handled += 1
        if handled == count:
            all_handled.set()
        headers = dict(message.headers)
        return KafkaResponse(message.body, key=headers.pop(KEY).encode(), headers=headers)

    async def drained() -> None:
        await all_handled.wait()
        async with engine.connect() as connection:
            while await connection.scalar(select(exists().select_from(table))):
                await asyncio.sleep(0.005)

    await broker_kafka.connect()
    app = FastStream(broker_outbox)
    start = perf_counter()
    running = asyncio.create_task(app.run())
    await drained()
    took = perf_counter() - start
    app.exit()
    await running
    await broker_kafka.stop()
    return took


async def measure(count: int) -> float:
    engine = create_async_engine(make_url(PG).set(drivername="postgresql+asyncpg"))
    try:
        return await relay_all(engine, count)
    finally:
        await engine.dispose()


def main() -> None:
    count = backlog.wanted_events(__doc__)
    took = asyncio.run(measure(count))
    assert backlog.left("outbox") == 0
    twice = backlog.duplicates(count, additional=frozenset({"correlation_id"}))
    backlog.print_result("faststream-outbox", count, took, twice)


if __name__ == "__main__":
    main()

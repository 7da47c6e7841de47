"""txoutbox at its best: batches of 500, 100 sends at once, rows deleted when they are acknowledged, no order among batches."""

# Tried on 20,000 events, variants interleaved and repeated four to six times on a busy machine; medians, of what runs here:
#   publish_timeout at its default of 5 s, and asyncio's own loop: 0.73 to 0.89; without the timeout, on asyncio's loop: 0.83 to 0.96.
#     So none is set (a send that the Kafka client gives up, after 40 s, still fails and is tried again), and uvloop runs it.
#   500 sends at once instead of 100: 0.69. max_batch_size 128 kB instead of 16 kB: 0.93. linger_ms 2: 0.91.
#   confluent-kafka and futures instead of aiokafka: 0.84 polled on the loop, 0.78 polled by a thread.
#   acks 1 without idempotence: 0.85 to 1.09, so noise. Ours sends idempotent with acks all, and so does this.
#   batches of 1,000: 1.15; both sides have 500.

import asyncio
import json
from collections.abc import Iterator
from time import perf_counter

import asyncpg
import uvloop
from aiokafka import AIOKafkaProducer
from txoutbox import Hooks, OutboxMessage, Relay, RelayConfig, RoundResult
from txoutbox.adapters.postgres import PostgresStorage

from benchmarks.peers import backlog
from benchmarks.reference.common import KAFKA, PG, TOPIC

COPY = "COPY outbox (topic, key, payload, headers) FROM STDIN"
CONFIG = RelayConfig(batch_size=500, concurrency=100, publish_timeout=None)


class Stopwatch(Hooks):
    """Ends the relay after the round that has settled the last event, and notes when that was."""

    relay: Relay
    end: float

    def __init__(self, wanted: int) -> None:
        self.missing = wanted

    async def on_round(self, result: RoundResult, duration: float) -> None:
        self.missing -= result.published
        if self.missing <= 0:
            self.end = perf_counter()
            self.relay.stop()


def rows(count: int) -> Iterator[tuple[object, ...]]:
    for event in backlog.events(count):
        yield TOPIC, event.key, event.payload, json.dumps(event.headers)


async def relay_all(pool: asyncpg.Pool, producer: AIOKafkaProducer, count: int) -> float:
    """Seconds from the relay's first claim until the last event's row is deleted."""
    storage = PostgresStorage(pool, delete_on_ack=True, strict_ordering=False)
    await storage.create_schema()
    await asyncio.to_thread(backlog.fill, COPY, rows(count))

    async def publish(message: OutboxMessage) -> None:
        headers = [(name, value.encode()) for name, value in message.headers.items()]
        await producer.send_and_wait(message.topic, message.payload, key=message.key.encode(), headers=headers)

    stopwatch = Stopwatch(count)
    stopwatch.relay = relay = Relay(storage, publish, config=CONFIG, hooks=stopwatch)
    start = perf_counter()
    await relay.run()
    return stopwatch.end - start


async def measure(count: int) -> float:
    producer = AIOKafkaProducer(bootstrap_servers=KAFKA, acks="all", enable_idempotence=True)
    async with asyncpg.create_pool(PG) as pool, producer:
        await producer.partitions_for(TOPIC)
        return await relay_all(pool, producer, count)


def main() -> None:
    count = backlog.wanted_events(__doc__)
    took = uvloop.run(measure(count))
    assert backlog.left("outbox") == 0
    backlog.print_result("txoutbox", count, took, backlog.duplicates(count))


if __name__ == "__main__":
    main()

"""A consuming process to be killed: many threads, deliveries in any order, a handler that fails now and then.

It writes down on a pipe what it did, a line for each:

    held <event> <entered> <left>      a handler stood in its transaction, with the event's key in its hands, from then to then
    asked <event> <sent> <answered>    the statement for a mark (on SQLite the BEGIN that takes the one lock) was sent, and answered
    acked <number>                     the delivery is acknowledged

Times are those of the machine's monotonic clock, which all processes share. A line is one write to a pipe, so it is there whole or not
at all, and what was acknowledged had been committed.
"""

import os
import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from outbox_consumer import ConsumerSettings, EventInProgress, IdempotentConsumer
from tests.consuming import a_message, book, open_database
from tests.failure.victim import _end_with_the_test, _write_down_everything

FAILING = 0.1
LONGEST_WORK = 0.003


@dataclass(frozen=True)
class Share:
    """What one process is to deliver."""

    url: str
    log: str
    threads: int
    deliveries: Sequence[tuple[int, UUID]]
    """Numbered."""
    seed: int


def work(share: Share, parent: Connection) -> None:
    _write_down_everything(share.log)
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    engine = open_database(share.url, pool_size=share.threads)
    consumer = IdempotentConsumer(
        engine,
        name="torture",
        settings=ConsumerSettings(lock_timeout="60s", tables={"auto_create": False}, clean_up={"enabled": False}),
    )
    waiting: queue.SimpleQueue[tuple[int, UUID]] = queue.SimpleQueue()
    for delivery in share.deliveries:
        waiting.put(delivery)
    here = threading.local()

    @event.listens_for(engine, "before_cursor_execute")
    def _sent(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if here.sent is None and ("consumed_events" in statement or statement.startswith("BEGIN")):
            here.sent = time.monotonic_ns()

    def say(*words: object) -> None:
        os.write(parent.fileno(), (" ".join(map(str, words)) + "\n").encode())

    def serve(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            try:
                number, event_id = waiting.get_nowait()
            except queue.Empty:
                return
            here.sent, held = None, []

            def handler(session: Any, message: Any) -> None:
                held.append(time.monotonic_ns())  # noqa: B023 - it runs within this turn
                book(session, message)
                time.sleep(chance.uniform(0, LONGEST_WORK))  # whatever else the work is
                held.append(time.monotonic_ns())  # noqa: B023
                if chance.random() < FAILING:
                    raise LookupError

            done = False
            try:
                consumer.consume(a_message(event_id), handler)
                done = True
            except (LookupError, EventInProgress, DBAPIError):
                waiting.put((number, event_id))  # the broker delivers again
            answered = held[0] if held else time.monotonic_ns()
            if here.sent is not None:
                say("asked", event_id, here.sent, answered)
            if len(held) == 2:
                say("held", event_id, *held)
            if done:
                say("acked", number)

    threads = [threading.Thread(target=serve, args=(share.seed * 1000 + n,)) for n in range(share.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)

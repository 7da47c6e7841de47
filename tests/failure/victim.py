"""A relay to be killed, paused or poisoned: a whole process with the real sender, which can be told to stand still at a border.

It says on a pipe its relay's name, and later each border at which it stands, with the ids of the batch that stands there; then it waits
for a word to go on. Only the thread that relays stands still: its heartbeat goes on, and so does the broker's client.

    after claim     the claim is committed, and nothing was handed to the client
    after produce   the whole batch was handed to the client, and no answer of the broker was read
    after ack       every answer is in, and the settle has not begun
    during settle   the settle's statements were executed, and its transaction is open (on PostgreSQL that takes a transaction that is
                    too large for one write, so all of this victim's are)
    settle sent     on PostgreSQL: the settle has left, with the next claim and the COMMIT, and no answer was read
    after settle    the settle is committed, whatever it found
"""

import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

from outbox_publisher import Event, PublisherSettings, Relay
from outbox_publisher.claims import Batch, RowClaims
from outbox_publisher.relay.settler import Landed, Settler
from outbox_publisher.senders import Flight, Sender, SendResult, sender_for
from outbox_publisher.store import burst_postgresql
from outbox_publisher.store.burst_postgresql import Burst
from outbox_publisher.store.hot import BURST

BORDERS = ("after claim", "after produce", "after ack", "during settle")
POISONED = 9
"""How the process ends over its poison."""


@dataclass(frozen=True)
class Order:
    """What a victim is to do."""

    settings: dict[str, Any]
    log: str
    stands_at: Sequence[str] = ()
    batch: int = 2
    """The batch, counted from one, with which it stands still; those before it are relayed as ever."""
    poison: bytes | None = None
    """The payload that kills the process."""


def work(order: Order, parent: Connection) -> None:
    """Relay until somebody kills this process, or ends it well with SIGTERM."""
    _write_down_everything(order.log)
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    settings = PublisherSettings(**order.settings)
    sender = BorderedSender(sender_for(settings), order, parent)
    _stand_in_settles(sender, order)
    Settler.exchange = _then(Settler.exchange, lambda _settler, landed, *_: sender.stand_after(landed))
    relay = Relay(settings, sender=sender)
    parent.send(relay.name)
    relay.run()
    sender.close()


def _stand_in_settles(sender: "BorderedSender", order: Order) -> None:
    leaving: list[Sequence[Event]] = []

    def settled(_claims: RowClaims, connection: Any, batch: Batch, *_: Any) -> None:
        if BURST in connection.info:
            leaving.append(batch.events)
        else:
            sender.stand("during settle", batch.events)

    def at(border: str, portion: Sequence[Any]) -> None:
        for one in portion:
            if one.text.startswith((b"UPDATE", b"DELETE FROM outbox_events")):
                sender.stand(border, leaving.pop(0))

    RowClaims.settle = _then(RowClaims.settle, settled)
    if "during settle" in order.stands_at:
        burst_postgresql.ONE_WRITE = 0
        Burst._hear = _then(Burst._hear, lambda _, portion: at("during settle", portion))
    if "settle sent" in order.stands_at:
        Burst._send = _then(Burst._send, lambda _, portion: at("settle sent", portion))


class BorderedSender:
    """The real sender, and the borders on both sides of it."""

    def __init__(self, sender: Sender, order: Order, parent: Connection) -> None:
        self._sender, self._order, self._parent = sender, order, parent
        self._numbers: dict[UUID, int] = {}  # of batches, by their first event
        self.probe = sender.probe

    def stand(self, border: str, events: Sequence[Event]) -> None:
        if self._numbers[events[0].id] == self._order.batch and border in self._order.stands_at:
            self._parent.send((border, [event.id for event in events]))
            self._parent.recv()

    def stand_after(self, landed: Sequence[Landed]) -> None:
        for one in landed:
            self.stand("after settle", one.batch.events)

    def send(self, events: Sequence[Event], deadline: float) -> Flight:
        self._numbers[events[0].id] = len(self._numbers) + 1
        self.stand("after claim", events)
        payloads = [event.payload for event in events]
        if self._order.poison in payloads:  # the client dies over it, with those before it on their way
            self._sender.send(events[: payloads.index(self._order.poison)], deadline)
            os._exit(POISONED)
        flight = self._sender.send(events, deadline)
        self.stand("after produce", events)
        return BorderedFlight(flight, lambda: self.stand("after ack", events))

    def close(self) -> None:
        self._sender.close()


@dataclass(frozen=True)
class BorderedFlight:
    flight: Flight
    stand: Callable[[], None]

    def done(self) -> bool:
        return self.flight.done()

    def results(self) -> Sequence[SendResult]:
        results = self.flight.results()
        self.stand()
        return results


def _then(function: Callable[..., Any], stand: Callable[..., None]) -> Any:
    def and_then(*arguments: Any, **options: Any) -> Any:
        done = function(*arguments, **options)
        stand(*arguments)
        return done

    return and_then


def _end_with_the_test() -> None:
    """Also where the test run is killed: nobody else would."""
    test = multiprocessing.parent_process()
    assert test is not None
    test.join()
    os._exit(1)


def _write_down_everything(log: str) -> None:
    """Also the traceback of a victim that failed."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)

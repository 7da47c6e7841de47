"""A relay's sign of life: a row in outbox_state, and the leases of all its batches in flight, renewed together."""

import json
import os
import socket
from datetime import timedelta

from sqlalchemy.engine import Connection

from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.store import EventStore
from outbox_shared import __version__
from outbox_shared.clock import Clock
from outbox_shared.conflicts import Transactions
from outbox_shared.state import RELAY

PER_LEASE = 3
"""Beats within one lease."""
PROMISE = 1.5
"""A beat is good for so many intervals: less than a lease, so that a dead relay's last beat ends before its last lease (`recovering`)."""


class Heartbeat:
    """A duty. A batch that has been worked on for longer than `longest` is not renewed any more: others may take it."""

    name = "heartbeat"

    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        relay: str,
        inflight: InFlight,
        lease: timedelta,
        longest: timedelta,
        clock: Clock,
    ) -> None:
        self._transactions, self._store, self._relay, self._inflight = transactions, store, relay, inflight
        self._lease, self._longest = lease.total_seconds(), longest.total_seconds()
        self.interval = lease / PER_LEASE
        self._clock = clock
        self._promised_until: float | None = None
        self._about = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "version": __version__})

    def run_once(self) -> int:
        """Returns how many leases were renewed."""
        began = self._clock.monotonic()
        renewed = self._transactions.run(self._beat)
        self._promised_until = began + self.interval.total_seconds() * PROMISE
        return renewed

    def was_silent(self) -> bool:
        """Whether its promise is over: this process stood still, or the database was away, and then for everybody."""
        return self._promised_until is not None and self._clock.monotonic() > self._promised_until

    def end(self) -> None:
        """The relay has stopped, and says so."""
        self._transactions.run(lambda it: self._store.state.remove(it, RELAY, self._relay))

    def _beat(self, connection: Connection) -> int:
        promise = self.interval.total_seconds() * PROMISE
        self._store.state.put(connection, RELAY, self._relay, seconds=promise, value=self._about)
        tokens = self._inflight.younger_than(self._longest)
        return self._store.renew(connection, tokens, self._lease) if tokens else 0

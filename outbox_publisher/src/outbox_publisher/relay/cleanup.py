"""Cleanup of what relays leave behind; that of events and dead letters is `outbox_shared.cleanup`, with the store's statements."""

from datetime import timedelta

from outbox_publisher.store import EventStore
from outbox_shared.conflicts import Transactions
from outbox_shared.state import RELAY

HEARTBEATS_KEPT = timedelta(days=1)


class StateCleanup:
    """A duty: heartbeats of relays that have long been gone."""

    name = "state-cleanup"
    interval = timedelta(hours=1)

    def __init__(self, transactions: Transactions, store: EventStore) -> None:
        self._transactions, self._store = transactions, store

    def run_once(self) -> int:
        return self._transactions.run(
            lambda it: self._store.state.remove_old(it, RELAY, HEARTBEATS_KEPT.total_seconds())
        )

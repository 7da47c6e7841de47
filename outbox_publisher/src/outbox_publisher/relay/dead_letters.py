"""The dead letters' duties: rows that failed while there was no queue for them, and letters that people send back."""

import logging

from outbox_publisher.relay.settler import DeadLetterHook, tell
from outbox_publisher.store import EventStore
from outbox_shared.conflicts import Transactions

log = logging.getLogger(__name__)


class Sweep:
    """A duty: FAILED rows left from `dlq.enabled: false` move into the dead letters."""

    name = "dead-letter-sweep"

    def __init__(self, transactions: Transactions, store: EventStore, batch_size: int, hook: DeadLetterHook) -> None:
        self._transactions, self._store, self._batch_size, self._hook = transactions, store, batch_size, hook

    def run_once(self) -> int:
        if not self._transactions.read(self._store.dead_letters.has_failed):
            return 0
        moved = self._transactions.run(lambda it: self._store.dead_letters.sweep(it, self._batch_size))
        tell(self._hook, moved)
        return len(moved)


class Replays:
    """A duty: TO_RETRY letters become events again, with the same id and a fresh budget."""

    name = "dead-letter-replays"

    def __init__(self, transactions: Transactions, store: EventStore, batch_size: int) -> None:
        self._transactions, self._store, self._batch_size = transactions, store, batch_size

    def run_once(self) -> int:
        if not self._transactions.read(self._store.dead_letters.has_to_retry):
            return 0
        back, there = self._transactions.run(lambda it: self._store.dead_letters.take_back(it, self._batch_size))
        if back:
            log.info("%d dead letters are to be sent again", back)
        if there:
            log.warning("%d dead letters were published again meanwhile and are resolved", there)
        return back + there

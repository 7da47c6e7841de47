"""Recovery: rows of a relay that died go back to PENDING when their lease is over."""

import logging

from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.store import EventStore

log = logging.getLogger(__name__)


class Recovery:
    """A duty. It costs the rows no attempt, since nothing is known about their last send; `lost_claims` counts it."""

    name = "recovery"

    def __init__(self, transactions: Transactions, store: EventStore, batch_size: int) -> None:
        self._transactions, self._store, self._batch_size = transactions, store, batch_size

    def run_once(self) -> int:
        """Returns how many rows came back. A few claims at a time, so that no transaction grows with the backlog of the dead."""
        total = 0
        while True:
            claims, rows = self._transactions.run(lambda it: self._store.recover(it, self._batch_size))
            total += rows
            if rows:
                log.warning("recovered %d events of %d claims whose relay did not finish", rows, claims)
            if claims < self._batch_size:
                return total

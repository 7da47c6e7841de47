"""What a publisher leaves with a transaction: once that is visible, relays are woken."""

import logging
from dataclasses import dataclass
from typing import Protocol

from outbox_publisher.hints.bells import Address, ring
from outbox_publisher.hints.notifier import Notifier
from outbox_publisher.store import channel_for, notification
from outbox_shared.origins import Origin
from outbox_shared.tables import TableNames

log = logging.getLogger(__name__)


class Wakes(Protocol):
    """A notifier, of whichever kind."""

    def wake(self) -> None: ...
    def close(self) -> None: ...


class Waker:
    """Everything that a hint from one origin does. One per outbox and origin."""

    def __init__(self, origin: Origin, names: TableNames) -> None:
        self._address: Address = (origin.place, names)
        channel = channel_for(origin.place.dialect, names)
        self._notifier = None if channel is None or not origin.can_open else _notifier(origin, notification(channel))

    def wake(self) -> None:
        ring(self._address)
        if self._notifier is not None:
            self._notifier.wake()


@dataclass(frozen=True, slots=True)
class Hint:
    """Told by the connection, wherever the commit happened: costs the committing thread microseconds, and never raises.

    A transaction keeps one for each outbox, however many objects publish into it.
    """

    names: TableNames

    def __call__(self, origin: Origin) -> None:
        try:
            waker = origin.made.get(self.names)
            if waker is None:
                waker = origin.made.setdefault(self.names, Waker(origin, self.names))
            waker.wake()
        except Exception as error:  # noqa: BLE001 - what is committed is committed: a poll will find it
            log.debug("a hint was dropped: %s", error)


def _notifier(origin: Origin, statement: str) -> Wakes:
    notifier: Wakes
    if origin.is_async:
        from outbox_publisher.hints.async_notifier import AsyncNotifier  # noqa: PLC0415 - needs greenlet

        notifier = AsyncNotifier(origin.open, statement, origin.idle)
    else:
        notifier = Notifier(origin.open, statement, origin.idle)
    origin.when_disposed(notifier.close)
    return notifier

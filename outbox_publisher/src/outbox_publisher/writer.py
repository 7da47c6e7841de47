"""Stores events in a caller's transaction: what Outbox and AsyncOutbox have in common, below the difference between them."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from outbox_publisher.draft import EventDraft
from outbox_publisher.event import NewEvent
from outbox_publisher.hints import ByHand, Hint
from outbox_publisher.prepare import Preparer
from outbox_publisher.serialization import JsonSerializer, Serializer
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import Inserts, inserts_for, is_delayed
from outbox_shared.adapters import Call
from outbox_shared.context import current_story
from outbox_shared.driver import Driver, Speech
from outbox_shared.errors import MissingTable, NoActiveTransaction, PublishError
from outbox_shared.tables import is_missing_table
from outbox_shared.transaction import Transaction, driver_of, identity_of, open_transaction

R = TypeVar("R")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """The event's id, and whether this call stored it: False for a caller's `event_id` that was there already."""

    id: UUID
    stored: bool


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The events' ids in their order, and how many this call stored."""

    ids: tuple[UUID, ...]
    stored: int


class EventWriter:
    """Every check comes before any SQL. Holds settings only, so it can be shared by threads and survives a fork."""

    def __init__(self, settings: PublisherSettings, serializer: Serializer | None) -> None:
        if not isinstance(settings, PublisherSettings):
            raise TypeError(
                f"an outbox is made of PublisherSettings, not {type(settings).__name__}: Outbox(PublisherSettings.load())"
            )
        self._settings, self._tables = settings, settings.tables.names
        self._hint = Hint(self._tables) if settings.wakeup == "notify" else None
        self._by_hand: ByHand | None = None
        self._inserts: dict[Speech, Inserts] = {}
        self._prepare = Preparer(settings, serializer or JsonSerializer()).prepare

    def store(self, transaction: Transaction, draft: EventDraft, call: Call) -> Published:
        event, driver = self._before_sql(transaction, call, lambda: self._prepare(draft, current_story()))
        stored = self._run(driver, lambda inserts: inserts.one(driver, event))
        if stored and not is_delayed(event):
            self._leave_a_hint(driver)
        return Published(event.id, stored)

    def store_batch(self, transaction: Transaction, drafts: Iterable[EventDraft], call: Call) -> PublishedBatch:
        events, driver = self._before_sql(transaction, call, lambda: self._prepare_all(drafts))
        if not events:
            return PublishedBatch((), 0)
        stored = self._run(driver, lambda inserts: inserts.many(driver, events))
        if stored and not all(map(is_delayed, events)):
            self._leave_a_hint(driver)
        return PublishedBatch(tuple(event.id for event in events), stored)

    def cancel(self, transaction: Transaction, event_id: UUID, call: Call) -> bool:
        driver = driver_of(open_transaction(transaction, call))
        return self._run(driver, lambda inserts: inserts.cancel(driver, event_id))

    def wake(self, *, on_loop: bool = False) -> None:
        """Wake the relays of the settings' database now."""
        if self._hint is None:
            return
        if self._by_hand is None:
            self._by_hand = ByHand(self._settings.require_database_url(), self._tables)
        self._by_hand.wake(on_loop=on_loop)

    def _leave_a_hint(self, driver: Driver) -> None:
        """Relays are woken when the rows can be seen. The rows are stored, whatever becomes of this."""
        if self._hint is not None:
            try:
                driver.when_visible(self._hint)
            except Exception as error:  # noqa: BLE001 - a poll will find them
                log.debug("no hint will tell of the event: %s", error)

    def _before_sql(self, transaction: Transaction, call: Call, make: Callable[[], R]) -> tuple[R, Driver]:
        """Code of the caller's runs in between (a generator of payloads, a serializer): the transaction must outlast it."""
        checked = open_transaction(transaction, call)
        before = identity_of(checked)
        made = make()
        if identity_of(open_transaction(transaction, call)) is not before:
            raise NoActiveTransaction(
                "the transaction was ended while the payloads were made, so nothing would tie the events to your change: "
                "commit after publish, not inside of what it calls"
            )
        return made, driver_of(checked)

    def _prepare_all(self, drafts: Iterable[EventDraft]) -> list[NewEvent]:
        story, events = current_story(), []
        for number, draft in enumerate(drafts):
            try:
                events.append(self._prepare(draft, story))
            except PublishError as error:
                error.add_note(f"event number {number} of this batch, counted from 0")
                raise
        return events

    def _run(self, driver: Driver, work: Callable[[Inserts], R]) -> R:
        inserts = self._inserts.get(driver.speech)
        if inserts is None:
            inserts = self._inserts[driver.speech] = inserts_for(driver.speech, self._tables)
        try:
            return work(inserts)
        except Exception as error:
            if is_missing_table(error):
                name = inserts.table_name
                raise MissingTable(f"the database has no table {name}: run `outbox-publisher init-db`") from error
            raise

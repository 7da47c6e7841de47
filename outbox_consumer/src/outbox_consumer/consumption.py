"""One message or many: what both consumers do, below the difference between them. A cache is looked at here; attempts.py does the rest."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import UUID

from outbox_consumer.attempts import Attempt, Attempts
from outbox_consumer.batches import Batch
from outbox_consumer.binds import own_engine
from outbox_consumer.bisection import Refused, find_bad
from outbox_consumer.cache import Cache
from outbox_consumer.foreign import IdFrom, checked_id_from
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identity
from outbox_consumer.memory import Memory
from outbox_consumer.outcome import Outcome, Status
from outbox_consumer.schema import create_where_possible
from outbox_consumer.sessions import Sessions
from outbox_consumer.settings import ConsumerSettings, check_name
from outbox_consumer.telemetry import End, Telemetry
from outbox_shared.adapters import Call
from outbox_shared.context import NO_STORY, consuming
from outbox_shared.errors import ConfigurationError
from outbox_shared.transaction import Transaction, driver_of, open_transaction, single_bind

log = logging.getLogger(__name__)

M = TypeVar("M")
R = TypeVar("R")

OnError: TypeAlias = Literal["raise", "bisect"]

_ENDS: dict[Status, End] = {Status.CONSUMED: "consumed", Status.DUPLICATE: "duplicated", Status.FAILED: "failed"}


class Consumption:
    """Thread-safe. `sessions` says how sessions are made and how to wait, which is all that differs in an async program."""

    def __init__(
        self,
        sessions: Sessions,
        name: str | None,
        cache: Cache | None,
        settings: ConsumerSettings | None,
        id_from: IdFrom | None,
        telemetry: Telemetry | None,
    ) -> None:
        self._id_from = checked_id_from(id_from)
        self.settings = ConsumerSettings() if settings is None else settings
        self.name = self.settings.require_name() if name is None else _checked(name)
        if not self.settings.enabled:
            raise ConfigurationError(
                "consumer.enabled is false in the settings: set it to true, or build no consumer here"
            )
        for warning in self.settings.warnings():
            log.warning("%s", warning)
        self._sessions, self._telemetry = sessions, telemetry or Telemetry(self.name)
        self._memory = Memory(cache, self.name, self.settings, sessions, self._telemetry)
        self._attempts = Attempts(sessions, self.name, self.settings, self._memory, self._telemetry)
        self._created = False
        single_bind(sessions.look())  # a session over two databases is refused here already

    def create_tables(self) -> None:
        """Once, where the settings and the bind allow it."""
        if not self._created:
            if self.settings.tables.auto_create:
                create_where_possible(own_engine(self._sessions.look()), self.settings.tables.names)
            self._created = True

    def close(self) -> list[Any]:
        """What is left to be closed, or awaited."""
        self._memory.close()
        return self._attempts.close()

    # One message.

    def one(self, message: object, work: Callable[[Any], R]) -> Outcome[R]:
        identity, started = identify(message, self._id_from), time.perf_counter()
        try:
            outcome = self._one(identity, work)
        except BaseException as error:
            self._telemetry.ended(identity, "failed", time.perf_counter() - started, error=error)
            raise
        self._tell(identity, outcome, started)
        return outcome

    def _one(self, identity: Identity, work: Callable[[Any], R]) -> Outcome[R]:
        look = self._memory.look([identity.event_id])
        if look.known:
            return _duplicate(identity, from_cache=True)
        attempt = Attempt([identity], lambda given, _fresh: work(given), lambda: self._handling(identity), look)
        self._attempts.run(attempt)
        return _consumed(identity, attempt.result) if attempt.fresh else _duplicate(identity)

    @contextmanager
    def _handling(self, identity: Identity) -> Iterator[None]:
        with consuming(identity.story), self._telemetry.processing(identity):
            yield  # what the handler publishes continues the message's story

    # Many messages.

    def batch(self, messages: Iterable[M], work: Callable[[Any, list[M]], R], on_error: OnError) -> "list[Outcome[R]]":
        if on_error not in {"raise", "bisect"}:
            raise ValueError(f'on_error is "raise" or "bisect", not {on_error!r}')
        if on_error == "bisect":
            self._attempts.require_own_transactions()
        batch, started = Batch.of(messages, self._id_from), time.perf_counter()
        fates: dict[UUID, Outcome[R]] = {}
        try:
            self._batch(batch, work, on_error, fates)
        except BaseException as error:
            for identity in batch.firsts():
                if identity.event_id in fates:  # a part of the batch was committed before
                    self._tell(identity, fates[identity.event_id], started)
                else:
                    self._telemetry.ended(identity, "failed", time.perf_counter() - started, error=error)
            raise
        outcomes = batch.outcomes(fates)
        for identity, outcome in zip(batch.identities, outcomes, strict=True):
            self._tell(identity, outcome, started)
        return outcomes

    def _batch(
        self, batch: Batch[M], work: Callable[[Any, list[M]], R], on_error: OnError, fates: dict[UUID, Outcome[R]]
    ) -> None:
        """Decides the fate of each event. Parts that are committed keep theirs, whatever becomes of later ones."""
        events = batch.firsts()
        look = self._memory.look([event.event_id for event in events])
        fates |= {
            event.event_id: _duplicate(event, from_cache=True) for event in events if event.event_id in look.known
        }

        def consume(part: Sequence[Identity]) -> Refused[Identity] | None:
            attempt = Attempt(part, lambda given, fresh: work(given, batch.with_ids(fresh)), _no_story, look)
            refused = self._refusal(attempt, on_error)
            fresh = attempt.fresh or set()
            for event in part:
                if event.event_id not in fresh:
                    fates[event.event_id] = _duplicate(event)
                elif refused is None:
                    fates[event.event_id] = _consumed(event, attempt.result)
            return refused

        for event, error in find_bad([event for event in events if event.event_id not in look.known], consume):
            fates[event.event_id] = Outcome(Status.FAILED, event.event_id, event.event_type, error=error)

    def _refusal(self, attempt: Attempt[Any], on_error: OnError) -> Refused[Identity] | None:
        """The error that some of these messages caused, where it is looked for; one that would meet any message comes out."""
        try:
            self._attempts.run(attempt)
        except Exception as error:
            if on_error == "raise" or attempt.fresh is None or not self._attempts.is_the_messages_own(error):
                raise
            return Refused([event for event in attempt.events if event.event_id in attempt.fresh], error)
        return None

    # In a transaction of the caller's.

    def claim(self, transaction: Transaction, message: object, call: Call) -> bool:
        return bool(self._claim(transaction, [identify(message, self._id_from)], call))

    def claim_batch(self, transaction: Transaction, messages: Iterable[M], call: Call) -> list[M]:
        batch = Batch.of(messages, self._id_from)
        return batch.with_ids(self._claim(transaction, batch.firsts(), call))

    def _claim(self, transaction: Transaction, events: Sequence[Identity], call: Call) -> set[UUID]:
        checked = open_transaction(transaction, call)
        return self._attempts.mark(driver_of(checked), events) if events else set()

    def _tell(self, identity: Identity, outcome: Outcome[Any], started: float) -> None:
        seconds, end = time.perf_counter() - started, _ENDS[outcome.status]
        self._telemetry.ended(identity, end, seconds, from_cache=outcome.from_cache, error=outcome.error)


def _no_story() -> Any:
    """What a batch's handler publishes continues no message's story: it has many."""
    return consuming(NO_STORY)


def _consumed(identity: Identity, result: R | None) -> Outcome[R]:
    return Outcome(Status.CONSUMED, identity.event_id, identity.event_type, result)


def _duplicate(identity: Identity, *, from_cache: bool = False) -> Outcome[Any]:
    return Outcome(Status.DUPLICATE, identity.event_id, identity.event_type, from_cache=from_cache)


def _checked(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None

"""One round of a relay: a look at the database, and a turn for every type that has something due and may be sent."""

import logging
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from sqlalchemy.engine import Engine

from outbox_publisher.claims import ClaimStrategy
from outbox_publisher.relay.breaker import Breakers, State
from outbox_publisher.relay.conflicts import Transactions
from outbox_publisher.relay.lock import PollerLock
from outbox_publisher.relay.outlook import Outlook, look
from outbox_publisher.relay.worker import Outcomes, Turn, Worker
from outbox_publisher.senders.base import Probing, Sender
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import EventStore, Wanted
from outbox_shared.clock import Clock
from outbox_shared.database import reading
from outbox_shared.state import SUSPECTS

log = logging.getLogger(__name__)

SUSPECTS_TURN = 4
"""Suspects get one turn in so many, or the turn of those who have nothing else to send."""
SUSPECTS_LOOK = 10.0
"""Seconds between two looks whether any suspects are left: without an index it reads every open row."""
LOOK_LASTS = 0.5
"""Seconds after which a look is repeated, also within a round: a pause is obeyed within a second."""
PROBE_SECONDS = 1.0


class Rounds:
    def __init__(
        self,
        engine: Engine,
        transactions: Transactions,
        store: EventStore,
        claims: ClaimStrategy,
        worker: Worker,
        sender: Sender,
        lock: PollerLock,
        settings: PublisherSettings,
        clock: Clock,
        stopping: Callable[[], bool],
    ) -> None:
        self._stopping = stopping
        self._engine, self._transactions, self._store, self._claims = engine, transactions, store, claims
        self._worker, self._sender, self._lock, self._settings, self._clock = worker, sender, lock, settings, clock
        deliveries = [settings.defaults, *settings.deliveries.values()]
        self.base = min(delivery.fixed_delay for delivery in deliveries).total_seconds()
        self.breakers = Breakers(self.base)
        self._turns: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._suspects_looked: dict[str, float] = {}
        self._began = clock.monotonic()
        self.waits = False
        """Whether another relay has the poller lock: then hints are for that one."""

    def once(self) -> Turn:
        """One batch of every type that has something due, as far as nothing is paused or away."""
        self.waits = not self._lock.is_ours()
        if self.waits or not self._sender_answers():
            return Turn(unavailable=self.breakers.sender.state is not State.CLOSED)
        outlook, looked = self._look()
        if self.breakers.sender.state is State.TRYING:
            return self._try_sender(outlook)
        done = self._try_topics(outlook)
        for event_type in outlook.types:
            if self._stopping() or self.breakers.sender.state is not State.CLOSED:
                break
            if self._clock.monotonic() - looked > LOOK_LASTS:
                outlook, looked = self._look()
            if event_type in outlook.types and self._is_its_time(event_type):
                done += self._turn(event_type, outlook)
        return done

    def pause(self, turn: Turn) -> float:
        """Seconds until the next round, after this one."""
        now = self._clock.monotonic()
        if self.breakers.sender.state is State.OPEN:
            return max(0.0, self.breakers.sender.until - now)
        if self.breakers.sender.state is State.TRYING or (
            turn.full and turn.delivered + turn.buried + turn.rescheduled
        ):
            return 0.0 if turn.claimed else self.base
        return self.base * (1 + 0.1 * random.random())

    # What is away.

    def _sender_answers(self) -> bool:
        """False while the broker is away. When its pause is over it is asked, before any event is claimed for it."""
        breaker, now = self.breakers.sender, self._clock.monotonic()
        if breaker.asks(now):
            trouble = self._probe(None)
            if trouble is None:
                log.info("the broker answers again: one event goes first")
                breaker.answered()
            else:
                breaker.fail(trouble, self._clock.monotonic(), random.random())
                wait = breaker.until - self._clock.monotonic()
                log.warning("the broker is still away, asking again in %.1f s: %s", wait, breaker.reason)
        return breaker.state is not State.OPEN

    def _try_sender(self, outlook: Outlook) -> Turn:
        """One row, of whichever type has one."""
        for event_type in outlook.types:
            turn, outcomes = self._worker.turn(event_type, self._wanted(event_type, outlook, limit=1))
            if turn.claimed:
                self._note(outcomes)
                return turn
        self.breakers.sender.close()  # nothing waits: the next batch will tell
        return Turn()

    def _try_topics(self, outlook: Outlook) -> Turn:
        done = Turn()
        for topic, breaker in list(self.breakers.topics.items()):
            if topic in outlook.paused_topics:
                continue
            if breaker.asks(self._clock.monotonic()):
                trouble = self._probe(topic)
                if trouble is not None:
                    breaker.fail(trouble, self._clock.monotonic(), random.random())
                    continue
                breaker.answered()
            if breaker.state is State.TRYING:
                turn = self._try_topic(topic, breaker.event_type) if breaker.event_type in outlook.types else Turn()
                if not turn.claimed:  # nothing of it waits any more, or its type is paused: the next batch will tell
                    self.breakers.close_topic(topic)
                done += turn
        return done

    def _try_topic(self, topic: str, event_type: str) -> Turn:
        wanted = Wanted(limit=1, bytes=self._settings.max_batch_bytes, only=topic)
        turn, outcomes = self._worker.turn(event_type, wanted)
        self._note(outcomes)
        return turn

    def _probe(self, topic: str | None) -> str | None:
        if not isinstance(self._sender, Probing):
            return None  # a sender that cannot be asked is tried with a row
        try:
            return self._sender.probe(topic, PROBE_SECONDS)
        except Exception as error:  # whatever it is, the broker has not answered
            log.exception("the sender failed to ask its broker")
            return f"{type(error).__name__}: {error}"

    def _note(self, outcomes: Outcomes) -> None:
        open_before = self.breakers.sender.state is State.OPEN, self.breakers.blocked()
        now = self._clock.monotonic()
        self.breakers.note(outcomes, now, random.random())
        sender = self.breakers.sender
        if sender.state is State.OPEN and not open_before[0]:
            log.warning("the broker is away, asking again in %.1f s: %s", sender.until - now, sender.reason)
        for topic in self.breakers.blocked() - open_before[1]:
            log.warning("topic %s is away: %s", topic, self.breakers.topics[topic].reason)
        for topic in open_before[1] - self.breakers.blocked():
            log.info("topic %s is back", topic)

    # A turn.

    def _turn(self, event_type: str, outlook: Outlook) -> Turn:
        self._turns[event_type] += 1
        wanted = self._wanted(event_type, outlook)
        has_suspects = event_type in outlook.suspects
        suspects_first = has_suspects and self._turns[event_type] % SUSPECTS_TURN == 0
        began = self._clock.monotonic()
        turn, outcomes = self._worker.turn(event_type, wanted, suspects=suspects_first)
        if not turn.claimed and has_suspects:
            turn, outcomes = self._worker.turn(event_type, wanted, suspects=not suspects_first)
            if suspects_first or not turn.claimed:  # no suspect is due
                self._forget_suspects(event_type, outlook.suspects[event_type])
        self._note(outcomes)
        if wanted.without and not turn.claimed:
            # all that is due is blocked, or being claimed by others: to read past a million blocked rows is not for every round
            self._wait_at_least(event_type, max(1.0, 10 * (self._clock.monotonic() - began)))
        delay = self._settings.delivery_of(event_type).fixed_delay.total_seconds()
        if not turn.full and delay > self.base:
            self._wait_at_least(event_type, delay)
        return turn

    def _forget_suspects(self, event_type: str, seen: datetime) -> None:
        """Where none are left, due or not, nobody needs to look for them any more."""
        now = self._clock.monotonic()
        if now - self._suspects_looked.get(event_type, -SUSPECTS_LOOK) < SUSPECTS_LOOK:
            return
        self._suspects_looked[event_type] = now
        with reading(self._engine) as connection:
            left = self._store.has_suspects(connection, event_type)
        if not left:
            self._transactions.run(lambda it: self._store.state.remove_unless_touched(it, SUSPECTS, event_type, seen))

    def _wanted(self, event_type: str, outlook: Outlook, limit: int | None = None) -> Wanted:
        size = self._settings.delivery_of(event_type).batch_size if limit is None else limit
        blocked = outlook.paused_topics | self.breakers.blocked()
        return Wanted(limit=size, bytes=self._settings.max_batch_bytes, without=blocked)

    def _wait_at_least(self, event_type: str, seconds: float) -> None:
        self._not_before[event_type] = self._clock.monotonic() + seconds

    def _is_its_time(self, event_type: str) -> bool:
        now = self._clock.monotonic()
        starts = self._began + self._settings.delivery_of(event_type).initial_delay.total_seconds()
        return now >= starts and now >= self._not_before.get(event_type, 0.0)

    def _look(self) -> tuple[Outlook, float]:
        now = self._clock.monotonic()
        with reading(self._engine) as connection:
            return look(connection, self._store, self._claims), now

"""One worker's rounds: a look at the database, and a turn for every type that has something due and may be sent.

Between two rounds batches stay in the air; the worker rests when there is nothing to claim, until something lands, somebody rings, or it
is time to look again.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from outbox_publisher.hints import Bell
from outbox_publisher.relay.breaker import Breakers, State
from outbox_publisher.relay.flights import Flights, Outcomes
from outbox_publisher.relay.hints import Hints
from outbox_publisher.relay.inflight import InFlight
from outbox_publisher.relay.lock import PollerLock
from outbox_publisher.relay.outlook import Outlook, outlook_of, paused
from outbox_publisher.relay.turn import Turn
from outbox_publisher.relay.wakeup import Alert
from outbox_publisher.senders.base import Probing, Sender
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import EventStore, Wanted
from outbox_shared.clock import Clock, pause
from outbox_shared.conflicts import Transactions
from outbox_shared.state import SUSPECTS

log = logging.getLogger(__name__)

SUSPECTS_TURN = 4
"""Suspects get one turn in so many, or the turn of those who have nothing else to send."""
SUSPECTS_LOOK = 10.0
"""Seconds between two looks whether any suspects are left: without an index it reads every open row."""
LOOK_LASTS = 0.5
"""Seconds after which a look is repeated, also within a round: a pause is obeyed within a second."""
LOOK_SHARE = 10
"""A look at the types is repeated after so many times as long as it took: behind a long backlog it reads past what is done."""
PROBE_SECONDS = 1.0
REST = 0.05
"""Seconds between two looks at what may end a rest while batches are in the air."""


class Rounds:
    def __init__(
        self,
        transactions: Transactions,
        store: EventStore,
        flights: Callable[[Callable[[Outcomes, float], None]], Flights],
        sender: Sender,
        lock: PollerLock,
        breakers: Breakers,
        inflight: InFlight,
        settings: PublisherSettings,
        bell: Bell,
        clock: Clock,
        stopping: Callable[[], bool],
        serves: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._transactions, self._store, self._flights = transactions, store, flights(self._note)
        self._sender, self._lock, self._breakers, self._inflight = sender, lock, breakers, inflight
        self._settings, self._bell, self._clock, self._stopping, self._serves = settings, bell, clock, stopping, serves
        self._alert = Alert()
        self._waits = False
        """Whether another relay has the poller lock: then hints are for that one."""
        self._hints = Hints()
        self._turns: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._suspects_looked: dict[str, float] = {}
        self._began = clock.monotonic()
        self._outlook = Outlook()
        self._looked_at = self._looked_at_types = self._look_again_at = -LOOK_LASTS
        self._look_took = 0.0

    def once(self) -> Turn:
        """One batch of every type that has something due, as far as nothing is paused or away; nothing stays in the air."""
        self._hints.forget_all()
        self._outlook, self._look_again_at = Outlook(), self._clock.monotonic()
        return self.round() + self._flights.drain()

    def round(self) -> Turn:
        """The same, but what was claimed stays in the air, and what has landed is settled with the next claim."""
        self._waits = not self._lock.is_ours()
        if self._waits:
            self._look_again_at = self._clock.monotonic() + self._idle_pause(Outlook())
            return self._flights.drain()
        if self._breakers.sender.state is not State.CLOSED:
            return self._flights.drain() + self._try_sender()
        outlook = self._look()
        done = self._try_topics(outlook)
        for event_type in list(outlook.types):
            if self._stopping() or self._breakers.sender.state is not State.CLOSED:
                break
            outlook = self._look()
            if event_type in outlook.types and self._is_its_time(event_type):
                done += self._turn(event_type, outlook)
        return done if done.claimed else done + self._flights.settle()

    def rest(self, turn: Turn) -> None:
        """After a round: until there is something to do."""
        now = self._clock.monotonic()
        if self._stopping() or self._flights.landed or (turn.full and self._breakers.sender.state is State.CLOSED):
            return
        if self._waits:
            pause(self._clock, self._look_again_at - now, self._stopping)
        elif self._breakers.sender.state is State.OPEN:
            pause(self._clock, max(REST, self._breakers.sender.until - now), self._stopping)
        elif len(self._flights):
            self._flights.wait(max(0.0, self._look_again_at - now), self._is_disturbed)
        elif self._breakers.sender.state is State.TRYING and turn.claimed:
            return
        elif self._bell.wait(self._clock, self._look_again_at - now, self._stopping):
            self._woken()

    def finish(self) -> Turn:
        """Wait for what is in the air, and settle it."""
        return self._flights.drain()

    def _is_disturbed(self) -> bool:
        """Whether a rest with batches in the air is over."""
        if self._bell.heard(0.0):
            self._woken()
            return True
        return self._stopping()

    def _woken(self) -> None:
        self._alert, self._look_again_at = Alert.rung(), self._clock.monotonic()

    # The look.

    def _look(self) -> Outlook:
        """As old as it may be: while there is something to claim, what is paused counts more than what else is due."""
        now = self._clock.monotonic()
        if any(map(self._is_its_time, self._outlook.types)):
            at_all = now - self._looked_at_types > max(LOOK_LASTS, LOOK_SHARE * self._look_took)
            at_marks = now - self._looked_at > LOOK_LASTS
        else:
            at_all, at_marks = now >= self._look_again_at, False
        if at_all:
            outlook = outlook_of(self._transactions.read(self._store.look))
            self._outlook = replace(outlook, types=[one for one in outlook.types if self._serves(one)])
            self._look_took = self._clock.monotonic() - now
            self._looked_at = self._looked_at_types = now
            usual = self._idle_pause(outlook)
            seconds, self._alert = self._alert.after_look(usual, found=bool(self._outlook.types))
            self._look_again_at = now + seconds
        elif at_marks:
            self._outlook = paused(self._outlook, self._transactions.read(self._store.look_at_marks))
            self._looked_at = now
        return self._outlook

    def _idle_pause(self, outlook: Outlook) -> float:
        """Until the next look where nothing else happens: never longer than until the next event is due."""
        longest = self._breakers.base * (1 + 0.1 * random.random())
        return longest if outlook.next_due is None else min(longest, max(outlook.next_due, 0.001))

    # What is away.

    def _sender_answers(self) -> bool:
        """False while the broker is away. When its pause is over it is asked, before any event is claimed for it."""
        breaker, now = self._breakers.sender, self._clock.monotonic()
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

    def _try_sender(self) -> Turn:
        """One worker at a time: ask, and then one row, of whichever type has one."""
        with self._breakers.trying() as ours:
            if not ours or not self._sender_answers():
                return Turn(unavailable=True)
            outlook, done = self._look(), Turn()
            for event_type in outlook.types:
                done += self._alone(event_type, self._wanted(event_type, outlook, limit=1))
                if done.claimed:
                    return done
            self._breakers.sender.close()  # nothing waits: the next batch will tell
            return done

    def _try_topics(self, outlook: Outlook) -> Turn:
        done = Turn()
        if not self._breakers.topics:
            return done
        with self._breakers.trying() as ours:
            for topic, breaker in list(self._breakers.topics.items()) if ours else ():
                if topic in outlook.paused_topics or not self._serves(breaker.event_type):
                    continue
                if breaker.asks(self._clock.monotonic()):
                    trouble = self._probe(topic)
                    if trouble is not None:
                        breaker.fail(trouble, self._clock.monotonic(), random.random())
                        continue
                    breaker.answered()
                if breaker.state is State.TRYING:
                    waits = breaker.event_type in outlook.types
                    turn = self._try_topic(topic, breaker.event_type) if waits else Turn()
                    if (
                        not turn.claimed
                    ):  # nothing of it waits any more, or its type is paused: the next batch will tell
                        self._breakers.close_topic(topic)
                    done += turn
        return done

    def _try_topic(self, topic: str, event_type: str) -> Turn:
        return self._alone(event_type, Wanted(limit=1, bytes=self._settings.max_batch_bytes, only=topic))

    def _alone(self, event_type: str, wanted: Wanted, *, suspects: bool = False) -> Turn:
        """A batch that is claimed from the start, sent and settled, with nothing else of this worker's in the air."""
        before = self._flights.drain()
        turn, _ = self._flights.take_off(event_type, wanted, suspects=suspects)
        self._hints.forget(event_type)
        return before + turn + self._flights.drain()

    def _probe(self, topic: str | None) -> str | None:
        if not isinstance(self._sender, Probing):
            return None  # a sender that cannot be asked is tried with a row
        try:
            return self._sender.probe(topic, PROBE_SECONDS)
        except Exception as error:  # whatever it is, the broker has not answered
            log.exception("the sender failed to ask its broker")
            return f"{type(error).__name__}: {error}"

    def _note(self, outcomes: Outcomes, took_off: float) -> None:
        with self._breakers.lock:
            self._note_alone(outcomes, took_off)

    def _note_alone(self, outcomes: Outcomes, took_off: float) -> None:
        open_before = self._breakers.sender.state is State.OPEN, self._breakers.blocked()
        now = self._clock.monotonic()
        self._breakers.note(outcomes, now, random.random(), took_off)
        sender = self._breakers.sender
        if sender.state is State.OPEN and not open_before[0]:
            log.warning("the broker is away, asking again in %.1f s: %s", sender.until - now, sender.reason)
        for topic in self._breakers.blocked() - open_before[1]:
            log.warning("topic %s is away: %s", topic, self._breakers.topics[topic].reason)
        for topic in open_before[1] - self._breakers.blocked():
            log.info("topic %s is back", topic)

    # A turn.

    def _turn(self, event_type: str, outlook: Outlook) -> Turn:
        self._turns[event_type] += 1
        if event_type in outlook.suspects and self._turns[event_type] % SUSPECTS_TURN == 0:
            turn = self._turn_of_suspects(event_type, outlook)
            if turn.claimed:
                return turn
            return turn + self._ordinary_turn(event_type, outlook)
        turn = self._ordinary_turn(event_type, outlook)
        if event_type in outlook.suspects and not turn.claimed:
            turn += self._turn_of_suspects(event_type, outlook)
        return turn

    def _ordinary_turn(self, event_type: str, outlook: Outlook) -> Turn:
        self._flights.make_room()
        if self._breakers.sender.state is not State.CLOSED:  # as we have just been told
            return self._flights.settle()
        began = self._clock.monotonic()
        behind = self._hints.behind(event_type, began)
        wanted = self._wanted(event_type, outlook)
        turn, events = self._flights.take_off(event_type, replace(wanted, behind=behind))
        if behind is not None and not events:  # what is due may stand before that place
            behind = None
            again, events = self._flights.take_off(event_type, wanted)
            turn += again
        now = self._clock.monotonic()
        full = len(events) >= wanted.limit
        self._hints.claimed(event_type, events, full=full, began=began, now=now, from_the_start=behind is None)
        if turn.rescheduled or turn.fenced:
            self._hints.forget(event_type)
        if wanted.without and not events:
            # all that is due is blocked, or being claimed by others: to read past a million blocked rows is not for every round
            self._wait_at_least(event_type, max(1.0, 10 * (now - began)))
        if not full:
            self._has_no_more(event_type)
        return turn

    def _turn_of_suspects(self, event_type: str, outlook: Outlook) -> Turn:
        """They may kill this process, so nothing else of it is on its way with them."""
        done = self._flights.drain()
        longest = self._settings.sender.publish_timeout.total_seconds()
        with self._inflight.alone(longest, self._stopping) as alone:
            if not alone:
                return done
            turn = self._alone(event_type, self._wanted(event_type, outlook), suspects=True)
        if not turn.claimed:  # none is due
            self._forget_suspects(event_type, outlook.suspects[event_type])
        return done + turn

    def _has_no_more(self, event_type: str) -> None:
        """Until the next look; later where its settings say so."""
        delay = self._settings.delivery_of(event_type).fixed_delay.total_seconds()
        if delay > self._breakers.base:
            self._wait_at_least(event_type, delay)
        self._outlook = replace(self._outlook, types=[one for one in self._outlook.types if one != event_type])

    def _forget_suspects(self, event_type: str, seen: datetime) -> None:
        """Where none are left, due or not, nobody needs to look for them any more."""
        now = self._clock.monotonic()
        if now - self._suspects_looked.get(event_type, -SUSPECTS_LOOK) < SUSPECTS_LOOK:
            return
        self._suspects_looked[event_type] = now
        if not self._transactions.read(lambda it: self._store.has_suspects(it, event_type)):
            self._transactions.run(lambda it: self._store.state.remove_unless_touched(it, SUSPECTS, event_type, seen))

    def _wanted(self, event_type: str, outlook: Outlook, limit: int | None = None) -> Wanted:
        size = self._settings.delivery_of(event_type).batch_size if limit is None else limit
        blocked = outlook.paused_topics | self._breakers.blocked()
        return Wanted(limit=size, bytes=self._flights.room, without=blocked)

    def _wait_at_least(self, event_type: str, seconds: float) -> None:
        self._not_before[event_type] = self._clock.monotonic() + seconds

    def _is_its_time(self, event_type: str) -> bool:
        now = self._clock.monotonic()
        starts = self._began + self._settings.delivery_of(event_type).initial_delay.total_seconds()
        return now >= starts and now >= self._not_before.get(event_type, 0.0)

"""The I/O thread: it alone touches the connection. Others hand over a batch or a question with one callback and wait outside.

A connection is made when somebody needs one, one attempt at a time; how often that happens is up to the relay's breaker. A broker that
stands still is told from a slow one by a question: if nothing at all comes back, the connection is dropped and the next send makes another.
"""

import functools
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pika import URLParameters
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError

from outbox_publisher.senders.grace import Grace
from outbox_publisher.senders.rabbitmq_channel import Publisher
from outbox_publisher.senders.rabbitmq_client import Inquiry, Link, flaw_of, own_threads, told
from outbox_publisher.senders.rabbitmq_flight import RabbitFlight
from outbox_shared.clock import Clock

log = logging.getLogger(__name__)

SIGN_OF_LIFE = 1.0
"""Seconds that a broker has for any answer at all, when it has let a deadline pass."""
GOODBYE = 1.0
"""Seconds for an orderly end of the connection."""
CLOSED = "the sender has been closed"


class Question:
    """A probe on its way: `answer` is None where all is well."""

    def __init__(self, exchange: str | None, seconds: float) -> None:
        self.exchange, self.seconds = exchange, seconds
        self.answer: str | None = "the I/O thread has not answered"
        self.answered = threading.Event()

    def say(self, answer: str | None) -> None:
        if not self.answered.is_set():
            self.answer = answer
            self.answered.set()


class RabbitIO:
    """A thread and its connection, for one process; the thread starts with the first need."""

    def __init__(self, parameters: URLParameters, grace: Grace, clock: Clock) -> None:
        self._parameters, self._grace, self._clock = parameters, grace, clock
        self._place = f"RabbitMQ at {parameters.host}:{parameters.port}"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        # from here on, the thread's own
        self._loop: Any = None
        self._link: Link | None = None
        self._publisher: Publisher | None = None
        self._blocked: str | None = None
        self._flights: dict[RabbitFlight, Any] = {}  # in the order of their sends, each with its timer
        self._questions: set[Question] = set()

    # For every thread.

    def send(self, flight: RabbitFlight) -> None:
        if not self._call(functools.partial(self._take, flight)):
            flight.give_up(CLOSED)

    def ask(self, question: Question) -> None:
        if not self._call(functools.partial(self._put, question)):
            question.say(CLOSED)

    def close(self) -> None:
        with self._lock:
            self._closed, thread = True, self._thread
            if thread is not None:
                self._loop.add_callback_threadsafe(self._shut_down)
        if thread is not None and thread is not threading.current_thread():
            thread.join(GOODBYE + 2)

    def _call(self, what: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed:
                return False
            if self._thread is None:
                self._loop = IOLoop()
                self._thread = threading.Thread(target=self._run, name="outbox-rabbitmq", daemon=True)
                self._thread.start()
            self._loop.add_callback_threadsafe(what)
            return True

    # The thread's own.

    def _run(self) -> None:
        own_threads.threads.add(threading.get_ident())
        try:
            while True:
                try:
                    self._loop.start()
                except Exception:
                    log.exception("the RabbitMQ sender starts over after an error of its own")
                    with suppress(Exception):
                        self._drop("the sender has failed, and starts over")
                    if not self._closed:
                        continue
                break
        finally:
            self._loop.close()
            own_threads.threads.discard(threading.get_ident())

    def _take(self, flight: RabbitFlight) -> None:
        if self._blocked is not None:
            flight.give_up(self._blocked)
            return
        left = flight.deadline - self._clock.monotonic()
        if left <= 0:
            flight.give_up("no time was left to send it")
            return
        self._flights[flight] = self._loop.call_later(left, functools.partial(self._expire, flight))
        flight.on_closed = functools.partial(self._forget, flight)
        if self._publisher is not None:
            self._publish(self._publisher, flight)
        else:
            self._connect()

    def _publish(self, publisher: Publisher, flight: RabbitFlight) -> None:
        publisher.publish([(flight, index) for index in range(len(flight.events))])

    def _forget(self, flight: RabbitFlight) -> None:
        self._loop.remove_timeout(self._flights.pop(flight))

    def _expire(self, flight: RabbitFlight) -> None:
        if self._publisher is None:
            flight.expire(f"{self._place} has not answered in time", 0)
            return
        blocked = self._blocked
        silent = flight.expire(blocked or f"{self._place} has not confirmed in time", self._publisher.confirmed)
        if silent and blocked is None:
            self._inquire(None, SIGN_OF_LIFE, lambda _: None)

    def _put(self, question: Question) -> None:
        self._questions.add(question)
        self._loop.call_later(question.seconds, functools.partial(self._too_late, question))
        if self._publisher is not None:
            self._pass_on(question)
        else:
            self._connect()

    def _pass_on(self, question: Question) -> None:
        if self._blocked is not None:
            self._answer(question, self._blocked)
        elif question.exchange is not None and (flaw := flaw_of(question.exchange)) is not None:
            self._answer(question, flaw)
        else:
            self._inquire(question.exchange, question.seconds, functools.partial(self._answer, question))

    def _inquire(self, exchange: str | None, seconds: float, answer: Callable[[str | None], None]) -> None:
        """Ask the broker, and drop a connection on which not one byte comes back."""
        link = self._link
        if link is None or not link.is_open:
            return
        received = link.bytes_received
        try:
            Inquiry(link, exchange, lambda error: answer(None if error is None else told(error)))
        except AMQPError as error:  # no channel is left
            answer(told(error))
            return

        def look() -> None:
            if link is self._link and self._blocked is None and link.bytes_received == received:
                self._drop(f"{self._place} stands still")

        self._loop.call_later(max(seconds, SIGN_OF_LIFE), look)

    def _answer(self, question: Question, answer: str | None) -> None:
        self._questions.discard(question)
        question.say(answer)

    def _too_late(self, question: Question) -> None:
        self._answer(question, f"{self._place} has not answered in {question.seconds:g} s")

    # The connection's life.

    def _connect(self) -> None:
        if self._link is None:
            self._link = Link(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_end,
                on_close_callback=self._on_end,
                custom_ioloop=self._loop,
            )

    def _on_open(self, link: Link) -> None:
        if link is not self._link:
            link.abandon(CLOSED)
            return
        link.add_on_connection_blocked_callback(self._on_blocked)
        link.add_on_connection_unblocked_callback(self._on_unblocked)
        self._publisher = Publisher(link, self._grace, self._drop)
        for flight in list(self._flights):
            self._publish(self._publisher, flight)
        for question in list(self._questions):
            self._pass_on(question)

    def _on_blocked(self, link: Link, frame: Any) -> None:
        if link is self._link:
            self._blocked = f"{self._place} takes nothing for now (connection.blocked): {frame.method.reason}"
            log.warning("%s", self._blocked)

    def _on_unblocked(self, link: Link, _frame: Any) -> None:
        if link is self._link:
            self._blocked = None
            log.info("%s takes messages again", self._place)

    def _on_end(self, link: Link, error: Exception) -> None:
        """The connection was refused, lost or closed, by whichever side."""
        if link is self._link:
            self._end(f"{self._place}: {told(error)}")
        if self._closed and self._link is None:
            self._stop()

    def _drop(self, reason: str) -> None:
        link = self._link
        self._end(reason)
        if link is not None:
            link.abandon(reason)

    def _end(self, reason: str) -> None:
        """Everything that hung on the connection ends with it; the next send makes another."""
        self._link, self._publisher, self._blocked = None, None, None
        for flight in list(self._flights):
            flight.give_up(reason)
        for question in list(self._questions):
            self._answer(question, reason)

    def _shut_down(self) -> None:
        link = self._link
        if link is None:
            self._stop()
            return
        for flight in list(self._flights):
            flight.give_up(CLOSED)
        if link.is_open:
            link.close()
            self._loop.call_later(GOODBYE, functools.partial(link.abandon, CLOSED))
        else:
            link.abandon(CLOSED)

    def _stop(self) -> None:
        # as a callback: a connection that was dropped just now closes its socket in one that is already queued
        self._loop.add_callback_threadsafe(self._loop.stop)

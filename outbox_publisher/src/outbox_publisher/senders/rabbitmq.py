"""RabbitMQ through pika: the sender's settings and life.

`rabbitmq_io` has the thread that owns the connection, `rabbitmq_channel` what happens to messages on it, `rabbitmq_flight` the results.
"""

import os
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

from outbox_publisher.event import Event
from outbox_publisher.senders.base import Flight
from outbox_publisher.senders.grace import Grace
from outbox_publisher.settings import SenderSettings
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.errors import ConfigurationError, MissingDependency

try:
    from pika import URLParameters
except ModuleNotFoundError:
    raise MissingDependency("the RabbitMQ sender", "outbox-publisher[rabbitmq]") from None

from outbox_publisher.senders.rabbitmq_flight import RabbitFlight
from outbox_publisher.senders.rabbitmq_io import Question, RabbitIO

KEY = "outbox.publisher.sender.rabbitmq.url"
MARGIN = 0.5
"""Seconds that the I/O thread may be late with its word on a probe."""


class RabbitSender:
    """One connection per process, on a thread of its own, made when it is first needed and made anew whenever it was lost.

    The exchange is the event's topic ("" is the default exchange), the routing key its type.
    """

    def __init__(self, settings: SenderSettings, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._parameters = parameters_of(settings)
        self._grace_seconds = settings.unknown_topic_grace.total_seconds()
        # a forked child gets an entry of its own; its parent's stays, untouched: closing it would end the parent's connection
        self._by_process: dict[int, RabbitIO] = {}

    def send(self, events: Sequence[Event], deadline: float) -> Flight:
        flight = RabbitFlight(events, deadline, self.clock)
        if self.clock.monotonic() >= deadline:
            flight.give_up("no time was left to send it")
        elif events:
            self._io().send(flight)
        return flight

    def probe(self, topic: str | None, seconds: float) -> str | None:
        """Asks on a channel of its own. An alarm of the broker shows only where we have published since it began."""
        question = Question(topic, seconds)
        self._io().ask(question)
        question.answered.wait(seconds + MARGIN)
        return question.answer

    def close(self) -> None:
        io = self._by_process.pop(os.getpid(), None)
        if io is not None:
            io.close()

    def _io(self) -> RabbitIO:
        pid = os.getpid()
        found = self._by_process.get(pid)
        if found is None:  # setdefault: of two threads at once, both get the same
            made = RabbitIO(self._parameters, Grace(self._grace_seconds, self.clock), self.clock)
            found = self._by_process.setdefault(pid, made)
        return found


def parameters_of(settings: SenderSettings) -> URLParameters:
    """pika's settings: ours, unless the URL's own query says otherwise."""
    url = settings.rabbitmq.url
    if not url:
        raise ConfigurationError(f"no RabbitMQ is configured: set {KEY}")
    try:
        parameters = URLParameters(url)
        given = parse_qs(urlsplit(url).query)
    except Exception:  # noqa: BLE001 - pika evaluates parts of it; its errors show parts of it, and perhaps of the password
        raise ConfigurationError(
            f"{KEY} cannot be read: write amqp://user:password@host:5672/vhost, with special characters as %xx, "
            "and after ? only what pika.URLParameters knows"
        ) from None
    # an attempt may outlast the send that began it: the next one then finds it done
    timeout = min(max(settings.publish_timeout.total_seconds(), 5.0), 30.0)
    for name, value in {
        "heartbeat": 10,  # a frozen broker is noticed within half a minute, also while nothing is sent
        "blocked_connection_timeout": 300,  # a blocked connection is kept that long: a new one would not know of the alarm
        "socket_timeout": timeout,
        "stack_timeout": timeout,
        "connection_attempts": 1,  # the relay's breaker decides when to try again
    }.items():
        if name not in given:
            setattr(parameters, name, value)
    return parameters

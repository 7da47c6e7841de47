"""What pika lacks for us: whole batches in one write, an abrupt end, questions that cost no other channel, and a quiet log."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from pika import SelectConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosed, StreamLostError

client_log = logging.getLogger("outbox_publisher.senders.rabbitmq.client")
"""What pika itself has to say about our connections."""

SHORT_STRING = 255
"""The bytes that AMQP has for a name or a property."""

NOISY = (
    "callback",
    "channel",
    "connection",
    "heartbeat",
    "adapters.base_connection",
    "adapters.select_connection",
    "adapters.utils.connection_workflow",
    "adapters.utils.io_services_utils",
    "adapters.utils.selector_ioloop_adapter",
)
"""pika's loggers, below `pika`; a filter of a logger is not asked for the records of those below it."""


class Link(SelectConnection):  # type: ignore[misc]  # pika comes without types
    """One connection. Everything happens on the thread of its loop."""

    _gathered: list[bytes] | None = None

    def gather(self) -> list[bytes]:
        """From now on frames are collected in the list that is returned; who finds one unfit may take it out again."""
        self._gathered = []
        return self._gathered

    def release(self) -> None:
        """Write what was gathered in one piece: pika writes each frame by itself, three system calls for every message."""
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._adapter_emit_data(b"".join(gathered))

    def abandon(self, reason: str) -> None:
        """Drop the connection without a word: `close()` would wait for a broker that may not answer."""
        if not self.is_closed:
            self._terminate_stream(StreamLostError(reason))

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._gathered is None:
            super()._adapter_emit_data(data)
        else:
            self._gathered.append(data)


class Inquiry:
    """Asks the broker for an exchange (or only for an answer) on a channel of its own, which a "no" will close.

    `answer(error)` is called once, with None for a yes; never, if the connection falls silent.
    """

    def __init__(self, link: Link, exchange: str | None, answer: Callable[[Exception | None], None]) -> None:
        self._exchange, self._answer = exchange, answer
        self._answered = False
        link.channel(on_open_callback=self._opened).add_on_close_callback(self._closed)

    def _opened(self, channel: Any) -> None:
        if self._exchange:  # the default exchange is always there, and cannot be declared
            channel.exchange_declare(self._exchange, passive=True, callback=lambda _: self._fine(channel))
        else:
            self._fine(channel)

    def _fine(self, channel: Any) -> None:
        self._say(None)
        if channel.is_open:
            channel.close()

    def _closed(self, _channel: Any, error: Exception) -> None:
        self._say(error)

    def _say(self, error: Exception | None) -> None:
        if not self._answered:
            self._answered = True
            self._answer(error)


def flaw_of(exchange: str) -> str | None:
    """Why no exchange can have this name."""
    try:
        length = len(exchange.encode())
    except UnicodeEncodeError:
        return f"the exchange name {exchange[:40]!r} is no Unicode text"
    return None if length <= SHORT_STRING else f"the exchange name has {length} bytes; AMQP has room for {SHORT_STRING}"


def told(error: BaseException | None) -> str:
    """The error in its own words: pika wraps what happened in up to three layers that say nothing."""
    for _ in range(5):
        inner = getattr(error, "exceptions", None) or getattr(error, "exception", None) or getattr(error, "args", None)
        if isinstance(inner, list | tuple):
            inner = inner[-1] if inner else None
        if not isinstance(inner, BaseException):
            break
        error = inner
    if isinstance(error, ChannelClosedByBroker | ConnectionClosed):
        return str(error.reply_text)
    if isinstance(error, AMQPError) and error.args and isinstance(error.args[0], str):
        return error.args[0]
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class _OwnThreads(logging.Filter):
    """Sends what pika logs on our own threads to `client_log`, for debugging and without tracebacks.

    In an outage pika writes a dozen lines and several tracebacks for every attempt, where the relay says it once in its own words. A
    level set on pika's loggers would also silence an application that uses pika itself; its threads are not touched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if threading.get_ident() not in self.threads:
            return True
        client_log.debug("%s: %s", record.name, record.getMessage())
        return False


own_threads = _OwnThreads()
for _name in NOISY:
    logging.getLogger(f"pika.{_name}").addFilter(own_threads)

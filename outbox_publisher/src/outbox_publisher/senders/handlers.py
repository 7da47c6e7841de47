"""Events handled by functions of this process: no broker between the outbox and the work.

`Handlers` knows which function is for which event type, and `HandlerSender` runs them for the relay. A handler that returns has done
its work; one that raises is tried again with backoff, until max-retries; one that raises `Reject` is not tried again.
"""

import contextvars
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from outbox_publisher.event import Event
from outbox_publisher.senders.base import FinishedFlight, Flight, SendResult
from outbox_publisher.senders.grace import Grace
from outbox_publisher.senders.handler_flight import HandlerFlight, HandlerThreads, Loop
from outbox_publisher.settings import SenderSettings
from outbox_shared.clock import Clock, SystemClock
from outbox_shared.errors import ConfigurationError

log = logging.getLogger(__name__)

Handler = Callable[[Event], Any]
HandlerT = TypeVar("HandlerT", bound=Handler)

FORMS = """write one of
    @handlers.on("order-created")
    def handler(event: Event) -> None: ...           # or async def
    handlers.add("order-created", service.handler)   # a method, bound to its object"""


class Reject(Exception):
    """Raise it in a handler for an event that no retry will cure: it becomes a dead letter at once, with this reason."""


class Handlers:
    """One function for each event type.

    >>> handlers = Handlers()
    >>> @handlers.on("order-created", "order-changed")
    ... def index(event: Event) -> None: ...
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._lock = threading.Lock()

    def on(self, *event_types: str) -> Callable[[HandlerT], HandlerT]:
        """A decorator for the function that handles these event types; the function itself stays as it is."""
        if not event_types or not all(map(_is_name, event_types)):
            raise TypeError(f"on() takes the names of event types: {FORMS}")

        def register(handler: HandlerT) -> HandlerT:
            self._register(event_types, handler)
            return handler

        return register

    def add(self, event_type: str, handler: Handler) -> None:
        """The same without a decorator: for bound methods, partials and callable objects."""
        self.on(event_type)(handler)

    def find(self, event_type: str) -> Handler | None:
        return self._handlers.get(event_type)

    def __repr__(self) -> str:
        return f"Handlers({', '.join(sorted(self._handlers))})"

    def _register(self, event_types: Sequence[str], handler: Handler) -> None:
        check_handler(handler)
        with self._lock:
            for number, event_type in enumerate(event_types):
                if event_type in event_types[:number]:
                    raise ConfigurationError(f"event type {event_type!r} is named twice for {name_of(handler)}")
                if (other := self._handlers.get(event_type)) is not None:
                    raise ConfigurationError(
                        f"event type {event_type!r} has a handler already, {name_of(other)}: "
                        f"call {name_of(handler)} from there, or publish an event for each of them"
                    )
            self._handlers.update(dict.fromkeys(event_types, handler))


def _is_name(given: object) -> bool:
    return isinstance(given, str) and given != ""


def check_handler(handler: Any) -> None:
    """TypeError, with the forms to write, for what could not run with one event as its argument."""
    if inspect.isclass(handler):
        raise TypeError(f"{name_of(handler)} is a class, so calling it would only build an object; {FORMS}")
    if not callable(handler):
        raise TypeError(f"{name_of(handler)} cannot be called; {FORMS}")
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    for code in (function, getattr(type(function), "__call__", None)):  # noqa: B004 - looked at, not tested for
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise TypeError(f"{name_of(handler)} has a yield, so calling it would not run a line of it; {FORMS}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise TypeError(f"{name_of(handler)} does not tell its parameters: wrap it in a function; {FORMS}") from None
    try:
        signature.bind(object())
    except TypeError as error:
        raise TypeError(f"{name_of(handler)} cannot be called with the event alone ({error}); {FORMS}") from None


def name_of(handler: Any) -> str:
    """As a reader of the log would look for it."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    if not isinstance(name, str):
        return f"an instance of {type(handler).__qualname__}"
    return f"{module}.{name}" if module else name  # what is built in has no module


class HandlerSender:
    """Runs each event's handler, one after another in the batch's order, on a thread of its own.

    An async handler runs on that thread's asyncio loop. Threads differ from batch to batch: what belongs to one loop or thread (an
    async connection pool, say) is made inside the handler or kept per loop.
    """

    needs_topic = False
    unhurried = True

    def __init__(self, handlers: Handlers, settings: SenderSettings, clock: Clock | None = None) -> None:
        if not isinstance(handlers, Handlers):
            raise TypeError(f"HandlerSender takes a Handlers registry, not {type(handlers).__name__}; {FORMS}")
        self._handlers, self._clock = handlers, clock or SystemClock()
        self._grace = Grace(settings.unknown_topic_grace.total_seconds(), self._clock)
        self._threads: dict[int, HandlerThreads] = {}  # by process: a forked child has none of its parent's

    def send(self, events: Sequence[Event], deadline: float) -> Flight:
        if not events:
            return FinishedFlight([])
        flight = HandlerFlight(events, deadline, self._clock, self._handle)
        try:
            self._threads.setdefault(os.getpid(), HandlerThreads()).fly(flight)
        except RuntimeError as error:
            return FinishedFlight([SendResult.unavailable(f"no thread for handlers: {error}")] * len(events))
        return flight

    def close(self) -> None:
        """Begin nothing more and let the threads go; a later send makes new ones."""
        threads = self._threads.pop(os.getpid(), None)
        if threads is not None:
            threads.close()

    def _handle(self, event: Event, context: contextvars.Context, loop: Loop) -> SendResult:
        handler = self._handlers.find(event.event_type)
        if handler is None:
            why = (
                f"no handler for event type {event.event_type!r}; register one with @handlers.on({event.event_type!r})"
            )
            return self._grace.refused(event.event_type, why)
        try:
            returned = context.run(handler, event)
            if inspect.isawaitable(returned):
                loop.run(returned, context)
            elif inspect.isgenerator(returned) or inspect.isasyncgen(returned):
                raise TypeError(f"{name_of(handler)} returned a generator, so its work has not been done")  # noqa: TRY301
        except Reject as error:
            return SendResult.reject(said_by(error) or "rejected by its handler")
        except BaseException as error:  # a SystemExit would end the thread, and nobody would hear of it
            kind = type(error).__name__
            log.warning("the handler of %s %s failed: %s", event.event_type, event.id, kind, exc_info=error)
            return SendResult.retry(f"{kind}: {said_by(error)}", maybe_sent=True)
        return SendResult.delivered()


def said_by(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a __str__ of somebody's own
        return "(its text cannot be shown)"

"""Handlers in the process itself: what registers, how they run, and what their end means for the event."""

import asyncio
import contextvars
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from outbox_publisher import Event, Handlers, HandlerSender, Outbox, Reject
from outbox_publisher.senders import Flight, Kind, SendResult
from outbox_publisher.settings import SenderSettings
from outbox_shared.errors import ConfigurationError
from outbox_shared.ids import new_event_id
from tests.consuming import eventually

TYPE = "attendance.absence_notice_submitted"


def an_event(n: int = 0, event_type: str = TYPE) -> Event:
    return Event(
        id=new_event_id(), event_type=event_type, topic=None, key=None, payload=b'{"n":%d}' % n,
        content_type="application/json", created_at=datetime.now(UTC),
    )  # fmt: skip


class HandHeldClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class School:
    """A sender around one handler, or around what is registered here."""

    def __init__(self) -> None:
        self.handlers, self.clock = Handlers(), HandHeldClock()
        self.sender = HandlerSender(self.handlers, SenderSettings(unknown_topic_grace="10s"), self.clock)

    def fly(self, *events: Event, seconds: float = 60.0) -> Flight:
        return self.sender.send(events, self.clock.monotonic() + seconds)

    def send(self, *events: Event) -> list[SendResult]:
        return list(self.fly(*events).results())

    def send_to(self, handler: Callable[[Event], Any]) -> SendResult:
        self.handlers.add(TYPE, handler)
        return self.send(an_event())[0]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("outbox-handlers")}


@pytest.fixture
def school() -> Iterator[School]:
    made = School()
    yield made
    made.sender.close()
    eventually(lambda: not threads())


# What registers.


def test_one_handler_may_serve_several_types(school):
    seen = []

    @school.handlers.on("grade-added", "grade-changed")
    def grade(event: Event) -> None:
        seen.append(event.event_type)

    results = school.send(an_event(event_type="grade-added"), an_event(event_type="grade-changed"))

    assert [result.kind for result in results] == [Kind.DELIVERED] * 2
    assert seen == ["grade-added", "grade-changed"]
    assert grade.__name__ == "grade"


def test_a_second_handler_for_a_type_is_refused_and_the_first_one_stays(school):
    seen = []
    school.handlers.add(TYPE, seen.append)

    with pytest.raises(ConfigurationError, match=rf"{TYPE!r} has a handler already, .*append"):
        school.handlers.on("other", TYPE)(print)
    with pytest.raises(ConfigurationError, match="named twice"):
        school.handlers.on("other", "other")(print)

    assert school.send(an_event())[0].kind is Kind.DELIVERED
    assert len(seen) == 1
    assert school.handlers.find("other") is None  # all of them or none


class Service:
    def method(self, event: Event) -> None: ...


def generator(event: Event) -> Iterator[Event]:
    yield event


async def async_generator(event: Event) -> Any:
    yield event


class CallableGenerator:
    def __call__(self, event: Event) -> Iterator[Event]:
        yield event


class Silent:
    __signature__ = "none"

    def __call__(self, event: Event) -> None: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (Service, "Service is a class"),
        ("notify", "cannot be called"),
        (generator, "has a yield"),
        (async_generator, "has a yield"),
        (functools.partial(generator), "has a yield"),
        (CallableGenerator(), "has a yield"),
        (lambda: None, "cannot be called with the event alone"),
        (lambda event, session: None, "missing a required argument: 'session'"),
        (lambda event, *, session: None, "missing a required .*argument: 'session'"),
        (lambda *, event: None, "cannot be called with the event alone"),
        (Service.method, "missing a required argument: 'event'"),
        (Silent(), "does not tell its parameters"),
    ],
)
def test_what_cannot_run_with_the_event_alone_is_refused_with_the_forms_to_write(handler, why):
    with pytest.raises(TypeError, match=why) as caught:
        Handlers().on(TYPE)(handler)

    assert "def handler(event: Event) -> None" in str(caught.value)


@pytest.mark.parametrize("event_types", [(), (print,), ("",), (TYPE, None)])
def test_a_handler_is_registered_for_names_of_types(event_types):
    with pytest.raises(TypeError, match="takes the names of event types"):
        Handlers().on(*event_types)


# How they run.


async def noted(seen: list[Any], event: Event) -> None:
    await asyncio.sleep(0)
    seen.append(event.json())


@pytest.mark.parametrize(
    "made",
    [
        lambda seen: lambda event: seen.append(event.json()),
        lambda seen: functools.partial(noted, seen),
        lambda seen: lambda event: noted(seen, event),  # a plain function that returns an awaitable
        lambda seen: lambda event, session=None, *more: seen.append(event.json()),
    ],
)
def test_plain_and_async_handlers_have_done_their_work_when_the_event_counts_as_delivered(school, made):
    seen: list[Any] = []

    assert school.send_to(made(seen)) == SendResult.delivered()
    assert seen == [{"n": 0}]


def test_an_async_method_is_a_handler(school):
    class Notifier:
        told = 0

        async def notify(self, event: Event) -> None:
            await asyncio.sleep(0)
            self.told += 1

    notifier = Notifier()

    assert school.send_to(notifier.notify).kind is Kind.DELIVERED
    assert notifier.told == 1


def test_a_batch_runs_in_order_on_one_thread_and_one_loop_that_serve_the_next_batch_too(school):
    seen: list[tuple[Any, ...]] = []

    @school.handlers.on(TYPE)
    async def handle(event: Event) -> None:
        await asyncio.sleep(0)
        seen.append((event.json()["n"], threading.get_ident(), id(asyncio.get_running_loop())))

    for _ in range(20):
        school.send(*(an_event(n) for n in range(5)))

    assert [n for n, _, _ in seen] == list(range(5)) * 20
    assert len({(thread, loop) for _, thread, loop in seen}) == 1
    assert seen[0][1] != threading.get_ident()


def test_batches_in_flight_run_beside_each_other(school):
    both = threading.Barrier(2)
    school.handlers.on(TYPE)(lambda event: both.wait(10))

    flights = [school.fly(an_event()), school.fly(an_event())]

    assert [flight.results()[0].kind for flight in flights] == [Kind.DELIVERED] * 2


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def test_a_handler_sees_its_senders_context_and_nothing_of_its_neighbours(school):
    seen = []

    @school.handlers.on("plain")
    def plain(event: Event) -> None:
        seen.append(WHO.get())
        WHO.set("plain")

    @school.handlers.on("async")
    async def awaited(event: Event) -> None:
        seen.append(WHO.get())
        WHO.set("async")

    token = WHO.set("the relay")
    school.send(*(an_event(event_type=name) for name in ("plain", "async", "plain", "async")))
    WHO.reset(token)

    assert seen == ["the relay"] * 4


# What their end means.


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("mail server said 451"), "ValueError: mail server said 451"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("gone"), "CancelledError: gone"),
        (StopIteration("over"), "StopIteration: over"),
        (Unspeakable(), "Unspeakable: (its text cannot be shown)"),
    ],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_handler_that_raises_costs_its_own_event_an_attempt_and_the_next_one_runs(school, error, reason, kind):
    done = []

    def plain(event: Event) -> None:
        if event.json()["n"] == 1:
            raise error
        done.append(event.json()["n"])

    async def awaited(event: Event) -> None:
        plain(event)

    if kind == "async" and isinstance(error, StopIteration):
        reason = "RuntimeError: coroutine raised StopIteration"  # Python's own rule
    school.handlers.add(TYPE, {"plain": plain, "async": awaited}[kind])

    results = school.send(*(an_event(n) for n in range(3)))

    assert results[1] == SendResult.retry(reason, charged=True, maybe_sent=True)
    assert [results[0].kind, results[2].kind] == [Kind.DELIVERED] * 2
    assert done == [0, 2]
    assert len(threads()) == 1


def test_what_a_system_exit_leaves_on_the_loop_does_not_go_on_beside_the_next_handler(school):
    resumed = []

    async def leave() -> None:
        raise SystemExit

    @school.handlers.on(TYPE)
    async def handle(event: Event) -> None:
        if event.json()["n"] == 0:
            task = asyncio.ensure_future(leave())  # ends the loop under its parent's feet
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            resumed.append(task)
        for _ in range(10):
            await asyncio.sleep(0)

    results = school.send(an_event(0), an_event(1))

    assert [result.kind for result in results] == [Kind.RETRY, Kind.DELIVERED]
    assert resumed == []


def test_a_handler_may_reject_its_event(school):
    def refuse(event: Event) -> None:
        raise Reject("no such student")

    assert school.send_to(refuse) == SendResult.reject("no such student")


def test_a_handler_that_returns_a_generator_has_not_done_its_work(school):
    result = school.send_to(lambda event: (item for item in [event]))

    assert (result.kind, result.charged) == (Kind.RETRY, True)
    assert "returned a generator" in result.reason


def test_the_log_names_the_event_and_the_error_and_never_the_payload(school, caplog):
    secret = "iban-4711"

    def fail(event: Event) -> None:
        raise LookupError("no student")

    school.handlers.add(TYPE, fail)
    event = Event(
        id=new_event_id(), event_type=TYPE, topic=None, key=None, payload=b'{"iban": "%s"}' % secret.encode(),
        content_type="application/json", created_at=datetime.now(UTC),
    )  # fmt: skip

    with caplog.at_level(logging.DEBUG):
        school.send(event)

    (record,) = [record for record in caplog.records if record.name.endswith("handlers")]
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None
    for told in (str(event.id), TYPE, "LookupError"):
        assert told in record.getMessage()
    assert secret not in caplog.text


def test_a_type_without_handler_gets_a_grace_and_is_then_rejected(school):
    first = school.send(an_event())[0]
    assert (first.kind, first.charged, first.after, first.maybe_sent) == (Kind.RETRY, False, 1.0, False)
    assert f"no handler for event type {TYPE!r}; register one with @handlers.on({TYPE!r})" in first.reason

    school.clock.now += 9.9
    assert school.send(an_event())[0].kind is Kind.RETRY
    school.clock.now += 0.2
    last = school.send(an_event())[0]

    assert last.kind is Kind.REJECT
    assert TYPE in last.reason


def test_a_handler_that_is_registered_within_the_grace_gets_the_event(school):
    assert school.send(an_event())[0].kind is Kind.RETRY

    assert school.send_to(print).kind is Kind.DELIVERED


def test_a_relay_settles_what_handlers_did(sqlite_outbox, school):
    @school.handlers.on("grade-added")
    def add(event: Event) -> None: ...

    @school.handlers.on("grade-changed")
    def change(event: Event) -> None:
        raise Reject("no such student")

    @school.handlers.on("grade-removed")
    def remove(event: Event) -> None:
        raise OSError("disk full")

    outbox = Outbox(sqlite_outbox.settings(defaults={}, sender={"type": "handlers"}))
    with Session(sqlite_outbox.engine) as session, session.begin():
        for event_type in ("grade-added", "grade-changed", "grade-removed"):
            outbox.publish(session, event_type, {})
    sender = HandlerSender(school.handlers, SenderSettings())

    sqlite_outbox.relay(sender, defaults={}).run_once()
    sender.close()

    rows = {row.event_type: (row.status, row.attempts, row.last_error) for row in sqlite_outbox.events()}
    assert rows["grade-added"][0] == "PROCESSED"
    assert rows["grade-removed"] == ("PENDING", 1, "OSError: disk full")
    assert [(row.event_type, row.last_error) for row in sqlite_outbox.dead_letters()] == [
        ("grade-changed", "no such student")
    ]

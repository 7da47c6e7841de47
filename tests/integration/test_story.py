"""A handler that publishes: what it publishes continues the story of the message that it handles."""

import threading
from uuid import uuid4

import pytest

from outbox_consumer import IdempotentConsumer
from outbox_publisher import Outbox
from outbox_shared.context import NO_STORY, Story, consuming, current_story, story_of

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def message(**headers):
    return {"outbox_event_id": str(uuid4()), "outbox_event_type": "order-created", **headers}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return request.getfixturevalue(f"{request.param}_outbox")


def test_correlation_and_trace_are_taken_over(database):
    outbox, consumer = Outbox(database.settings()), IdempotentConsumer(database.engine, name="billing")

    @consumer.idempotent
    def bill(session, message):
        outbox.publish(session, "invoice-written", {}, key=1)

    bill(message(outbox_correlation_id="req-1", traceparent=TRACE, tracestate="vendor=1", baggage=b"user=7"))
    consumer.consume(message(), lambda session: outbox.publish(session, "invoice-written", {}, key=2))

    first, second = database.events()
    assert (first.correlation_id, first.traceparent, first.tracestate, first.baggage) == (
        "req-1",
        TRACE,
        "vendor=1",
        "user=7",
    )
    assert (second.correlation_id, second.traceparent) == (None, None)


def test_what_is_taken_over_goes_out_again_as_headers(database):
    outbox, consumer = Outbox(database.settings()), IdempotentConsumer(database.engine, name="billing")
    sent = database.relay()
    consumer.consume(
        message(outbox_correlation_id="req-1", traceparent=TRACE),
        lambda session: outbox.publish(session, "invoice-written", {}),
    )

    assert sent.run_once().delivered == 1
    (event,) = sent._sender.sent
    assert (event.correlation_id, event.traceparent) == ("req-1", TRACE)


def test_a_foreign_producers_odd_values_do_not_make_the_handler_fail(database):
    outbox, consumer = Outbox(database.settings()), IdempotentConsumer(database.engine, name="billing")
    odd = message(outbox_correlation_id="x" * 10_000, traceparent="nul\x00", tracestate=b"\xff", baggage="a\r\nb: c")

    assert consumer.consume(odd, lambda session: outbox.publish(session, "invoice-written", {}))

    (row,) = database.events()
    assert row.correlation_id is row.traceparent is row.tracestate is row.baggage is None


def test_a_handler_that_raises_leaves_no_story_behind(database):
    consumer = IdempotentConsumer(database.engine, name="billing")

    def fails(session):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consumer.consume(message(outbox_correlation_id="req-1"), fails)

    assert current_story() is NO_STORY


def test_a_story_stays_in_its_thread():
    seen = []
    with consuming(Story("req-1")):
        other = threading.Thread(target=lambda: seen.append(current_story()))
        other.start()
        other.join()

    assert seen == [NO_STORY]


def test_only_what_can_be_stored_is_a_story():
    assert story_of({"outbox_correlation_id": "a", "traceparent": ""}) == Story("a")
    assert story_of({"outbox_correlation_id": "\ud800"}) == NO_STORY

"""The publisher's trace goes on in the consumer, with the real OpenTelemetry SDK and its in-memory exporter."""

import sys

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from outbox_consumer.identity import Identity
from outbox_consumer.telemetry import Telemetry
from outbox_shared.context import NO_STORY, Story, consuming, current_story
from outbox_shared.ids import new_event_id

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PUBLISHED = Story("request-7", f"00-{TRACE}-{SPAN}-01", "vendor=value", "tenant=acme")


class Traces:
    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.telemetry = Telemetry("billing", tracer_provider=self.provider)

    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traces():
    return Traces()


def event(story=PUBLISHED, event_type="order-created"):
    return Identity(new_event_id(), event_type, story)


def test_a_span_around_the_handler_continues_the_publishers_trace(traces):
    one = event()

    with traces.telemetry.processing(one):
        inside = trace.get_current_span()

    span = traces.spans()["process order-created"]
    assert span.kind is SpanKind.CONSUMER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert span.context.trace_state.get("vendor") == "value"
    assert inside.get_span_context().span_id == span.context.span_id
    assert dict(span.attributes) == {
        "messaging.system": "outbox",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.message.id": str(one.event_id),
        "messaging.message.conversation_id": "request-7",
        "messaging.consumer.group.name": "billing",
        "outbox.event.type": "order-created",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert not trace.get_current_span().get_span_context().is_valid  # it is over


def test_the_handlers_own_spans_are_its_children_and_see_the_baggage(traces):
    with traces.telemetry.processing(event()):
        carried = baggage.get_baggage("tenant")
        with traces.tracer.start_as_current_span("charge the card"):
            pass

    spans = traces.spans()
    assert spans["charge the card"].parent.span_id == spans["process order-created"].context.span_id
    assert carried == "acme"
    assert baggage.get_baggage("tenant") is None


def test_what_the_handler_publishes_continues_the_span_and_not_the_publishers(traces):
    with consuming(PUBLISHED), traces.telemetry.processing(event()):
        story = current_story()

    span = traces.spans()["process order-created"]
    assert story.traceparent == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert (story.correlation_id, story.tracestate, story.baggage) == ("request-7", "vendor=value", "tenant=acme")
    assert current_story() == NO_STORY


def test_an_error_is_recorded_by_its_type_and_never_by_its_words(traces):
    class OutOfStock(Exception):
        pass

    with pytest.raises(OutOfStock), traces.telemetry.processing(event()):
        raise OutOfStock("customer 4711, card 1234")

    span = traces.spans()["process order-created"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"].endswith("OutOfStock")
    assert [recorded.name for recorded in span.events] == ["exception"]
    assert "4711" not in span.to_json()


@pytest.mark.parametrize(
    "story",
    [
        NO_STORY,
        Story(traceparent="nonsense"),
        Story(traceparent=f"00-{'0' * 32}-{SPAN}-01"),
        Story(traceparent=f"ff-{TRACE}-{SPAN}-01"),
        Story(traceparent=f"00-{TRACE}-{SPAN}"),
        Story(traceparent="00-\N{SNOWMAN}-x-01", tracestate="=,=,=", baggage="%%%;;;=,,"),
    ],
    ids=["none", "nonsense", "all zeros", "unknown version", "cut off", "hostile"],
)
def test_a_missing_or_malformed_trace_begins_a_new_one(traces, story):
    with traces.telemetry.processing(event(story)):
        pass

    assert traces.spans()["process order-created"].parent is None


def test_without_a_publishers_trace_an_open_span_is_the_parent(traces):
    with traces.tracer.start_as_current_span("poll"), traces.telemetry.processing(event(NO_STORY)):
        pass

    spans = traces.spans()
    assert spans["process order-created"].parent.span_id == spans["poll"].context.span_id
    assert spans["process order-created"].links == ()


def test_beside_a_publishers_trace_an_open_span_is_linked(traces):
    with traces.tracer.start_as_current_span("poll"), traces.telemetry.processing(event()):
        pass

    spans = traces.spans()
    span = spans["process order-created"]
    assert f"{span.parent.span_id:016x}" == SPAN
    assert [link.context.span_id for link in span.links] == [spans["poll"].context.span_id]


def test_what_the_publisher_did_not_sample_is_not_recorded_and_goes_on_unsampled(traces):
    unsampled = Story(traceparent=f"00-{TRACE}-{SPAN}-00")

    with traces.telemetry.processing(event(unsampled)):
        story = current_story()

    assert traces.spans() == {}
    assert story.traceparent.startswith(f"00-{TRACE}-")
    assert story.traceparent.endswith("-00")


def test_an_event_without_a_type_or_with_a_hostile_one_has_a_span_too(traces):
    for event_type in (None, "evil\x00\n\x1b[31m" + "x" * 1000):
        with traces.telemetry.processing(event(event_type=event_type)):
            pass

    names = sorted(traces.spans())
    assert names[0] == "process event"
    assert names[1].isprintable()
    assert len(names[1]) < 300


def test_where_nobody_collects_spans_the_story_stays_as_it_is():
    # given the API alone, without a provider
    with consuming(PUBLISHED), Telemetry("billing").processing(event()):
        assert current_story() == PUBLISHED
        assert not trace.get_current_span().get_span_context().is_valid


def test_without_opentelemetry_there_are_no_spans_and_nothing_breaks(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)

    with Telemetry("billing").processing(event()):
        pass

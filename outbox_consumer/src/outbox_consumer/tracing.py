"""Spans around handlers, through opentelemetry-api where it is installed: the publisher's trace goes on in the consumer.

The wire carries W3C headers whatever the process's propagators are, so they are read with W3C's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outbox_consumer.identity import Identity
from outbox_consumer.readable import readable
from outbox_shared import __version__
from outbox_shared.context import Story, consuming
from outbox_shared.headers import BAGGAGE, TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider


def tracing_for(consumer: str, provider: "TracerProvider | None" = None) -> "Tracing | None":
    """None without opentelemetry-api."""
    try:
        import opentelemetry.trace  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    return Tracing(consumer, provider)


class Tracing:
    def __init__(self, consumer: str, provider: "TracerProvider | None" = None) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415 - an extra
        from opentelemetry.baggage.propagation import W3CBaggagePropagator  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._consumer, self._provider = consumer, provider
        self._context = context
        self._api, self._trace, self._baggage = trace, TraceContextTextMapPropagator(), W3CBaggagePropagator()
        self._tracer = trace.get_tracer("outbox_consumer", __version__, tracer_provider=provider)

    @contextmanager
    def processing(self, identity: Identity) -> Iterator[None]:
        """A span `process <event type>`. What the handler publishes meanwhile continues that span, and not the publisher's."""
        if self._provider is None and isinstance(self._api.get_tracer_provider(), self._api.ProxyTracerProvider):
            yield  # nobody collects spans in this process
            return
        parent = self._published(identity.story)
        around = self._around(parent)
        token = self._context.attach(parent)  # with its baggage
        try:
            with self._tracer.start_as_current_span(
                f"process {readable(identity.event_type) or 'event'}",
                kind=self._api.SpanKind.CONSUMER,
                attributes=self._attributes(identity),
                links=around,
                record_exception=False,  # its text may repeat the payload
                set_status_on_exception=False,
            ) as span:
                try:
                    with consuming(self._continued(identity.story, span)):
                        yield
                except BaseException as error:
                    self._failed(span, error)
                    raise
        finally:
            self._context.detach(token)

    def _published(self, story: Story) -> "Context":
        """The publisher's context over that of this process. A malformed header changes nothing."""
        told = {TRACEPARENT: story.traceparent, TRACESTATE: story.tracestate, BAGGAGE: story.baggage}
        carrier = {name: value for name, value in told.items() if value is not None}
        return self._baggage.extract(carrier, context=self._trace.extract(carrier, context=self._context.get_current()))

    def _around(self, parent: "Context") -> "list[Any]":
        """A span that is open already, such as an instrumented client's, is no parent beside the publisher's, but belongs to it."""
        current, above = (self._api.get_current_span(it).get_span_context() for it in (None, parent))
        return [self._api.Link(current)] if current.is_valid and current.span_id != above.span_id else []

    def _continued(self, story: Story, span: "Span") -> Story:
        if not span.get_span_context().is_valid:
            return story
        carrier: dict[str, str] = {}
        self._trace.inject(carrier, context=self._api.set_span_in_context(span))
        return replace(story, traceparent=carrier.get(TRACEPARENT), tracestate=carrier.get(TRACESTATE))

    def _attributes(self, identity: Identity) -> dict[str, str]:
        told = {
            "messaging.system": "outbox",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.message.id": str(identity.event_id),
            "messaging.message.conversation_id": identity.story.correlation_id,
            "messaging.consumer.group.name": self._consumer,
            "outbox.event.type": readable(identity.event_type),
            "outbox.aggregate.type": readable(getattr(identity, "aggregate_type", None)),
            "outbox.aggregate.id": readable(getattr(identity, "aggregate_id", None)),
        }
        return {name: value for name, value in told.items() if value is not None}

    def _failed(self, span: "Span", error: BaseException) -> None:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        span.set_attribute("error.type", name)
        span.add_event("exception", {"exception.type": name})
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, name))

"""What a consumer tells about its work: log lines, metrics, spans. Never the payload, nor what an exception says, which may repeat it.

prometheus_client and opentelemetry-api are used where they are installed; where they are not, nothing is imported and nothing costs.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from outbox_consumer.identity import Identity
from outbox_consumer.metrics import meters_for
from outbox_consumer.readable import readable
from outbox_consumer.tracing import tracing_for

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

End = Literal["consumed", "duplicated", "failed"]

_SILENT = nullcontext()


class Telemetry:
    """One per consumer; called from any thread. `registry` and `tracer_provider` stand in for the process's own."""

    def __init__(
        self,
        consumer: str,
        *,
        registry: "CollectorRegistry | None" = None,
        tracer_provider: "TracerProvider | None" = None,
    ) -> None:
        self._consumer = consumer
        self._meters = meters_for(consumer, registry)
        self._tracing = tracing_for(consumer, tracer_provider)

    def asked_cache(self, hits: int, misses: int) -> None:
        """A cache was asked for so many ids."""
        if self._meters is not None:
            self._meters.asked_cache(hits, misses)

    def cleaned(self, count: int) -> None:
        """So many consumed rows have gone, of whichever consumer: they share a table."""
        if self._meters is not None:
            self._meters.cleaned(count)
        log.debug("%d consumed rows were older than their ttl and are gone", count)

    def processing(self, identity: Identity) -> AbstractContextManager[None]:
        """Around the handler of one event: the publisher's trace goes on in here, also into what the handler publishes."""
        return _SILENT if self._tracing is None else self._tracing.processing(identity)

    def ended(
        self,
        identity: Identity,
        end: End,
        seconds: float,
        *,
        from_cache: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """What became of one delivery."""
        if self._meters is not None:
            self._meters.ended(end, seconds)
        level = logging.WARNING if end == "failed" else logging.DEBUG
        if log.isEnabledFor(level):
            self._say(level, identity, end, seconds, from_cache=from_cache, error=error)

    def _say(
        self,
        level: int,
        identity: Identity,
        end: End,
        seconds: float,
        *,
        from_cache: bool,
        error: BaseException | None,
    ) -> None:
        event_type = readable(identity.event_type)
        fields = {
            "event_id": str(identity.event_id),
            "event_type": event_type,
            "aggregate_type": readable(identity.aggregate_type),
            "aggregate_id": readable(identity.aggregate_id),
            "consumer": self._consumer,
            "outcome": end,
            "duration": seconds,
            "from_cache": from_cache,
            "error_type": None if error is None else type(error).__name__,
        }
        how = f": {fields['error_type']}" if error is not None else ", as a cache knew" if from_cache else ""
        log.log(
            level, "%s: %s event %s (%s) in %.1f ms%s", self._consumer, end, identity.event_id, event_type, seconds * 1000, how,
            extra=fields,
        )  # fmt: skip

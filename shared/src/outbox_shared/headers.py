"""Names of the headers that every message carries: the contract between publisher, broker and consumer."""

from typing import Final

EVENT_ID: Final = "outbox_event_id"
EVENT_TYPE: Final = "outbox_event_type"
AGGREGATE_TYPE: Final = "outbox_aggregate_type"
AGGREGATE_ID: Final = "outbox_aggregate_id"
CORRELATION_ID: Final = "outbox_correlation_id"
OCCURRED_AT: Final = "outbox_occurred_at"
EVENT_VERSION: Final = "outbox_event_version"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
CONTENT_TYPE: Final = "content-type"

DEFAULT_CONTENT_TYPE: Final = "application/json"

RESERVED: Final = frozenset(
    {
        EVENT_ID,
        EVENT_TYPE,
        AGGREGATE_TYPE,
        AGGREGATE_ID,
        CORRELATION_ID,
        OCCURRED_AT,
        EVENT_VERSION,
        TRACEPARENT,
        TRACESTATE,
        BAGGAGE,
        CONTENT_TYPE,
    }
)
"""Names that only the library writes; a caller's own header may not use them."""

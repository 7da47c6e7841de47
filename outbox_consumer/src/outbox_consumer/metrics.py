"""Counters and durations, through prometheus_client where it is installed. The counter's name and types are spring-outbox's."""

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

TYPES = ("consumed", "duplicated", "failed", "cleaned", "cache-hit", "cache-miss")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Families(NamedTuple):
    """What a registry knows; each consumer of a process has its own label in it."""

    events: "Counter"
    seconds: "Histogram"


class Meters:
    """One consumer's. Label children are looked up here once, not for every message."""

    def __init__(self, families: Families, consumer: str) -> None:
        count = {kind: families.events.labels(type=kind, consumer=consumer) for kind in TYPES if kind != "cleaned"}
        self._ends = {
            end: (count[end], families.seconds.labels(type=end, consumer=consumer))
            for end in ("consumed", "duplicated", "failed")
        }
        self._hits, self._misses = count["cache-hit"], count["cache-miss"]
        self._cleaned = families.events.labels(type="cleaned", consumer="")  # consumers share their table

    def ended(self, end: str, seconds: float) -> None:
        count, histogram = self._ends[end]
        count.inc()
        histogram.observe(seconds)

    def asked_cache(self, hits: int, misses: int) -> None:
        if hits:
            self._hits.inc(hits)
        if misses:
            self._misses.inc(misses)

    def cleaned(self, count: int) -> None:
        self._cleaned.inc(count)


_families: "weakref.WeakKeyDictionary[CollectorRegistry, Families]" = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def meters_for(consumer: str, registry: "CollectorRegistry | None" = None) -> Meters | None:
    """None without prometheus_client. The process's own registry, unless another one is given."""
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    registry = prometheus_client.REGISTRY if registry is None else registry
    with _guard:
        families = _families.get(registry)
        if families is None:
            families = _families[registry] = Families(
                prometheus_client.Counter(
                    "consumed_outbox_events",
                    "What became of deliveries and of consumed rows, and what caches knew.",
                    ["type", "consumer"],
                    registry=registry,
                ),
                prometheus_client.Histogram(
                    "consumed_outbox_event_duration_seconds",
                    "From a delivery to its outcome, the handler and its commit included.",
                    ["type", "consumer"],
                    registry=registry,
                    buckets=_BUCKETS,
                ),
            )
    return Meters(families, consumer)

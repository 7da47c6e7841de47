"""What a consumer counts, with the real prometheus_client: the names, the labels, and nothing at all where it is not installed."""

import subprocess
import sys

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from outbox_consumer.identity import Identity
from outbox_consumer.metrics import TYPES, meters_for
from outbox_consumer.telemetry import Telemetry
from outbox_shared.ids import new_event_id

EVENT = Identity(new_event_id(), "order-created")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def counted(registry, kind, consumer="billing"):
    return registry.get_sample_value("consumed_outbox_events_total", {"type": kind, "consumer": consumer})


def test_every_outcome_is_counted_by_its_type_and_timed(registry):
    telemetry = Telemetry("billing", registry=registry)

    telemetry.ended(EVENT, "consumed", 0.02)
    telemetry.ended(EVENT, "consumed", 0.2)
    telemetry.ended(EVENT, "duplicated", 0.001, from_cache=True)
    telemetry.ended(EVENT, "failed", 3.0, error=ValueError("no"))

    assert {kind: counted(registry, kind) for kind in ("consumed", "duplicated", "failed")} == {
        "consumed": 2, "duplicated": 1, "failed": 1,
    }  # fmt: skip
    seconds = "consumed_outbox_event_duration_seconds"
    of_consumed = {"type": "consumed", "consumer": "billing"}
    assert registry.get_sample_value(f"{seconds}_count", of_consumed) == 2
    assert registry.get_sample_value(f"{seconds}_sum", of_consumed) == pytest.approx(0.22)
    assert registry.get_sample_value(f"{seconds}_bucket", {**of_consumed, "le": "0.025"}) == 1


def test_what_caches_knew_and_what_was_cleaned(registry):
    telemetry = Telemetry("billing", registry=registry)

    telemetry.asked_cache(hits=3, misses=0)
    telemetry.asked_cache(hits=0, misses=2)
    telemetry.cleaned(500)

    assert (counted(registry, "cache-hit"), counted(registry, "cache-miss")) == (3, 2)
    assert counted(registry, "cleaned", consumer="") == 500  # consumers of a database share their table


def test_every_type_is_there_from_the_start_so_that_rates_begin_at_nothing(registry):
    Telemetry("billing", registry=registry)

    assert {kind: counted(registry, kind, "" if kind == "cleaned" else "billing") for kind in TYPES} == dict.fromkeys(
        TYPES, 0
    )


def test_consumers_of_a_process_share_a_registry_and_keep_their_names_apart(registry):
    first, second, again = (Telemetry(name, registry=registry) for name in ("billing", "mailing", "billing"))

    for telemetry in (first, second, again):
        telemetry.ended(EVENT, "consumed", 0.1)

    assert (counted(registry, "consumed"), counted(registry, "consumed", "mailing")) == (2, 1)


def test_without_a_registry_it_is_the_process_wide_one():
    Telemetry("a consumer of this test alone").ended(EVENT, "consumed", 0.1)

    assert counted(REGISTRY, "consumed", "a consumer of this test alone") == 1
    assert b"consumed_outbox_events_total" in generate_latest(REGISTRY)


def test_without_prometheus_client_nothing_is_counted_and_nothing_breaks(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    assert meters_for("billing") is None
    telemetry = Telemetry("billing")
    telemetry.ended(EVENT, "consumed", 0.1)
    telemetry.asked_cache(1, 1)
    telemetry.cleaned(1)


def test_importing_the_package_loads_neither_library():
    script = "import outbox_consumer.telemetry, sys\nprint(*[m for m in ('prometheus_client', 'opentelemetry') if m in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []

"""Settings of spring-outbox load as they are: each block of its documentation is a file beside this one.

Only keys and values were kept. Whoever moves over can bring the file along; what each key then means here is asserted below.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outbox_consumer import ConsumerSettings
from outbox_publisher import PublisherSettings
from outbox_shared.durations import parse_duration

FOLDER = Path(__file__).parent / "seed_blocks"

CLEAN_UP = {"enabled": True, "batch_size": 100, "initial_delay": "120s", "fixed_delay": "5s"}
DLQ = {
    "enabled": True, "batch_size": 100, "transfer_to_fixed_delay": "900s", "transfer_from_fixed_delay": "3600s",
    "metrics.gauge.enabled": True, "metrics.gauge.cache.ttls": ["60s", "60s", "60s"],
}  # fmt: skip


def under(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}


PUBLISHER: dict[str, dict[str, Any]] = {
    "quick_start_publisher": {
        "enabled": True, "sender.type": "kafka", "dlq.enabled": True,
        "delivery_of:create-example-event": {"topic": "example-events", "batch_size": 500},
    },
    "quick_start_consumer": {"enabled": False},
    "global": {"thread_pool_size": 5, "tables.auto_create": True},
    "sender": {"sender.type": "kafka", "sender.bean_name": "customKafkaTemplate", "sender.emergency_timeout": "120s"},
    "defaults": {
        "defaults.batch_size": 50, "defaults.initial_delay": "300s", "defaults.fixed_delay": "2s", "defaults.max_retries": 3,
        "defaults.backoff.enabled": True, "defaults.backoff.delay": "10s", "defaults.backoff.multiplier": 3,
    },
    "events": {
        "delivery_of:order-created": {
            "topic": "orders", "batch_size": 100, "fixed_delay": "1s", "max_retries": 5,
            "backoff.enabled": True, "backoff.delay": "5s", "backoff.multiplier": 2,
        },
        "delivery_of:order-updated": {"topic": "orders", "batch_size": 50, "fixed_delay": "2s", "backoff.enabled": False},
        "delivery_of:notification-sent": {"topic": "notifications", "batch_size": 500, "max_retries": 3},
    },
    "events_inherit": {
        "delivery_of:high-priority": {"topic": "events", "fixed_delay": "1s", "batch_size": 50, "backoff.enabled": True},
        "delivery_of:low-priority": {"topic": "events", "fixed_delay": "10s", "batch_size": 50, "backoff.enabled": False},
        "defaults.max_retries": 3,
    },
    "stuck_recovery": {
        "stuck_recovery.batch_size": 100, "stuck_recovery.max_batch_processing_time": "300s",
        "stuck_recovery.initial_delay": "300s", "stuck_recovery.fixed_delay": "1800s",
    },
    "dlq": under("dlq", {**DLQ, "transfer_to_initial_delay": "300s", "transfer_from_initial_delay": "300s"}),
    "publisher_clean_up": under("clean_up", {**CLEAN_UP, "ttl": "1h"}),
    "publisher_metrics": {"metrics.gauge.enabled": True, "metrics.gauge.cache.ttls": ["60s", "60s", "30s"]},
    "consumer_clean_up": {"enabled": True},
    "consumer_cache": {"enabled": True},
    "producer_only_minimal": {"sender.type": "kafka", "delivery_of:my-event": {"topic": "my.topic", "fixed_delay": "500ms"}},
    "producer_only_full": {
        "thread_pool_size": 5, "tables.auto_create": True, "sender.type": "kafka", "sender.emergency_timeout": "120s",
        "defaults.batch_size": 100, "defaults.initial_delay": "30s", "defaults.fixed_delay": "2s", "defaults.max_retries": 3,
        "delivery_of:order-created": {"topic": "orders", "batch_size": 100, "fixed_delay": "1s", "backoff.delay": "10s"},
        "delivery_of:order-updated": {"topic": "orders", "batch_size": 50, "fixed_delay": "1s", "initial_delay": "30s"},
        "delivery_of:order-deleted": {"topic": "orders", "batch_size": 50, "fixed_delay": "10s", "backoff.enabled": False},
        "stuck_recovery.batch_size": 100, "stuck_recovery.initial_delay": "120s", "stuck_recovery.fixed_delay": "1800s",
        **under("clean_up", {**CLEAN_UP, "ttl": "1h"}),
        **under("dlq", {**DLQ, "transfer_to_initial_delay": "120s", "transfer_from_initial_delay": "120s"}),
        "metrics.gauge.cache.ttls": ["60s", "60s", "30s"],
    },
    "consumer_only_minimal": {"enabled": False},
    "consumer_only_full": {"enabled": False, "thread_pool_size": 2},
}  # fmt: skip

UNTOUCHED = {"enabled": True, "clean_up.ttl": "7d", "cache.enabled": False}
CONSUMER: dict[str, dict[str, Any]] = dict.fromkeys(PUBLISHER, UNTOUCHED) | {
    "quick_start_consumer": {**UNTOUCHED, "cache.cache_name": "outbox:consumed"},
    "global": {**UNTOUCHED, "thread_pool_size": 5, "tables.auto_create": True},
    "consumer_clean_up": under("clean_up", {**CLEAN_UP, "ttl": "24h"}),
    "consumer_cache": {"cache.enabled": True, "cache.cache_name": "outbox:consumed", "cache_redis_url": None},
    "consumer_only_minimal": {**UNTOUCHED, "cache.cache_name": "outbox:consumed"},
    "consumer_only_full": {
        "enabled": True, "thread_pool_size": 2, "tables.auto_create": True,
        **under("clean_up", {**CLEAN_UP, "ttl": "24h", "fixed_delay": "120s"}),
        "cache.enabled": True, "cache.cache_name": "outbox:consumed",
    },
}  # fmt: skip


def test_every_block_has_its_expectations():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(PUBLISHER) == sorted(CONSUMER)


@pytest.mark.parametrize("name", PUBLISHER)
def test_a_block_loads_unchanged(name, empty_folder, monkeypatch):
    monkeypatch.setenv("OUTBOX_CONFIG", str(FOLDER / f"{name}.yml"))

    assert_holds(PublisherSettings.load(), PUBLISHER[name])
    assert_holds(ConsumerSettings.load(), CONSUMER[name])


def assert_holds(settings: Any, expected: Mapping[str, Any]) -> None:
    for path, value in expected.items():
        call, _, argument = path.partition(":")
        if argument:
            assert_holds(getattr(settings, call)(argument), value)
            continue
        found = settings
        for part in path.split("."):
            found = getattr(found, part)
        assert found == as_kept(value, like=found), path


def as_kept(value: Any, *, like: Any) -> Any:
    """Durations are written as in the file."""
    if isinstance(value, list):
        return tuple(parse_duration(item) for item in value)
    return parse_duration(value) if isinstance(value, str) and not isinstance(like, str) else value

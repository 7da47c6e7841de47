"""What may be meant so and may be a mistake is said once, when a relay or a consumer is built."""

import logging
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from outbox_consumer import ConsumerSettings, IdempotentConsumer
from outbox_publisher import PublisherSettings, Relay
from outbox_publisher.relay.backoff import retry_delay
from outbox_publisher.senders import MemorySender
from outbox_publisher.settings import BackoffSettings
from outbox_shared.retries import Retries

FORGOTTEN = (
    "consumer.clean-up.ttl 1d is shorter than publisher.dlq.replay-window 7d: an event that is sent again after 1d runs its handler "
    "again; write clean-up.ttl: 7d for the consumer"
)

SETS = "publisher.sender.kafka.properties sets"
TIMEOUT = "the lease is checked against sender.publish-timeout; write that instead"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path) -> None:
    """No file and no variable of the developer's own."""


def both(yaml: str) -> tuple[list[str], list[str]]:
    Path("outbox.yml").write_text(yaml)
    return PublisherSettings.load().warnings(), ConsumerSettings.load().warnings()


def test_defaults_are_nothing_to_warn_about():
    assert PublisherSettings().warnings() == ConsumerSettings().warnings() == []
    assert both("outbox: {publisher: {}, consumer: {}}") == ([], [])


def test_a_consumer_that_forgets_before_the_last_replay():
    assert both("outbox: {publisher: {}, consumer: {clean-up: {ttl: 1d}}}") == ([FORGOTTEN], [FORGOTTEN])


@pytest.mark.parametrize(
    "yaml",
    [
        "outbox: {publisher: {enabled: false}, consumer: {clean-up: {ttl: 1d}}}",
        "outbox: {publisher: {dlq: {enabled: false}}, consumer: {clean-up: {ttl: 1d}}}",
        "outbox: {publisher: {dlq: {replay-window: 1d}}, consumer: {clean-up: {ttl: 1d}}}",
        "outbox: {publisher: {}, consumer: {enabled: false, clean-up: {ttl: 1d}}}",
    ],
)
def test_nobody_replays_longer(yaml):
    assert both(yaml) == ([], [])


def test_rows_that_are_kept_can_be_sent_again_too():
    publisher, consumer = both("outbox: {publisher: {clean-up: {ttl: 90d}}, consumer: {name: billing}}")

    assert publisher == consumer
    assert publisher[0].startswith("consumer.clean-up.ttl 7d is shorter than publisher.clean-up.ttl 90d")


@pytest.mark.parametrize(
    ("publisher", "line"),
    [
        ("defaults: {max-retries: 200}", "the retries of publisher.defaults 8d22h30m44s"),
        ("events: {order-created: {max-retries: 200}}", "the retries of publisher.events.order-created 8d22h30m44s"),
        (
            "defaults: {max-retries: 2, backoff: {enabled: false, delay: 4d, jitter: 0}}",
            "the retries of publisher.defaults 8d",
        ),
        (
            "{defaults: {backoff: {max-delay: 10d, delay: 1d, jitter: 0}}, events: {slow: {max-retries: 2}, once: {max-retries: 0}}}",
            "the retries of publisher.defaults 13d",
        ),
    ],
)
def test_an_event_can_be_sent_again_for_as_long_as_it_is_retried(publisher, line):
    publisher = publisher if publisher.startswith("{") else f"{{{publisher}}}"
    told = both(f"outbox: {{publisher: {publisher}, consumer: {{name: billing}}}}")

    assert told[0] == told[1]
    assert len(told[0]) == 1
    assert told[0][0].startswith(f"consumer.clean-up.ttl 7d is shorter than {line}")


@pytest.mark.parametrize("attempts", [0, 1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("enabled", [True, False])
def test_retries_last_as_long_as_the_relay_waits_between_them(attempts, enabled):
    backoff = BackoffSettings(enabled=enabled, delay="7s", multiplier=2.5, max_delay="20m", jitter=0.2)
    retries = Retries(attempts, enabled, backoff.delay, 2.5, backoff.max_delay, 0.2)

    waited = sum(retry_delay(backoff, attempt, chance=1.0) for attempt in range(1, attempts + 1))

    assert retries.last().total_seconds() == pytest.approx(waited)


def test_a_publishers_mistakes_do_not_keep_a_consumer_from_starting():
    Path("outbox.yml").write_text(
        "outbox: {publisher: {defaults: {max-retries: many, backoff: {delay: soon, jitter: [], multiplier: x}}, events: 7}, consumer: {}}"
    )

    assert ConsumerSettings.load().warnings() == []


def test_the_other_sections_variables_count_and_its_mistakes_are_its_own(monkeypatch):
    monkeypatch.setenv("OUTBOX_CONSUMER__CLEAN_UP__TTL", "1d")
    assert both("outbox: {publisher: {}}") == ([FORGOTTEN], [FORGOTTEN])

    monkeypatch.setenv("OUTBOX_CONSUMER__CLEAN_UP__TTL", "soon")
    assert PublisherSettings.load().warnings() == []


def test_a_ttl_of_0_ends_the_window_of_event_ids():
    line = "publisher.clean-up.ttl is 0: a row goes when it is delivered, and a later publish with the same event_id is sent again"

    assert PublisherSettings(clean_up={"ttl": 0}).warnings() == [line]


def test_a_cache_that_is_described_but_off():
    line = "consumer.cache is written, but a cache is off by default: write cache.enabled: true to use it"

    assert ConsumerSettings(cache={"cache-name": "shop:consumed"}).warnings() == [line]
    assert ConsumerSettings(cache={"cache-name": "shop:consumed", "enabled": False}).warnings() == []
    assert ConsumerSettings(cache={"enabled": True}).warnings() == []


@pytest.mark.parametrize(
    ("properties", "lines"),
    [
        ({"acks": "all", "linger.ms": 5}, []),
        ({"acks": -1}, []),
        ({"acks": 1}, [f"{SETS} acks to 1: an acknowledged event can be lost; write all"]),
        ({"message.timeout.ms": 1}, [f"{SETS} message.timeout.ms: {TIMEOUT}"]),
    ],
)  # fmt: skip
def test_kafka_properties_that_take_a_promise_back(properties, lines):
    assert PublisherSettings(sender={"kafka": {"properties": properties}}).warnings() == lines


def test_a_relay_says_it_when_it_is_built(caplog):
    with caplog.at_level(logging.WARNING):
        Relay(PublisherSettings(database_url="sqlite:///x.db", clean_up={"ttl": 0}), sender=MemorySender()).close()

    assert [record.message[:29] for record in caplog.records] == ["publisher.clean-up.ttl is 0: "]


def test_a_consumer_says_it_when_it_is_built(caplog):
    engine = create_engine("sqlite:///x.db")
    with caplog.at_level(logging.WARNING, "outbox_consumer.consumer"):
        IdempotentConsumer(engine, settings=ConsumerSettings(name="billing", cache={"ttl": "5m"}))
    engine.dispose()

    assert [record.message[:25] for record in caplog.records] == ["consumer.cache is written"]

"""What may be meant so and may be a mistake is said once, when a relay or a consumer is built."""

import logging
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from outbox_consumer import ConsumerSettings, IdempotentConsumer
from outbox_publisher import PublisherSettings, Relay
from outbox_publisher.senders import MemorySender

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

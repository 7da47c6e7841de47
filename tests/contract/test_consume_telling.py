"""What a consumer tells while it works: to the log, and to whoever counts."""

import pytest
from prometheus_client import CollectorRegistry

from outbox_consumer import ConsumerSettings, IdempotentConsumer, Telemetry
from tests.consuming import ConsumingDatabase, a_message, book, book_all


def test_a_line_in_the_log_names_the_event_and_its_aggregate_and_nothing_of_what_is_in_it(
    database: ConsumingDatabase, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "outbox_consumer.telemetry")
    message = a_message() | {"outbox_aggregate_type": "Order", "outbox_aggregate_id": "17", "secret": "x1y2"}

    database.consumer().consume(message, book)
    database.consumer().consume(message, book)

    lines = [record for record in caplog.records if record.name == "outbox_consumer.telemetry"]
    told = [(record.outcome, record.consumer, record.aggregate_type, record.aggregate_id) for record in lines]
    assert told == [("consumed", "billing", "Order", "17"), ("duplicated", "billing", "Order", "17")]
    assert {record.event_id for record in lines} == {message["outbox_event_id"]}
    assert "x1y2" not in caplog.text


def test_metrics_go_to_the_registry_that_a_consumer_is_given(sync_database: ConsumingDatabase):
    registry, message = CollectorRegistry(), a_message()
    told = Telemetry("billing", registry=registry)
    settings = ConsumerSettings(clean_up={"enabled": False})
    consumer = IdempotentConsumer(sync_database.engine, "billing", settings=settings, telemetry=told)

    consumer.consume(message, book)
    consumer.consume_batch([message, message], book_all)

    def count(kind: str) -> float | None:
        return registry.get_sample_value("consumed_outbox_events_total", {"type": kind, "consumer": "billing"})

    assert (count("consumed"), count("duplicated")) == (1.0, 2.0)

"""A line for each outcome, with fields for programs; never what a message or an exception says."""

import logging
from dataclasses import dataclass

import pytest

from outbox_consumer.identity import Identity
from outbox_consumer.telemetry import Telemetry
from outbox_shared.ids import new_event_id

EVENT = Identity(new_event_id(), "order-created")
LOGGER = "outbox_consumer.telemetry"


@dataclass(frozen=True)
class WithAggregate:
    """An identity that knows more."""

    identity: Identity
    aggregate_type: str = "order"
    aggregate_id: str = "4711"

    def __getattr__(self, name):
        return getattr(self.identity, name)


@pytest.fixture
def telemetry(caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    return Telemetry("billing")


def test_what_was_consumed_or_known_is_told_at_debug(telemetry, caplog):
    telemetry.ended(EVENT, "consumed", 0.0123)
    telemetry.ended(EVENT, "duplicated", 0.001, from_cache=True)

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", f"billing: consumed event {EVENT.event_id} (order-created) in 12.3 ms"),
        ("DEBUG", f"billing: duplicated event {EVENT.event_id} (order-created) in 1.0 ms, as a cache knew"),
    ]


def test_programs_get_fields(telemetry, caplog):
    telemetry.ended(WithAggregate(EVENT), "consumed", 0.5)

    record = vars(caplog.records[0])
    wanted = {
        "event_id": str(EVENT.event_id), "event_type": "order-created", "aggregate_type": "order", "aggregate_id": "4711",
        "consumer": "billing", "outcome": "consumed", "duration": 0.5, "from_cache": False, "error_type": None,
    }  # fmt: skip
    assert {name: record[name] for name in wanted} == wanted


def test_a_failure_is_a_warning_that_names_the_kind_and_repeats_no_word_of_it(telemetry, caplog):
    telemetry.ended(EVENT, "failed", 0.1, error=ValueError("card 1234 of customer 4711"))

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"billing: failed event {EVENT.event_id} (order-created) in 100.0 ms: ValueError"
    assert record.error_type == "ValueError"
    assert "4711" not in str(vars(record))
    assert record.exc_info is None


def test_a_hostile_header_stays_in_its_line(telemetry, caplog):
    telemetry.ended(Identity(new_event_id(), "evil\nWARNING all is lost\x1b[2J" + "x" * 10_000), "consumed", 0.1)

    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 400
    assert len(record.event_type) == 255


def test_a_line_that_nobody_reads_is_not_made(caplog, monkeypatch):
    caplog.set_level(logging.INFO, LOGGER)
    telemetry = Telemetry("billing")
    monkeypatch.setattr(Telemetry, "_say", lambda *_, **__: pytest.fail("made a line"))

    telemetry.ended(EVENT, "consumed", 0.1)

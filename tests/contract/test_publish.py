"""publish() through every driver: the event is there if and only if the caller's change is, exactly as it was given."""

import json
from datetime import UTC, datetime, timedelta
from enum import Enum
from uuid import UUID, uuid4

import pytest

from outbox_publisher import EventDraft, Outbox
from outbox_shared.context import Story, consuming
from outbox_shared.errors import ConfigurationError, MissingTable, PublishError
from outbox_shared.ids import lane_of
from tests.publishing import open_shop


class Kind(str, Enum):  # noqa: UP042 - whose str() is its name, as many programs have it
    CREATED = "order-created"


def test_commit_stores_the_change_and_the_event(shop):
    with shop.begin():
        shop.take(1)

    assert shop.counts() == (1, 1)


def test_rollback_stores_neither(shop):
    with pytest.raises(ZeroDivisionError), shop.begin():
        shop.take(1)
        _ = 1 / 0

    assert shop.counts() == (0, 0)


def test_a_savepoint_that_is_rolled_back_takes_its_event_along(shop):
    with shop.begin():
        with pytest.raises(ZeroDivisionError), shop.savepoint():
            shop.take(1)
            _ = 1 / 0
        shop.take(2)

    assert shop.counts() == (1, 1)
    assert shop.database.events()[0].key == "2"


def test_a_savepoint_that_is_released_still_depends_on_the_outer_transaction(shop):
    with pytest.raises(ZeroDivisionError), shop.begin():
        with shop.savepoint():
            shop.take(1)
        _ = 1 / 0

    assert shop.counts() == (0, 0)


def test_every_column_is_stored_as_it_was_given(shop):
    occurred = datetime(2026, 1, 31, 12, 30, 0, 250_000, tzinfo=UTC)
    with shop.begin():
        published = shop.publish(
            Kind.CREATED,
            {"total": 7, "name": "Zoë 🥐"},
            topic="elsewhere",
            aggregate_type="Order",
            aggregate_id=42,
            headers={"tenant": "acme", "city": "Zürich"},
            correlation_id="req-1",
            version=2,
            occurred_at=occurred,
            content_type="application/vnd.order+json",
        )

    (row,) = shop.database.events()
    assert published.stored is True
    assert row.id == published.id
    assert row.id.version == 7
    assert (row.status, row.attempts, row.lost_claims, row.replays) == ("PENDING", 0, 0, 0)
    assert (row.maybe_sent, row.failed) == (False, False)
    assert (row.event_type, row.topic) == ("order-created", "elsewhere")
    assert (row.key, row.lane) == ("42", lane_of("42", row.id))  # the key defaults to the aggregate's id
    assert (row.aggregate_type, row.aggregate_id) == ("Order", "42")
    assert (row.correlation_id, row.version, row.occurred_at) == ("req-1", 2, occurred)
    assert json.loads(row.headers) == {"tenant": "acme", "city": "Zürich"}
    assert (row.content_type, row.payload) == ("application/vnd.order+json", '{"total":7,"name":"Zoë 🥐"}'.encode())
    assert row.created_at == row.next_retry_at
    assert abs((row.created_at - datetime.now(UTC)).total_seconds()) < 60
    assert row.processed_at is row.claim_token is row.last_error is row.broker_partition is row.broker_offset is None
    assert row.traceparent is row.tracestate is row.baggage is None


def test_bytes_of_every_value_come_back_as_they_are(shop):
    payload = bytes(range(256)) * 40
    with shop.begin():
        shop.publish("order-created", payload)

    assert shop.database.events()[0].payload == payload


def test_a_draft_says_the_same(shop):
    with shop.begin():
        published = shop.publish(EventDraft("order-created", {"id": 1}, key=1, version=3))

    (row,) = shop.database.events()
    assert (row.id, row.event_type, row.key, row.version) == (published.id, "order-created", "1", 3)


# Delays.


def test_a_delayed_event_is_due_that_much_later(shop):
    with shop.begin():
        shop.publish("a", {}, delay="1h30m")
        shop.publish("b", {}, delay=timedelta(milliseconds=250))
        shop.publish("c", {}, delay=timedelta(0))

    waits = [(row.next_retry_at - row.created_at).total_seconds() for row in shop.database.events()]
    assert waits == pytest.approx([5400, 0.25, 0], abs=0.05)  # MySQL's clock goes on within a transaction


def test_not_before_is_stored_and_never_lies_in_the_past(shop):
    tomorrow = datetime.now(UTC).replace(microsecond=125_000) + timedelta(days=1)
    with shop.begin():
        shop.publish("a", {}, not_before=tomorrow)
        shop.publish("b", {}, not_before=tomorrow - timedelta(days=400))

    later, now = shop.database.events()
    assert later.next_retry_at == tomorrow
    assert abs((now.next_retry_at - now.created_at).total_seconds()) < 1


def test_a_delayed_event_is_not_claimed_before_its_time(shop):
    with shop.begin():
        shop.publish("a", {}, delay="1h")

    assert shop.database.relay().run_once().claimed == 0


# The caller's own ids.


def test_an_event_id_given_twice_is_stored_once(shop):
    mine = uuid4()
    with shop.begin():
        first = shop.publish("order-created", {"n": 1}, event_id=mine)
        again = shop.publish("order-created", {"n": 2}, event_id=mine)
    with shop.begin():
        later = shop.publish("order-created", {"n": 3}, event_id=mine)
        shop.order(1)  # and the transaction goes on

    assert (first.id, first.stored) == (mine, True)
    assert [(found.id, found.stored) for found in (again, later)] == [(mine, False), (mine, False)]
    assert shop.counts() == (1, 1)
    assert shop.database.events()[0].payload == b'{"n":1}'


def test_text_as_event_id_is_one_event_per_type_and_service(shop):
    with shop.begin():
        first = shop.publish("order-created", {}, event_id="order-7")
        again = shop.publish("order-created", {}, event_id="order-7")
        other_type = shop.publish("order-paid", {}, event_id="order-7")

    assert (again.id, again.stored) == (first.id, False)
    assert first.id != other_type.id
    assert other_type.stored
    assert shop.counts() == (0, 2)


def test_two_services_do_not_swallow_each_others_events(postgresql_outbox):
    shops = [open_shop("postgresql", postgresql_outbox, name=name) for name in ("shop", "warehouse")]
    for shop in shops:
        with shop.begin():
            assert shop.publish("order-created", {}, event_id="7").stored
        shop.close()

    assert len({row.id for row in postgresql_outbox.events()}) == 2


def test_the_id_of_a_text_never_changes(postgresql_outbox):
    # a constant of the contract: another id after an upgrade would store the event a second time
    shop = open_shop("postgresql", postgresql_outbox, name="shop")
    with shop.begin():
        assert shop.publish("order-created", {}, event_id="order-7").id == UUID("559e152d-dda9-5477-8a35-191251269008")
    shop.close()


def test_text_as_event_id_needs_a_name(sqlite_outbox):
    shop = open_shop("sqlite", sqlite_outbox, name=None)
    with pytest.raises(ConfigurationError, match=r"publisher\.name"), shop.begin():
        shop.publish("order-created", {}, event_id="order-7")
    shop.close()


# What is inherited from the message that is being consumed.


def test_a_handler_that_publishes_continues_the_messages_story(shop):
    story = Story("req-1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1", "user=7")
    with shop.begin():
        with consuming(story):
            shop.publish("a", {})
            shop.publish("b", {}, correlation_id="mine")
            shop.publish_batch("c", [1, 2])
        shop.publish("d", {})

    rows = {row.event_type: row for row in shop.database.events()}
    for name in "abc":
        row = rows[name]
        assert (row.traceparent, row.tracestate, row.baggage) == (story.traceparent, "vendor=1", "user=7")
    assert [rows[name].correlation_id for name in "abcd"] == ["req-1", "mine", "req-1", None]
    assert rows["d"].traceparent is None


# Cancel.


def test_a_waiting_event_can_be_cancelled_once(shop):
    with shop.begin():
        published = shop.publish("reminder", {}, delay="1h")
    with shop.begin():
        assert shop.cancel(published.id) is True
        assert shop.cancel(str(published.id)) is False

    assert shop.database.events() == []


def test_a_cancel_that_is_rolled_back_leaves_the_event(shop):
    with shop.begin():
        published = shop.publish("reminder", {}, delay="1h")
    with pytest.raises(ZeroDivisionError), shop.begin():
        assert shop.cancel(published.id)
        _ = 1 / 0

    assert len(shop.database.events()) == 1


def test_what_a_relay_has_or_has_sent_cannot_be_cancelled(shop):
    with shop.begin():
        published = shop.publish("reminder", {})
    shop.database.relay().run_once()

    with shop.begin():
        assert shop.cancel(published.id) is False
    assert shop.database.statuses() == {"PROCESSED": 1}


@pytest.mark.parametrize("wrong", ["reminder-7", 7, None])
def test_cancel_takes_what_publish_returned(sqlite_shop, wrong):
    with (
        pytest.raises(PublishError, match=r"the id that publish returned.*outbox\.cancel\(session, published\.id\)"),
        sqlite_shop.begin(),
    ):
        sqlite_shop.cancel(wrong)


def test_an_outbox_is_made_of_settings():
    with pytest.raises(TypeError, match=r"Outbox\(PublisherSettings\.load\(\)\)"):
        Outbox("postgresql://shop@localhost/shop")


def test_a_missing_table_names_init_db(shop):
    with shop.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE outbox_events")

    with pytest.raises(MissingTable, match="no table outbox_events: run `outbox-publisher init-db`"), shop.begin():
        shop.publish("order-created", {})

"""publish_batch() through every driver: many events at once, all or none, in their order."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outbox_publisher import EventDraft
from outbox_publisher.store import inserts
from outbox_shared.errors import InvalidKey
from outbox_shared.ids import lane_of


def test_payloads_of_one_type_are_stored_in_their_order(shop):
    lines = [{"order": n // 3, "line": n} for n in range(10)]
    with shop.begin():
        shop.order(1)
        batch = shop.publish_batch(
            "line-added", lines, key=lambda line: line["order"], aggregate_type="Order", version=4
        )

    rows = shop.database.events()
    assert [row.id for row in rows] == list(batch.ids)
    assert batch.stored == 10
    assert [row.payload for row in rows] == [b'{"order":%d,"line":%d}' % (n // 3, n) for n in range(10)]
    assert [row.key for row in rows] == [str(n // 3) for n in range(10)]
    assert [row.lane for row in rows] == [lane_of(row.key, row.id) for row in rows]
    assert {(row.event_type, row.topic, row.aggregate_type, row.version) for row in rows} == {
        ("line-added", "orders", "Order", 4)
    }
    assert {row.created_at == row.next_retry_at for row in rows} == {True}


def test_drafts_may_differ_in_everything(shop):
    occurred, tomorrow = (
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime.now(UTC).replace(microsecond=0) + timedelta(days=1),
    )
    drafts = [
        EventDraft("a", {"n": 1}, key="k", headers={"x": "ü"}, occurred_at=occurred),
        EventDraft("b", b"\x00\xff", topic="elsewhere", content_type="application/octet-stream", version=1),
        EventDraft("c", None, delay="1h", correlation_id="req"),
        EventDraft("d", [1], not_before=tomorrow, aggregate_type="Order", aggregate_id=uuid4()),
    ]
    with shop.begin():
        batch = shop.publish_batch(drafts)

    a, b, c, d = shop.database.events()
    assert (batch.stored, list(batch.ids)) == (4, [a.id, b.id, c.id, d.id])
    assert (a.key, a.headers, a.occurred_at, a.topic) == ("k", '{"x": "ü"}', occurred, "orders")
    assert (b.key, b.payload, b.topic, b.version) == (None, b"\x00\xff", "elsewhere", 1)
    assert b.content_type == "application/octet-stream"
    assert (c.payload, c.correlation_id) == (b"null", "req")
    assert (c.next_retry_at - c.created_at).total_seconds() == pytest.approx(3600, abs=0.05)
    assert (d.next_retry_at, d.aggregate_type, d.key) == (tomorrow, "Order", str(drafts[3].aggregate_id))
    assert abs((a.next_retry_at - a.created_at).total_seconds()) < 0.05


def test_a_thousand_events_are_one_statement(listened_shop):
    with listened_shop.begin():
        listened_shop.publish_batch("line-added", range(1000), key=lambda n: n)

    assert len(listened_shop.sent) == 1
    assert [row.payload for row in listened_shop.database.events()] == [b"%d" % n for n in range(1000)]


def test_a_large_batch_is_cut_by_its_bytes_and_stays_in_order(shop, monkeypatch):
    monkeypatch.setattr(inserts, "BYTES_AT_ONCE", 1000)
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 7)
    payloads = [b"%03d" % n + b"x" * (n % 5 * 200) for n in range(40)]
    with shop.begin():
        assert shop.publish_batch("line-added", payloads).stored == 40

    assert [row.payload for row in shop.database.events()] == payloads


def test_headers_count_too_where_a_server_takes_only_so_much(listened_shop):
    # MariaDB ends the connection, and the user's transaction with it, where one statement is over 16 MiB
    with listened_shop.begin():
        batch = listened_shop.publish_batch("line-added", range(1000), headers={"x": "h" * 20_000})

    assert batch.stored == 1000
    assert len(listened_shop.sent) == 6


def test_rollback_takes_the_whole_batch(shop):
    with pytest.raises(ZeroDivisionError), shop.begin():
        shop.publish_batch("line-added", range(5))
        _ = 1 / 0

    assert shop.counts() == (0, 0)


def test_one_bad_event_stores_none_and_is_named(shop):
    with shop.begin():
        with pytest.raises(InvalidKey) as caught:
            shop.publish_batch("line-added", ["a", "b", ""], key=lambda text: text)
        shop.take(1)

    assert caught.value.__notes__ == ["event number 2 of this batch, counted from 0"]
    assert shop.counts() == (1, 1)


def test_an_empty_batch_sends_nothing(shop):
    with shop.begin():
        batch = shop.publish_batch("line-added", [])
        shop.order(1)

    assert (batch.ids, batch.stored) == ((), 0)
    assert shop.counts() == (1, 0)


def test_callers_ids_that_are_there_already_are_counted_out(shop):
    there, twice, fresh = uuid4(), uuid4(), uuid4()
    with shop.begin():
        shop.publish("line-added", {"old": True}, event_id=there)
    with shop.begin():
        ids = [there, twice, twice, fresh]
        batch = shop.publish_batch([EventDraft("line-added", {}, event_id=event_id) for event_id in ids])

    assert list(batch.ids) == ids
    assert batch.stored == 2
    assert {row.id for row in shop.database.events()} == {there, twice, fresh}


def test_callers_ids_and_made_ones_may_be_mixed(shop):
    mine = uuid4()
    drafts = [EventDraft("a", n, event_id=mine if n % 2 else None) for n in range(6)]
    with shop.begin():
        batch = shop.publish_batch(drafts)

    assert batch.stored == 4  # three made ones, and mine once
    assert [row.payload for row in shop.database.events()] == [b"0", b"1", b"2", b"4"]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("line-added",), {}, "takes a list of payloads"),
        (("line-added", {"one": 1}), {}, "takes a list of payloads"),
        (("line-added", "text"), {}, "takes a list of payloads"),
        (([{"a": 1}],), {}, "takes EventDraft objects, not dict"),
        ((EventDraft("a", 1),), {}, "takes a list of EventDraft objects, not EventDraft"),
        ((None,), {}, "takes a list of EventDraft objects, not NoneType"),
        (([EventDraft("a", 1)],), {"key": 1}, "drafts say everything themselves"),
        (("line-added", [1]), {"kye": 1}, "no option is called 'kye': did you mean key?"),
        (("line-added", [1]), {"event_id": uuid4()}, "one event_id cannot serve many events"),
    ],
)
def test_a_wrong_call_is_told_the_right_one(sqlite_shop, arguments, options, message):
    with sqlite_shop.begin(), pytest.raises(TypeError, match=message.replace("?", r"\?")):
        sqlite_shop.publish_batch(*arguments, **options)

    assert sqlite_shop.counts() == (0, 0)

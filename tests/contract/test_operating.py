"""What people do to an outbox from the command line, on every database: look, pause, resume, clean up, recover, send again."""

import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import update

from outbox_publisher.claims import RowClaims
from outbox_publisher.senders import MemorySender, SendResult
from outbox_publisher.store import Wanted
from outbox_shared.sqltypes import wall_time_plus


@pytest.fixture
def outbox(command, outbox_database, monkeypatch):
    """outbox("status", …) -> exit code, stdout, stderr"""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", outbox_database.url)
    return lambda *arguments, **environment: command("outbox-publisher", *arguments, **environment)


def refuse(*keys):
    return MemorySender(answer=lambda event: SendResult.reject("no") if event.key in keys else None)


def claim(database, limit, relay):
    with database.engine.begin() as connection:
        claims = RowClaims(database.store, relay, timedelta(seconds=30))
        assert claims.begin_claim(connection, "order-created", Wanted(limit, 1_000_000), uuid4())() is not None


def leave_failed(database, *keys, event_type="order-created"):
    """Events that failed while there was no queue for them."""
    database.publish(5, event_type)
    database.relay(refuse(*keys), dlq={"enabled": False}).run_once()


def test_status_shows_what_there_is(outbox, outbox_database):
    # given something of everything
    leave_failed(outbox_database, "key-3")
    outbox_database.publish(2, "line-added")
    outbox_database.relay(refuse("key-1")).run_once()
    outbox_database.publish(4, "line-added")
    relay = outbox_database.relay()
    relay.duties.heartbeat.run_once()

    # when a program asks
    code, output, _ = outbox("status", "--json")

    # then it gets all of it
    found = json.loads(output)
    assert code == 0
    assert {(one["event_type"], one["status"]): one["count"] for one in found["events"]} == {
        ("order-created", "PROCESSED"): 4,
        ("order-created", "FAILED"): 1,
        ("line-added", "PROCESSED"): 1,
        ("line-added", "PENDING"): 4,
    }
    assert [(one["event_type"], one["status"], one["count"]) for one in found["dead_letters"]] == [
        ("line-added", "MOVED", 1)
    ]
    assert [(one["name"], one["alive"]) for one in found["relays"]] == [(relay.name, True)]
    assert found["paused"] == []

    # and people see the same
    _, text, _ = outbox("status")
    assert "relays        1 alive" in text
    assert f"  {relay.name}  seen" in text
    assert re.search(r"^line-added +4 +1 +\d+ s$", text, re.MULTILINE)


def test_status_tells_living_relays_from_silent_ones(outbox, outbox_database):
    # given a relay that beats, one that stopped in good order, and one that died a while ago
    alive, stopped, dead = (outbox_database.relay() for _ in range(3))
    for relay in (alive, stopped, dead):
        relay.duties.heartbeat.run_once()
    stopped.duties.heartbeat.end()
    state = outbox_database.store.tables.state
    with outbox_database.engine.begin() as connection:
        connection.execute(update(state).where(state.c.name == dead.name).values(until=wall_time_plus(-60.0)))

    found = json.loads(outbox("status", "--json")[1])

    assert {one["name"]: one["alive"] for one in found["relays"]} == {alive.name: True, dead.name: False}
    assert "1 alive, 1 silent" in outbox("status")[1]


def test_status_of_an_empty_outbox(outbox):
    assert outbox("status") == (
        0,
        "relays        0 alive\npaused        nothing\n\nevents: none\n\ndead letters: none\n",
        "",
    )


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ([], []),
        (["--type", "order-created"], ["line-added"]),
        (["--topic", "orders"], ["line-added"]),
    ],
    ids=["everything", "a type", "a topic"],
)
def test_what_is_paused_is_stored_and_not_sent_until_it_is_resumed(outbox, outbox_database, options, sent):
    # given a pause
    code, output, _ = outbox("pause", *options)
    assert (code, "nothing" in output) == (0, False)

    # when events come
    outbox_database.publish(2, "order-created", topic="orders")
    outbox_database.publish(2, "line-added", topic="lines")
    sender = MemorySender()
    relay = outbox_database.relay(sender)
    relay.run_once()

    # then only what is not paused is sent
    assert sorted({event.event_type for event in sender.sent}) == sent
    assert sum(outbox_database.statuses().values()) == 4

    # and the rest when the pause is over
    assert outbox("resume", *options) == (0, "paused        nothing\n", "")
    outbox_database.relay(sender).run_once()
    assert outbox_database.statuses() == {"PROCESSED": 4}


def test_a_pause_ends_only_by_its_own_name(outbox):
    outbox("pause")
    outbox("pause", "--type", "order-created")
    assert outbox("pause", "--type", "order-created")[1] == "paused        everything, type order-created\n"

    assert outbox("resume", "--topic", "orders") == (
        0,
        "paused        everything, type order-created\n",
        "that was not paused\n",
    )
    assert outbox("resume")[1] == "paused        type order-created\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pause", "--type", "a", "--topic", "b"], "name a type or a topic, not both"),
        (["resume", "--type", "a", "--topic", "b"], "name a type or a topic, not both"),
        (["pause", "--topic", "t" * 300], "no type or topic has such a long name"),
        (["events", "retry"], "say which events"),
        (["events", "retry", "--all", "--type", "a"], "say which events"),
        (["run", "--http", "8080"], "write HOST:PORT"),
    ],
)
def test_a_mistake_changes_nothing_and_says_what_to_write(outbox, arguments, said):
    code, output, errors = outbox(*arguments)

    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert said in errors
    assert "paused        nothing" in outbox("status")[1]


def test_without_tables_every_command_names_init_db(outbox):
    for arguments in (["status"], ["pause"], ["resume"], ["cleanup"], ["recover"], ["events", "retry", "--all"]):
        code, _, errors = outbox(*arguments, OUTBOX_TABLES__PREFIX="absent_")
        assert (code, "run `outbox-publisher init-db`" in errors) == (2, True)


def test_failed_events_are_sent_again_by_id(outbox, outbox_database):
    # given two events that failed, one that did not, and a dead letter
    leave_failed(outbox_database, "key-1", "key-2")
    outbox_database.publish(1, "line-added")
    outbox_database.relay(refuse("key-0")).run_once()
    (letter,) = outbox_database.dead_letters()
    by_key = {row.key: row for row in outbox_database.events()}
    stranger = uuid4()

    # when four are named
    named = [str(one) for one in (by_key["key-1"].id, by_key["key-3"].id, letter.id, stranger)]
    code, output, errors = outbox("events", "retry", *named)

    # then the one that failed has a fresh budget, and the others are what they were
    assert (code, output) == (1, "1 event is to be sent again\n")
    assert f"{by_key['key-3'].id} is not FAILED: PROCESSED" in errors
    assert f"{letter.id} is not FAILED: dead letter, MOVED" in errors
    assert f"{stranger} is not FAILED: there is no such event" in errors
    after = {row.key: row for row in outbox_database.events()}
    row = after["key-1"]
    assert (row.id, row.status, row.failed, row.attempts, row.replays, row.processed_at) == (
        by_key["key-1"].id, "PENDING", False, 0, 1, None,
    )  # fmt: skip
    assert after["key-2"] == by_key["key-2"]
    assert after["key-3"] == by_key["key-3"]

    # and is delivered
    sender = MemorySender()
    outbox_database.relay(sender).run_once()
    assert [event.key for event in sender.sent] == ["key-1"]


@pytest.mark.parametrize(("options", "count"), [(["--all"], 3), (["--type", "line-added"], 1)], ids=["all", "a type"])
def test_failed_events_are_sent_again_all_at_once(outbox, outbox_database, options, count):
    leave_failed(outbox_database, "key-1", "key-2")
    leave_failed(outbox_database, "key-4", event_type="line-added")

    code, output, _ = outbox("events", "retry", *options)

    assert (code, output.split()[0]) == (0, str(count))
    sender = MemorySender()
    outbox_database.relay(sender).run_once()
    assert len(sender.sent) == count
    assert outbox_database.statuses().get("FAILED", 0) == 3 - count


def test_more_failed_events_than_one_transaction_takes_are_all_sent_again(outbox, outbox_database, monkeypatch):
    monkeypatch.setattr("outbox_publisher.operations.AT_ONCE", 2)
    leave_failed(outbox_database, *(f"key-{n}" for n in range(5)))
    ids = [str(row.id) for row in outbox_database.events()]

    assert outbox("events", "retry", *ids)[:2] == (0, "5 events are to be sent again\n")
    assert outbox_database.statuses() == {"PENDING": 5}
    leave_failed(outbox_database, *(f"key-{n}" for n in range(5)))
    assert outbox("events", "retry", "--all")[:2] == (0, "10 events are to be sent again\n")


def test_cleanup_removes_what_is_older_than_its_ttl(outbox, outbox_database):
    # given events that were delivered long ago and just now, one that failed long ago, and letters that were resolved
    leave_failed(outbox_database, "key-1")
    events, letters = outbox_database.store.tables.events, outbox_database.store.tables.dead_letters
    outbox_database.publish(3, "line-added")
    outbox_database.relay(refuse("key-0", "key-1")).run_once()
    long_ago = wall_time_plus(-timedelta(days=40).total_seconds())
    with outbox_database.engine.begin() as connection:
        connection.execute(update(events).where(events.c.event_type == "order-created").values(processed_at=long_ago))
        connection.execute(update(letters).values(status_at=long_ago))
        connection.execute(update(letters).where(letters.c.key == "key-0").values(dlq_status="RESOLVED"))

    code, output, _ = outbox("cleanup")

    assert (code, output) == (0, "removed 4 delivered events and 1 resolved dead letters\n")
    assert outbox_database.statuses() == {"FAILED": 1, "PROCESSED": 1}
    assert [letter.dlq_status for letter in outbox_database.dead_letters()] == ["MOVED"]


def test_cleanup_waits_for_a_relay_that_is_cleaning(outbox, outbox_database, monkeypatch):
    monkeypatch.setattr("outbox_shared.cleanup.PATIENCE", timedelta(seconds=0.3))
    state = outbox_database.store.state
    with outbox_database.engine.begin() as connection:
        assert state.take_lease(connection, "cleanup", "another relay", 30)

    code, output, errors = outbox("cleanup")

    assert (code, output) == (2, "")
    assert "another process is cleaning up" in errors


def test_recover_frees_what_dead_relays_held(outbox, outbox_database):
    # given a claim whose lease is over, one that still lives, and rows whose claim is gone
    claims = outbox_database.store.tables.claims
    outbox_database.publish(6)
    for name in ("lost", "living", "gone"):
        claim(outbox_database, 2, relay=name)
    with outbox_database.engine.begin() as connection:
        connection.execute(update(claims).where(claims.c.relay == "lost").values(lease_until=wall_time_plus(-1.0)))
        connection.execute(claims.delete().where(claims.c.relay == "gone"))

    code, output, _ = outbox("recover")

    assert (code, output) == (0, "4 events are free again\n")
    assert outbox_database.statuses() == {"PENDING": 4, "IN_PROCESS": 2}

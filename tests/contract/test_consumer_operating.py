"""What people do to a consumer from the command line, on every database: look, clean up, forget."""

import json
import re
import sys
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.orm import sessionmaker

from outbox_consumer import IdempotentConsumer, Outcome
from outbox_consumer.cache import InProcessCache, current_epoch
from outbox_consumer.store.upkeep import counting
from outbox_consumer.store.upkeep.counting import Number
from outbox_shared.ids import new_event_id


@pytest.fixture
def outbox(command, consumed_database, monkeypatch):
    """outbox("status", …) -> exit code, stdout, stderr"""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", consumed_database.url)
    return lambda *arguments, **environment: command("outbox-consumer", *arguments, **environment)


# Status.


def test_status_shows_who_has_consumed_how_much(outbox, consumed_database):
    # given two consumers, some rows that are to go, failures, and a process that cleans
    consumed_database.consumed(5, days=1)
    consumed_database.consumed(2, days=8)
    consumed_database.consumed(3, days=3, consumer="mailing")
    consumed_database.failed(4, days=2)
    consumed_database.hold_lease("web-1")

    # when a program asks
    code, output, _ = outbox("status", "--json")

    # then it gets all of it
    found = json.loads(output)
    assert code == 0
    assert [(one["consumer"], one["rows"]) for one in found["consumers"]] == [
        ("billing", {"value": 7, "kind": "exact"}),
        ("mailing", {"value": 3, "kind": "exact"}),
    ]
    assert found["consumers"][0]["oldest"] == found["oldest"] < found["consumers"][1]["oldest"]
    assert found["consumers"][0]["newest"] == found["newest"]
    assert (found["expired"], found["attempts"]) == ({"value": 2, "kind": "exact"}, {"value": 4, "kind": "exact"})
    assert (found["cleaner"]["holder"], found["cleaner"]["alive"]) == ("web-1", True)
    assert (found["ttl"], found["cleanup_enabled"], found["schema_version"]) == (604_800, True, "1")

    # and people see the same
    text_ = outbox("status")[1]
    assert re.search(r"^billing +7 +8 d +24 h$", text_, re.MULTILINE)
    assert "clean-up      after 7d, 2 rows older than 7d\n  web-1 is cleaning since" in text_
    assert "failing       4 messages, since 2 d" in text_


def test_status_of_an_empty_database(outbox):
    assert outbox("status") == (
        0,
        (
            "schema        version 1\nconsumed      nothing\nclean-up      after 7d, 0 rows older than 7d\n"
            "  nobody is cleaning right now\nfailing       0 messages\n\nconsumers: none\n"
        ),
        "",
    )


def test_status_of_a_large_table_is_estimated_and_says_so(outbox, consumed_database, monkeypatch):
    # given more rows than one look may read
    monkeypatch.setattr(counting, "EXACT_UP_TO", 10)
    consumed_database.consumed(30, days=8)
    consumed_database.consumed(4, days=1, consumer="mailing")
    if consumed_database.engine.dialect.name != "sqlite":
        with consumed_database.engine.begin() as connection:
            verb = "ANALYZE" if consumed_database.engine.dialect.name == "postgresql" else "ANALYZE TABLE"
            connection.execute(text(f"{verb} outbox_consumed_events"))

    found = json.loads(outbox("status", "--json")[1])

    rows = {one["consumer"]: one["rows"] for one in found["consumers"]}
    on_sqlite = {"value": 10, "kind": "at least"}
    assert rows["billing"] == (
        on_sqlite if consumed_database.engine.dialect.name == "sqlite" else {"value": 30, "kind": "estimate"}
    )
    assert rows["mailing"] == {"value": 4, "kind": "exact"}
    assert found["expired"] == on_sqlite
    assert found["oldest"] < found["newest"]
    assert found["consumers"][0]["oldest"] is None
    assert re.search(r"^billing +[~≥]\d+$", outbox("status")[1], re.MULTILINE)
    assert "(~ is the database's estimate" in outbox("status")[1]


def test_a_cleaner_that_died_is_not_told_to_be_cleaning(outbox, consumed_database):
    consumed_database.hold_lease("web-1", seconds=-60.0)

    assert "  web-1 stopped in the middle, and was last seen" in outbox("status")[1]


def test_where_clean_up_is_off_status_says_so(outbox):
    assert "clean-up      off by the settings here" in outbox("status", OUTBOX_CONSUMER__CLEAN_UP__ENABLED="false")[1]


# Cleanup.


def test_cleanup_removes_what_is_older_than_its_ttl(outbox, consumed_database):
    kept = set(consumed_database.consumed(3, days=6))
    consumed_database.consumed(25, days=8)
    consumed_database.failed(2, days=8)

    done = outbox("cleanup", OUTBOX_CONSUMER__CLEAN_UP__BATCH_SIZE="10")

    assert done == (0, "removed 25 consumed rows and 2 rows of failures that nobody came back for\n", "")
    assert consumed_database.ids() == kept
    assert consumed_database.leases() == []


def test_cleanup_works_where_consumers_leave_it_alone(outbox, consumed_database):
    consumed_database.consumed(2, days=8)

    assert outbox("cleanup", OUTBOX_CONSUMER__CLEAN_UP__ENABLED="false")[0] == 0
    assert consumed_database.rows() == 0


def test_a_longer_ttl_is_taken_at_its_word_and_a_shorter_one_is_asked_about(outbox, consumed_database):
    consumed_database.consumed(2, days=8)
    consumed_database.consumed(3, days=2)

    assert outbox("cleanup", "--ttl", "30d")[1].startswith("removed 0 consumed rows")
    code, output, errors = outbox("cleanup", "--ttl", "1d")
    assert (code, output) == (2, "")
    assert "will run their handlers again (7d by the settings): say --yes if that is meant" in errors
    assert consumed_database.rows() == 5
    assert outbox("cleanup", "--ttl", "1d", "--yes")[1].startswith("removed 5 consumed rows")


def test_progress_is_told_while_it_goes_on(outbox, consumed_database, monkeypatch):
    monkeypatch.setattr("outbox_consumer.cli.operate.PROGRESS", 0.0)
    consumed_database.consumed(25, days=8)

    _, _, errors = outbox("cleanup", OUTBOX_CONSUMER__CLEAN_UP__BATCH_SIZE="10")

    assert errors.splitlines() == ["10 rows so far", "20 rows so far", "25 rows so far"]


def test_cleanup_says_whom_it_waits_for_and_gives_up_after_a_while(outbox, consumed_database, monkeypatch):
    monkeypatch.setattr("outbox_shared.cleanup.PATIENCE", timedelta(seconds=0.3))
    consumed_database.consumed(2, days=8)
    consumed_database.hold_lease("web-1")

    code, output, errors = outbox("cleanup")

    assert (code, output) == (2, "")
    assert errors.startswith("web-1 is cleaning up; waiting for its end\n")
    assert "another process is cleaning up" in errors
    assert consumed_database.rows() == 2


# Forget.


def test_what_is_forgotten_can_be_consumed_again(outbox, consumed_database):
    # given events of two consumers, and one that failed before
    ids = consumed_database.consumed(3, days=1)
    stranger = uuid4()
    (others,) = consumed_database.consumed(1, days=1, consumer="mailing")

    # when some are forgotten, one of them another's and one nobody's
    named = [str(one) for one in (*ids[:2], others, stranger)]
    code, output, errors = outbox("forget", "billing", *named, "--yes")

    # then those rows are gone and no others
    assert (code, output) == (1, "2 events forgotten\n")
    assert errors == f"{others} has not been consumed by billing\n{stranger} has not been consumed by billing\n"
    assert consumed_database.ids() == {ids[2]}
    assert consumed_database.ids("mailing") == {others}


def test_a_message_that_is_forgotten_begins_with_a_fresh_budget(outbox, consumed_database):
    (failed,) = consumed_database.failed(1, days=1)

    assert outbox("forget", "billing", str(failed), "--yes")[0] == 1

    assert consumed_database.rows("attempts") == 0


def test_what_is_forgotten_no_cache_knows_any_more(outbox, consumed_database):
    # given events that a consumer knows by its cache
    cache, message = InProcessCache(), {"outbox_event_id": str(new_event_id()), "outbox_event_type": "order-created"}

    def consume() -> Outcome[None]:  # as a process that looks at the epoch now
        with IdempotentConsumer(sessionmaker(consumed_database.engine), "billing", cache=cache) as consumer:
            return consumer.consume(message, lambda session: None)

    assert consume()
    assert consume().from_cache

    # when one is forgotten, then it is consumed again
    assert outbox("forget", "billing", message["outbox_event_id"], "--yes")[:2] == (0, "1 event forgotten\n")
    assert consume()


def epoch(consumed_database) -> str | None:
    with consumed_database.engine.connect() as connection:
        return current_epoch(connection)


def test_where_no_cache_was_ever_used_none_is_told(outbox, consumed_database):
    (forgotten,) = consumed_database.consumed(1, days=1)

    outbox("forget", "billing", str(forgotten), "--yes")

    assert epoch(consumed_database) is None


def test_all_caches_begin_anew_and_the_rows_stay(outbox, consumed_database):
    consumed_database.consumed(2, days=1)

    outbox("forget", "--all-caches", "--yes")
    first = epoch(consumed_database)
    code, output, _ = outbox("forget", "--all-caches", "--yes")

    assert (code, output.startswith("a new epoch has begun")) == (0, True)
    assert None not in {first, epoch(consumed_database)}
    assert first != epoch(consumed_database)
    assert consumed_database.rows() == 2
    assert consumed_database.rows() == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["forget"], "say what is to be forgotten"),
        (["forget", "billing"], "say what is to be forgotten"),
        (["forget", "billing", str(UUID(int=1)), "--all-caches"], "say what is to be forgotten"),
        (["forget", "billing", str(UUID(int=1))], "billing will run its handler again for 1 event"),
        (["forget", "--all-caches"], "say --yes if that is meant"),
        (["forget", " billing", str(UUID(int=1))], "no blanks around it"),
        (["cleanup", "--ttl", "7"], "write a duration with its unit"),
    ],
)
def test_a_mistake_changes_nothing_and_says_what_to_write(outbox, consumed_database, arguments, said):
    consumed_database.consumed(2, days=8)

    code, output, errors = outbox(*arguments)

    assert (code, output, len(errors.splitlines())) == (2, "", 1)
    assert said in errors
    assert consumed_database.rows() == 2


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 2)])
def test_a_person_is_asked(outbox, consumed_database, monkeypatch, answer, left):
    ids = consumed_database.consumed(2, days=1)
    stdin = type(
        "Terminal", (), {"isatty": lambda self: True, "readline": lambda self, *_: answer, "encoding": "utf-8"}
    )()
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr("builtins.input", lambda *_: answer.strip())

    code, _, errors = outbox("forget", "billing", *map(str, ids))

    assert code == (0 if left == 0 else 2)
    assert "billing will run its handler again for 2 events" in errors
    assert consumed_database.rows() == left


def test_without_tables_every_command_names_init_db(outbox):
    for arguments in (
        ["status"],
        ["cleanup"],
        ["forget", "billing", str(uuid4()), "--yes"],
        ["forget", "--all-caches", "--yes"],
    ):
        code, _, errors = outbox(*arguments, OUTBOX_TABLES__PREFIX="absent_")
        assert (code, "run `outbox-consumer init-db`" in errors) == (2, True)


def test_a_number_says_what_it_is():
    from outbox_consumer.cli.operate import _number  # noqa: PLC0415

    assert [_number(Number(7, kind)) for kind in ("exact", "estimate", "at least")] == ["7", "~7", "≥7"]

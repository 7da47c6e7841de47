"""A transaction in one write: what it does, what it says, and what it leaves behind when it fails."""

from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Integer, Text, bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError, IntegrityError

from outbox_publisher.store import burst_postgresql
from outbox_publisher.store.burst_postgresql import Burst
from outbox_publisher.store.hot import Hot, at_once
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase

PUT = Hot(
    text("INSERT INTO things VALUES (:id, :name) RETURNING id, name || '!'").bindparams(
        bindparam("id", type_=Integer), bindparam("name", type_=Text)
    )
)
LENGTHEN = Hot(
    text("UPDATE things SET name = name || name WHERE id = ANY(:ids)").bindparams(
        bindparam("ids", type_=ARRAY(Integer))
    )
)


def nothing() -> None:
    pass


@pytest.fixture
def connection(postgresql_outbox: OutboxDatabase):
    with postgresql_outbox.engine.connect() as made:
        made.exec_driver_sql("CREATE TABLE things (id int PRIMARY KEY, name text)")
        made.commit()
        yield made


@pytest.fixture(params=["in one write", "statement by statement"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "in one write":
        monkeypatch.setattr(burst_postgresql, "ONE_WRITE", 0)
    return request.param


def names(connection) -> list[str]:
    with connection.begin():
        return [name for (name,) in connection.exec_driver_sql("SELECT name FROM things ORDER BY id")]


def put(connection, *things, meanwhile=nothing):
    with connection.begin(), at_once(connection, meanwhile):
        return [PUT.rows(connection, {"id": number, "name": name}) for number, name in things]


def test_its_statements_take_effect_together_and_each_has_its_own_answer(connection, way):
    for round_ in range(3):  # prepared in the first, known in the others
        with connection.begin(), at_once(connection, nothing):
            first = PUT.rows(connection, {"id": 10 * round_, "name": "a"})
            second = PUT.rows(connection, {"id": 10 * round_ + 1, "name": "b"})
            changed = LENGTHEN.change(connection, {"ids": [10 * round_, 10 * round_ + 1, 99]})

        assert first() == [(10 * round_, "a!")]
        assert second() == [(10 * round_ + 1, "b!")]
        assert changed.rowcount == 2
    assert names(connection) == ["aa", "bb"] * 3
    assert connection.info["outbox_prepared"].keys() == {(PUT._numbered[0], (21, 25)), (LENGTHEN._numbered[0], (1005,))}


def test_nobody_sees_it_half_done_and_it_is_committed_when_it_returns(connection, postgresql_outbox, way):
    put(connection, (1, "a"), (2, "b"))

    with postgresql_outbox.engine.connect() as other:
        assert other.exec_driver_sql("SELECT count(*) FROM things").scalar_one() == 2


def test_an_error_in_the_middle_undoes_all_of_it_and_says_what_it_was(connection, way):
    put(connection, (1, "a"))

    with pytest.raises(IntegrityError, match="things_pkey") as told:
        put(connection, (2, "b"), (1, "again"), (3, "c"))

    assert told.value.orig.sqlstate == "23505"
    assert names(connection) == ["a"]
    put(connection, (4, "d"))  # the connection is as good as before, and so is what it has prepared
    assert names(connection) == ["a", "d"]


def test_a_commit_that_is_refused_is_an_error(connection, way):
    connection.exec_driver_sql("ALTER TABLE things ADD parent int REFERENCES things DEFERRABLE INITIALLY DEFERRED")
    connection.commit()
    orphan = Hot(
        text("INSERT INTO things (id, parent) VALUES (1, :parent)").bindparams(bindparam("parent", type_=Integer))
    )

    with pytest.raises(IntegrityError), connection.begin(), at_once(connection, nothing):
        orphan.change(connection, {"parent": 7})

    assert names(connection) == []


def test_a_statement_that_cannot_be_packed_sends_nothing(connection, way):
    with pytest.raises(psycopg.Error), connection.begin(), at_once(connection, nothing):
        PUT.rows(connection, {"id": 1, "name": "a"})
        PUT.rows(connection, {"id": 2, "name": object()})

    assert names(connection) == []


def test_a_connection_that_breaks_is_given_up(connection, postgresql_outbox, way):
    connection.exec_driver_sql("SELECT 1")
    pid = connection.connection.driver_connection.info.backend_pid
    connection.commit()
    with postgresql_outbox.engine.begin() as other:
        other.execute(select(text(f"pg_terminate_backend({pid})")))

    with pytest.raises(DBAPIError) as told:
        put(connection, (1, "a"))

    assert told.value.connection_invalidated
    assert postgresql_outbox.store.is_away(told.value)
    assert names(connection) == []  # on a new one
    put(connection, (1, "a"))
    assert names(connection) == ["a"]


def test_what_is_done_meanwhile_may_fail_and_the_transaction_is_kept(connection, way):
    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        put(connection, (1, "a"), meanwhile=fail)

    put(connection, (2, "b"))
    assert names(connection) == ["a", "b"]


def test_meanwhile_comes_after_the_write_and_before_the_answers(connection, postgresql_outbox):
    # given a row that somebody else has locked
    put(connection, (1, "a"))
    pid = connection.connection.driver_connection.info.backend_pid
    stranger = postgresql_outbox.engine.connect()
    stranger.exec_driver_sql("SELECT * FROM things FOR UPDATE")

    def free() -> None:  # as soon as our server waits for it
        with postgresql_outbox.engine.connect() as other:
            waits = text("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = :pid")
            eventually(
                lambda: other.execution_options(isolation_level="AUTOCOMMIT").execute(waits, {"pid": pid}).scalar()
            )
        stranger.close()

    with connection.begin(), at_once(connection, free):
        changed = LENGTHEN.change(connection, {"ids": [1]})

    assert changed.rowcount == 1
    assert names(connection) == ["aa"]


def test_on_a_connection_that_prepares_nothing_it_prepares_nothing(connection, way):
    connection.connection.driver_connection.prepare_threshold = None

    put(connection, (1, "a"))
    put(connection, (2, "b"))

    assert names(connection) == ["a", "b"]
    assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0


def test_large_answers_and_large_statements_go_through_whole(connection):
    words = ["x" * 50_000, "y" * 3_000_000]

    asked = put(connection, *enumerate(words))

    assert [rows() for rows in asked] == [[(number, word + "!")] for number, word in enumerate(words)]


def test_one_that_stands_still_between_two_statements_is_ended_by_the_server(
    connection, postgresql_outbox, monkeypatch
):
    """What is too large for one write waits for each answer, so that the server knows that it is idle."""
    monkeypatch.setattr(burst_postgresql, "ONE_WRITE", 0)
    hear, pid = Burst._hear, connection.connection.driver_connection.info.backend_pid
    gone = text("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = :pid")

    def stand_still(burst, portion):
        error = hear(burst, portion)
        if portion[0].text == PUT._numbered[0]:
            with postgresql_outbox.engine.connect() as other:
                asking = other.execution_options(isolation_level="AUTOCOMMIT")
                eventually(lambda: asking.execute(gone, {"pid": pid}).scalar())
        return error

    put(connection, (1, "a"))
    monkeypatch.setattr(Burst, "_hear", stand_still)
    with pytest.raises(DBAPIError) as told, connection.begin(), at_once(connection, nothing):
        postgresql_outbox.store.limit_transaction(connection, 0.2, own=True)
        PUT.rows(connection, {"id": 2, "name": str(uuid4())})

    assert postgresql_outbox.store.is_away(told.value)
    monkeypatch.undo()
    assert names(connection) == ["a"]

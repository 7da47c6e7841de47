"""Two transactions at once: one publishes what the other publishes or cancels, or what a relay takes."""

import threading
from contextlib import suppress
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from outbox_publisher import Outbox
from tests.consuming import eventually, lock_waits


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request):
    return request.getfixturevalue(f"{request.param}_outbox")


class InBackground:
    """A call that may have to wait for somebody's lock."""

    def __init__(self, work):
        self.result = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self.result = self._work()
        except DBAPIError as error:
            self.result = error

    def ended(self):
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.result


def isolated(database, level):
    return Session(database.engine.execution_options(isolation_level=level))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("first_ends", ["commit", "rollback"])
def test_the_second_of_two_twins_waits_for_the_first_ones_fate(database, first_ends, many):
    outbox, mine = Outbox(database.settings()), uuid4()

    def publish(session):
        if many:
            return outbox.publish_batch(session, "order-created", [{}], event_id=lambda _: mine).stored
        return int(outbox.publish(session, "order-created", {}, event_id=mine).stored)

    # given a first publish whose transaction is still open
    with isolated(database, "READ COMMITTED") as first, isolated(database, "READ COMMITTED") as second:
        first.begin()
        assert publish(first) == 1

        # when another one publishes the same id meanwhile
        second.begin()
        waiting = InBackground(lambda: publish(second))
        eventually(lambda: lock_waits(database.engine))
        getattr(first, first_ends)()

        # then it stores the event exactly if the first did not
        assert waiting.ended() == (0 if first_ends == "commit" else 1)
        second.execute(text("SELECT 1"))
        second.commit()

    assert [row.id for row in database.events()] == [mine]


def test_a_snapshot_that_does_not_show_the_twin_still_stores_nothing(mariadb_outbox):
    # given a transaction at MariaDB's default level that looked before its twin committed
    outbox, mine = Outbox(mariadb_outbox.settings()), uuid4()
    with isolated(mariadb_outbox, "REPEATABLE READ") as session, session.begin():
        session.execute(text("SELECT count(*) FROM outbox_events"))
        with Session(mariadb_outbox.engine) as twin, twin.begin():
            outbox.publish(twin, "order-created", {}, event_id=mine)

        # when it publishes the same id: its own look sees nothing, the key does
        assert outbox.publish(session, "order-created", {}, event_id=mine).stored is False
        outbox.publish(session, "order-created", {}, key="goes on")

    assert len(mariadb_outbox.events()) == 2


def test_a_serializable_twin_is_told_by_the_database(postgresql_outbox):
    outbox, mine = Outbox(postgresql_outbox.settings()), uuid4()
    with isolated(postgresql_outbox, "REPEATABLE READ") as session:
        session.begin()
        session.execute(text("SELECT count(*) FROM outbox_events"))
        with Session(postgresql_outbox.engine) as twin, twin.begin():
            outbox.publish(twin, "order-created", {}, event_id=mine)

        with pytest.raises(OperationalError) as caught:
            outbox.publish(session, "order-created", {}, event_id=mine)

    assert caught.value.orig.sqlstate == "40001"


def test_a_relay_leaves_an_event_alone_that_is_being_cancelled(database):
    (event_id,) = database.publish(1)
    with Session(database.engine) as session, session.begin():
        assert Outbox(database.settings()).cancel(session, event_id)

        assert database.relay().run_once().claimed == 0
        session.rollback()

    assert database.relay().run_once().delivered == 1


def test_a_cancel_waits_for_a_claim_and_then_leaves_it_alone(database):
    (event_id,) = database.publish(1)
    with database.engine.connect() as claim, Session(database.engine) as session:
        claim.begin()
        claim.execute(text("UPDATE outbox_events SET status = 'IN_PROCESS'"))
        session.begin()
        waiting = InBackground(lambda: Outbox(database.settings()).cancel(session, event_id))
        eventually(lambda: lock_waits(database.engine))
        claim.commit()

        assert waiting.ended() is False
        with suppress(DBAPIError):
            session.commit()

    assert database.statuses() == {"IN_PROCESS": 1}

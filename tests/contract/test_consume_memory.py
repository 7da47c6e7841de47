"""The caches that settings describe, in the epoch of the consumer's own database; and ids of producers that set none."""

from uuid import uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from outbox_consumer import ConfigurationError, IdempotentConsumer, MissingEventId, Status, id_from_headers
from outbox_consumer.cache import InProcessCache, next_epoch
from tests.consuming import ConsumingDatabase, a_message, book, book_all

IN_PROCESS = {"cached": {"enabled": True}}


def from_cache(outcomes) -> list[bool]:
    return [outcome.from_cache for outcome in outcomes]


def test_a_cache_from_the_settings_answers_duplicates(database: ConsumingDatabase):
    consumer, message, other = database.consumer(**IN_PROCESS), a_message(), a_message()

    assert not consumer.consume(message, book).from_cache
    again = consumer.consume(message, book)
    both = consumer.consume_batch([message, other], book_all)

    assert (again.status, again.from_cache) == (Status.DUPLICATE, True)
    assert from_cache(both) == [True, False]
    assert len(database.effects()) == 2


def test_a_redis_of_the_settings_is_shared_by_processes_that_have_nothing_else_in_common(
    database: ConsumingDatabase, redis_url: str
):
    settings = {"cached": {"enabled": True, "redis-url": redis_url, "cache-name": f"test:{uuid4().hex}"}}
    message = a_message()

    assert database.consumer(**settings).consume(message, book)
    again = database.consumer(**settings).consume(message, book)
    strangers = database.consumer("shipping", **settings).consume(message, lambda session: None)

    assert (again.status, again.from_cache) == (Status.DUPLICATE, True)
    assert (strangers.status, strangers.from_cache) == (Status.CONSUMED, False)


def test_a_hit_needs_no_statement(sync_database: ConsumingDatabase):
    consumer, message = sync_database.consumer(**IN_PROCESS), a_message()
    consumer.consume(message, book)
    statements: list[str] = []
    event.listen(sync_database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    assert consumer.consume(message, book).from_cache
    assert statements == []


def test_a_new_epoch_makes_it_forget(sync_database: ConsumingDatabase):
    cache, message = InProcessCache(), a_message()
    sync_database.consumer(cache=cache).consume(message, book)

    with sync_database.engine.begin() as connection:
        next_epoch(connection)

    # a consumer that reads the epoch now; others believe the old one for some seconds
    again = sync_database.consumer(cache=cache).consume(message, book)
    assert (again.status, again.from_cache) == (Status.DUPLICATE, False)


def test_inside_one_transaction_of_yours_no_cache_is_asked(sync_database: ConsumingDatabase):
    consumer, message = sync_database.consumer(**IN_PROCESS), a_message()
    consumer.consume(message, book)

    with sync_database.engine.connect() as connection, connection.begin():
        inside = IdempotentConsumer(sessionmaker(connection), "billing", settings=consumer.settings)
        assert not inside.consume(message, book).from_cache


def test_a_cache_that_outlives_the_rows_is_refused(sync_database: ConsumingDatabase):
    with pytest.raises(ConfigurationError, match="longer than the rows behind it are kept"):
        sync_database.consumer(cache=InProcessCache(ttl="8d"))


def test_settings_in_place_of_a_cache_are_refused(database: ConsumingDatabase):
    with pytest.raises(TypeError, match="InProcessCache"):
        database.consumer(cache={"enabled": True})


# Events of producers that set no id.


def foreign(number: int) -> dict[str, str]:
    return {"ce_source": "/orders", "ce_id": str(number)}


def nothing(session) -> None:
    pass


def test_a_hook_finds_the_ids_of_foreign_events(database: ConsumingDatabase):
    consumer = database.consumer(id_from=id_from_headers("ce_source", "ce_id"))

    first, again, ours = (consumer.consume(message, nothing) for message in (foreign(1), foreign(1), a_message()))
    batch = consumer.consume_batch([foreign(1), foreign(2), foreign(2)], nothing)

    assert [first.status, again.status, ours.status] == [Status.CONSUMED, Status.DUPLICATE, Status.CONSUMED]
    assert [one.status for one in batch] == [Status.DUPLICATE, Status.CONSUMED, Status.DUPLICATE]
    with pytest.raises(MissingEventId):
        consumer.consume({"ce_source": "/orders"}, nothing)


def test_claims_and_decorated_functions_ask_it_too(sync_database: ConsumingDatabase):
    consumer = sync_database.consumer(id_from=id_from_headers("ce_id"))
    ran = []

    @consumer.idempotent
    def on_order(session, message):
        ran.append(message["ce_id"])

    with sync_database.engine.begin() as connection:
        assert consumer.claim(connection, foreign(1))
        assert consumer.claim_batch(connection, [foreign(1), foreign(2)]) == [foreign(2)]
    for number in (1, 2, 3, 3):
        on_order(foreign(number))

    assert ran == ["3"]


@pytest.mark.parametrize("hook", ["ce_id", 5])
def test_what_is_no_hook_is_refused_where_the_consumer_is_built(database: ConsumingDatabase, hook):
    with pytest.raises(TypeError, match="id_from"):
        database.consumer(id_from=hook)

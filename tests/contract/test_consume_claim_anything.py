"""`claim` and `claim_batch` in whatever transaction the caller has: Session, Connection, their async forms, psycopg's own, Django's."""

from collections.abc import Callable
from typing import Any

import pytest

from outbox_consumer import (
    AsyncIdempotentConsumer,
    ConsumerSettings,
    IdempotentConsumer,
    MissingEventId,
    NoActiveTransaction,
    from_django,
    from_psycopg,
)
from outbox_consumer.schema import create_tables
from tests.consuming import a_message
from tests.publishing import AsyncShop, DjangoShop, PsycopgShop, Shop, SyncShop


class Claiming:
    """The caller of one shop, and the consumer that suits it."""

    def __init__(self, shop: Shop) -> None:
        create_tables(shop.database.engine)
        self.shop, settings = shop, ConsumerSettings(tables={"auto_create": False})
        # claims use the caller's transaction alone, so any engine may stand behind the consumer
        if isinstance(shop, AsyncShop) and shop.engine is not None:
            self.consumer: Any = AsyncIdempotentConsumer(shop.engine, "billing", settings=settings)
        elif isinstance(shop, AsyncShop):
            from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

            self.consumer = AsyncIdempotentConsumer(
                create_async_engine("sqlite+aiosqlite://"), "billing", settings=settings
            )
        else:
            self.consumer = IdempotentConsumer(shop.database.engine, "billing", settings=settings)

    def claim(self, message: Any) -> bool:
        return bool(self._call(self.consumer.claim, message))

    def claim_batch(self, messages: Any) -> list[Any]:
        found: list[Any] = self._call(self.consumer.claim_batch, messages)
        return found

    def _call(self, method: Callable[..., Any], argument: Any) -> Any:
        shop = self.shop
        match shop:
            case AsyncShop():
                return shop.run(method(shop.session, argument))
            case PsycopgShop():
                return method(from_psycopg(shop.connection), argument)
            case DjangoShop():
                return method(from_django(shop.alias), argument)
            case SyncShop():
                return method(shop.session, argument)
        raise AssertionError(shop)


@pytest.fixture
def claiming(shop: Shop) -> Claiming:
    return Claiming(shop)


def test_an_event_is_claimed_once(claiming: Claiming):
    message = a_message()

    with claiming.shop.begin():
        assert claiming.claim(message) is True
        assert claiming.claim(message) is False, "in the same transaction too"
        claiming.shop.order(1)
    with claiming.shop.begin():
        assert claiming.claim(message) is False

    assert claiming.shop.counts()[0] == 1


def test_a_claim_is_lost_with_the_callers_rollback(claiming: Claiming):
    message = a_message()

    with pytest.raises(LookupError), claiming.shop.begin():
        assert claiming.claim(message)
        claiming.shop.order(1)
        raise LookupError

    assert claiming.shop.counts()[0] == 0
    with claiming.shop.begin():
        assert claiming.claim(message)


def test_a_batch_returns_the_new_ones_in_their_order(claiming: Claiming):
    messages = [a_message() for _ in range(6)][::-1]
    with claiming.shop.begin():
        claiming.claim(messages[2])

    with claiming.shop.begin():
        fresh = claiming.claim_batch([*messages, messages[0]])
        assert claiming.claim_batch(messages) == []
        assert claiming.claim_batch([]) == []

    assert fresh == [m for m in messages if m is not messages[2]]


def test_a_batch_in_a_rolled_back_savepoint_is_undone_alone(claiming: Claiming):
    kept, undone = [a_message(), a_message()], [a_message(), a_message()]

    with claiming.shop.begin():
        claiming.claim_batch(kept)
        with pytest.raises(LookupError), claiming.shop.savepoint():
            assert claiming.claim_batch(undone) == undone
            raise LookupError
        claiming.shop.order(1)

    with claiming.shop.begin():
        assert claiming.claim_batch([*kept, *undone]) == undone


def test_bad_input_is_refused_before_any_sql_and_leaves_the_transaction_usable(claiming: Claiming):
    with claiming.shop.begin():
        with pytest.raises(MissingEventId, match="number 1"):
            claiming.claim_batch([a_message(), {"other": "header"}])
        with pytest.raises(MissingEventId):
            claiming.claim({"other": "header"})
        claiming.shop.order(1)

    assert claiming.shop.counts()[0] == 1


def test_without_a_transaction_the_error_shows_the_lines_to_write(claiming: Claiming):
    with pytest.raises(NoActiveTransaction, match=r"consumer\.claim\("):
        claiming.claim(a_message())
    with pytest.raises(NoActiveTransaction):
        claiming.claim_batch([a_message()])


def test_rows_as_dicts_do_not_confuse_a_claim(postgresql_outbox):
    """A psycopg connection may hand out rows in any form."""
    import psycopg  # noqa: PLC0415
    from psycopg.rows import dict_row  # noqa: PLC0415
    from sqlalchemy import make_url  # noqa: PLC0415

    create_tables(postgresql_outbox.engine)
    consumer = IdempotentConsumer(postgresql_outbox.engine, "billing")
    url = make_url(postgresql_outbox.url).set(drivername="postgresql").render_as_string(hide_password=False)
    message, other = a_message(), a_message()
    with psycopg.connect(url, row_factory=dict_row) as connection, connection.transaction():
        assert consumer.claim(from_psycopg(connection), message)
        assert consumer.claim_batch(from_psycopg(connection), [message, other]) == [other]

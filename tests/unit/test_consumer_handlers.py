"""How a handler is called is decided by its signature, before anything runs."""

import functools
from typing import Annotated, Any
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec

import pytest
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox_consumer.handlers import ASYNC, ASYNC_BATCH, SYNC_BATCH, arguments_wanted, finished, promised


class Billing:
    def charge(self, session, message): ...
    def in_session(self, session): ...
    def alone(self): ...
    @staticmethod
    def by_static(session, message): ...
    @classmethod
    def by_class(cls, session, message): ...
    def __call__(self, session, message): ...
    async def later(self, session, message): ...


class AsyncCallable:
    async def __call__(self, session, message): ...


def two(session, message): ...
def two_of_any_name(a, b): ...
def two_positional_only(a, b, /): ...
def two_and_an_option(session, message, dry_run=False, *, log=None): ...
def anything(*args): ...
def session_and_rest(session, *rest): ...
def everything(*args, **kwargs): ...


@pytest.mark.parametrize(
    "handler",
    [
        two,
        two_of_any_name,
        two_positional_only,
        two_and_an_option,
        anything,
        session_and_rest,
        everything,
        lambda s, m: None,
        Billing().charge,
        Billing.by_static,
        Billing.by_class,
        Billing(),
        functools.partial(two_and_an_option, dry_run=True),
        functools.partial(lambda gateway, session, message: None, "gateway"),
        functools.wraps(two)(lambda *args, **kwargs: None),
        Mock(),
        MagicMock(),
        create_autospec(two),
    ],
)
def test_both_are_passed_to(handler):
    assert arguments_wanted(handler) == 2


def future_session(work: "Session"): ...
def future_dotted(work: "sqlalchemy.orm.Session"): ...  # noqa: F821 - as a string it is never resolved
def future_async(work: "AsyncSession"): ...  # noqa: F821
def annotated_session(work: Session): ...
def annotated_more(work: Annotated[Session, "injected"]): ...
def annotated_connection(work: Connection): ...
def annotated_scoped(work: scoped_session[Session]): ...
def session_and_option(session, message=None): ...


@pytest.mark.parametrize(
    "handler",
    [
        lambda session: None,
        lambda s: None,
        lambda db: None,
        lambda conn: None,
        lambda connection: None,
        lambda tx: None,
        future_session,
        future_dotted,
        future_async,
        annotated_session,
        annotated_more,
        annotated_connection,
        annotated_scoped,
        session_and_option,
        Billing().in_session,
        functools.partial(two, message="given"),
    ],
)
def test_the_session_alone_is_passed_to(handler):
    assert arguments_wanted(handler) == 1


def options_only(message=None, *, log=None): ...


@pytest.mark.parametrize(
    "handler", [lambda: None, options_only, Billing().alone, functools.partial(two, "session", "message")]
)
def test_nothing_is_passed_to(handler):
    assert arguments_wanted(handler) == 0


def three(session, message, gateway): ...
def keyword_needed(session, message, *, gateway): ...
def turned_round(message, session): ...
def turned_round_by_type(record, work: Session): ...
def record_and_rest(record, *rest): ...
def generator(session, message):
    yield


async def async_generator(session, message):
    yield


async def async_function(session, message): ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        ([].append, "nothing says that it is the session"),
        (lambda message: None, "'message', and nothing says that it is the session"),
        (record_and_rest, "nothing says that it is the session"),
        (three, "needs 3 arguments"),
        (keyword_needed, "needs gateway as keyword"),
        (turned_round, "the session comes first"),
        (turned_round_by_type, "the session comes first"),
        (Billing, "is a class"),
        (dict, "is a class"),
        (Mock, "is a class"),
        (type, "is a class"),
        ("charge", "cannot be called"),
        (None, "cannot be called"),
        (async_function, "is async"),
        (async_function, "Use AsyncIdempotentConsumer"),
        (Billing().later, "is async"),
        (functools.partial(async_function, "session"), "is async"),
        (AsyncCallable(), "is async"),
        (AsyncMock(), "is async"),
        (async_generator, "is async"),
        (generator, "is a generator function"),
    ],
)
def test_refused_with_the_forms_to_write(handler, why):
    with pytest.raises(TypeError) as raised:
        arguments_wanted(handler)

    assert why in str(raised.value)
    assert "def handler(session, message): ..." in str(raised.value)


def test_a_callable_that_hides_its_parameters_is_refused():
    class Hidden:
        __signature__ = "none of your business"

        def __call__(self, session, message): ...

    with pytest.raises(TypeError, match="wrap it in a function of yours"):
        arguments_wanted(Hidden())


def test_the_refusal_names_the_function():
    with pytest.raises(TypeError, match=r"test_consumer_handlers\.three needs 3 arguments"):
        arguments_wanted(three)


@pytest.mark.parametrize("result", [None, 0, "text", [1], {"a": 1}, Mock(), MagicMock(), iter([1])])
def test_a_result_is_passed_on(result: Any):
    assert finished(two, result) is result


def test_a_promise_is_no_result():
    async def later(): ...

    async def items():
        yield 1

    coroutine = later()
    for promise in (coroutine, items(), (n for n in range(3))):
        with pytest.raises(TypeError, match="nothing was consumed"):
            finished(two, promise)

    assert coroutine.cr_frame is None, "closed, or Python would warn that nobody awaited it"


@pytest.mark.parametrize(
    "handler",
    [async_function, Billing().later, AsyncCallable(), functools.partial(async_function), AsyncMock(), Mock(),
     lambda session, message: None, functools.wraps(async_function)(lambda *args: None)],
)  # fmt: skip
def test_an_async_consumer_passes_both_to(handler):
    assert arguments_wanted(handler, ASYNC) == 2


async def takes_own_session(work: "AsyncSession"): ...  # noqa: F821
async def takes_session(session): ...
async def takes_nothing(): ...


def test_an_async_consumer_passes_less_to_those_who_want_less():
    assert arguments_wanted(takes_own_session, ASYNC) == 1
    assert arguments_wanted(takes_session, ASYNC) == 1
    assert arguments_wanted(takes_nothing, ASYNC) == 0


@pytest.mark.parametrize(
    "handler", [two, Billing().charge, functools.partial(two), Billing.by_static, Billing.by_class]
)
def test_a_plain_function_is_refused_by_an_async_consumer(handler):
    with pytest.raises(TypeError, match=r"plain function.*await session\.run_sync"):
        arguments_wanted(handler, ASYNC)


@pytest.mark.parametrize(
    ("kind", "form"),
    [(ASYNC, "async def handler(session, message)"), (ASYNC_BATCH, "async def handler(session, messages)"),
     (SYNC_BATCH, " def handler(session, messages)")],
)  # fmt: skip
def test_the_forms_are_those_of_the_call(kind, form):
    with pytest.raises(TypeError) as raised:
        arguments_wanted(dict, kind)

    assert form in str(raised.value)


def test_what_is_not_awaitable_was_not_done():
    async def later(): ...

    coroutine = later()
    assert promised(two, coroutine) is coroutine
    coroutine.close()
    for result in (None, 7, "text", (n for n in range(3))):
        with pytest.raises(TypeError, match="nothing was consumed"):
            promised(two, result)

"""publish() with anything: Hypothesis mixes good and hostile values of every argument and looks for one that reaches SQL and fails there.

What is refused is refused before any SQL, what is taken is stored as it was given, and in both cases the caller's transaction goes on.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json
from sqlalchemy import select

from outbox_publisher import EventDraft
from outbox_shared.errors import (
    ConfigurationError,
    PublishError,
)
from tests.borders import (
    INFINITY,
    NAN,
    NOW,
    SURROGATE,
    Colour,
    Line,
    Name,
    Order,
    OtherDatetime,
    Size,
    cyclic,
    nested,
    statements,
)
from tests.publishing import Shop, database_behind, open_shop


def some(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> tuple[st.SearchStrategy[Any], ...]:
    return good, bad


LETTERS = st.characters(exclude_characters="\x00")  # without surrogates, unless they are asked for
HOSTILE_LETTERS = st.characters(categories=["Cs", "Cc", "Zs", "L"])
SQL = ["%s", "%(a)s", "%", ":a", "?", "$1", "'", '"', "\\", "';--", "{}", "\\N", "NULL", "NaN", "Infinity", "null"]


def texts(longest: int) -> st.SearchStrategy[str]:
    """Everything up to the border, in letters of one to four bytes."""
    full = st.builds(lambda letter, less: letter * (longest - less), LETTERS, st.integers(0, 1))
    return st.text(LETTERS, min_size=1, max_size=20) | st.sampled_from(SQL) | full | st.just(Name.RED)


def not_texts(longest: int) -> st.SearchStrategy[Any]:
    strange = st.sampled_from(
        ["", " ", "a ", "\ta", "None", "\x00", SURROGATE, "\r\n", "\ufeff", "\U0010ffff", "e\u0301"]
    )
    return st.text(HOSTILE_LETTERS, max_size=5) | strange | st.just("𝄞" * (longest + 1)) | NO_TEXTS


NO_TEXTS = st.sampled_from(
    [7, 1.5, True, b"x", [], {}, object(), Colour.RED, Size.BIG, NAN, 10**4000, UUID(int=7), NOW]
)
KEYS = some(texts(512) | st.integers() | st.uuids() | st.just(10**511) | st.just(Size.BIG), not_texts(512))
MOMENTS = st.datetimes(
    datetime(1000, 1, 2),  # noqa: DTZ001 - the strategy adds the zone
    datetime(9998, 12, 30),  # noqa: DTZ001
    timezones=st.timezones() | st.just(timezone(timedelta(hours=-14))),
)
STRANGE_MOMENTS = (
    st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.sampled_from([datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))])
    | st.dates()
    | NO_TEXTS
)
HEADER_NAMES = st.from_regex(r"\A[A-Za-z0-9!#$%&'*+.^_`|~-]{1,20}\Z")

OPTIONS = {
    "key": KEYS,
    "topic": some(texts(255), not_texts(255)),
    "headers": some(
        st.dictionaries(HEADER_NAMES, st.text(LETTERS, max_size=20) | st.just("ü" * 1000), max_size=4),
        st.dictionaries(
            HEADER_NAMES
            | st.text(HOSTILE_LETTERS, max_size=4)
            | st.sampled_from(["", "traceparent", "x" * 128, 7, None]),
            st.text(HOSTILE_LETTERS, max_size=4) | NO_TEXTS | st.just("x" * 32_768) | st.none(),
            max_size=3,
        )
        | NO_TEXTS
        | st.just(""),
    ),
    "event_id": some(st.uuids() | texts(512), not_texts(512)),
    "aggregate_type": some(texts(255), not_texts(255)),
    "aggregate_id": KEYS,
    "correlation_id": some(texts(255), not_texts(255)),
    "version": some(st.integers(0, 2**31 - 1) | st.just(Size.BIG), st.integers() | NO_TEXTS | st.just(2**31)),
    "occurred_at": some(MOMENTS | st.builds(OtherDatetime.fromisoformat, st.just(NOW.isoformat())), STRANGE_MOMENTS),
    "delay": some(
        st.timedeltas(timedelta(0), timedelta(days=3650)) | st.sampled_from(["10m", "1h 30m", "0", 0, "1.5us"]),
        st.timedeltas() | st.text(max_size=5) | NO_TEXTS | st.sampled_from(["9" * 400 + "d", -1, "-1s", "٣s"]),
    ),
    "not_before": some(MOMENTS, STRANGE_MOMENTS),
    "content_type": some(texts(255), not_texts(255)),
}
EVENT_TYPES = some(texts(200), not_texts(200))

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        [*SQL, "\x00", 10**400, 10**4000, Colour.RED, Name.RED, Size.BIG, Decimal("1.50"), Decimal("NaN")]
    )
    | st.datetimes()
    | st.timedeltas()
    | st.uuids()
    | st.dates()
)
WRONG = st.sampled_from([NAN, INFINITY, -INFINITY, SURROGATE, b"\xff", object(), len, cyclic(), nested(300)])


def inside(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
            | st.tuples(inner, inner)
            | st.builds(Line, inner)
            | st.builds(lambda value: Order(anything=value), inner)
        )

    return st.recursive(leaves, more, max_leaves=6)


FLOATS = st.builds(lambda value: Order(total=value, prices=[value], by_name={"a": value}), st.floats())
HUGE = st.just(b"x" * 1_000_001)
PAYLOADS = some(inside(PLAIN) | st.binary(max_size=50), inside(WRONG) | inside(PLAIN | WRONG) | FLOATS | HUGE)


MISTAKES = st.none() | st.sampled_from([*OPTIONS, "event_type"]) | st.just("payload")


@st.composite
def drafts(draw: st.DrawFn, mistakes: st.SearchStrategy[str | None] = MISTAKES) -> EventDraft:
    """At most two mistakes: with one in every argument only the first would ever be seen."""
    wrong = {draw(mistakes), draw(mistakes)} - {None}
    chosen = draw(st.sets(st.sampled_from(sorted(OPTIONS)))) | (wrong & set(OPTIONS))
    if "delay" in chosen and not wrong:
        chosen -= {"not_before"}  # only one of them can be given
    arguments = {name: draw(OPTIONS[name][name in wrong]) for name in sorted(chosen)}
    event_type = draw(EVENT_TYPES["event_type" in wrong].filter(lambda value: value is not None))
    return EventDraft(event_type, draw(PAYLOADS["payload" in wrong]), **arguments)


@st.composite
def batches(draw: st.DrawFn) -> list[EventDraft]:
    """At most one draft with mistakes, among good ones; some are there twice."""
    batch = draw(st.lists(drafts(st.none()), max_size=3))
    extra = draw(st.lists(drafts() | st.sampled_from(batch) if batch else drafts(), max_size=1))
    return draw(st.permutations(batch + extra))


class Undo(Exception):
    """Ends an example's transaction."""


DRIVERS = ["sqlite", "postgresql", "mariadb", "asyncpg"]
BORDERS = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)


@pytest.fixture(params=DRIVERS)
def border_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    opened = open_shop(request.param, request.getfixturevalue(f"{database_behind(request.param)}_outbox"))
    yield opened
    opened.close()


def rows_in(shop: Shop) -> list[Any]:
    """The events as the open transaction sees them, in their order."""
    events = shop.database.store.tables.events
    found = shop.session.execute(select(events).order_by(events.c.seq))
    return list(shop.run(found) if hasattr(shop, "run") else found)


@contextmanager
def undone(shop: Shop) -> Iterator[None]:
    with pytest.raises(Undo), shop.begin():
        yield
        raise Undo


@pytest.mark.slow
@BORDERS
@given(draft=drafts())
def test_an_event_is_refused_before_any_sql_or_stored_as_given(border_shop, draft):
    shop = border_shop
    with undone(shop):
        # when anything is published
        with statements(shop) as sent:
            published = attempt(lambda: shop.publish(draft), sent)

        # then the transaction goes on, and holds it as it was given or not at all
        plain = shop.publish("plain", {})
        rows = rows_in(shop)
        assert [row.id for row in rows] == ([published.id] if published else []) + [plain.id]
        if published:
            assert published.stored
            assert_stored(rows[0], draft)


@pytest.mark.slow
@BORDERS
@given(batch=batches())
def test_a_batch_is_refused_before_any_sql_or_stored_as_given(border_shop, batch):
    shop = border_shop
    with undone(shop):
        # when any drafts are published together
        with statements(shop) as sent:
            published = attempt(lambda: shop.publish_batch(batch), sent)

        # then the transaction goes on, and holds all of them in their order, or none
        plain = shop.publish("plain", {})
        rows = {row.id: row for row in rows_in(shop)}
        del rows[plain.id]
        assert list(rows) == list(dict.fromkeys(published.ids if published else []))
        if published:
            assert len(published.ids) == len(batch)
            assert published.stored == len(rows)
            first = {}
            for event_id, draft in zip(published.ids, batch, strict=True):
                assert_stored(rows[event_id], first.setdefault(event_id, draft))


def attempt(publish: Any, sent: list[str]) -> Any:
    """What was published; None where that was refused on purpose, with nothing sent."""
    try:
        return publish()
    except (PublishError, ConfigurationError, TypeError) as error:
        if sent:
            pytest.fail(f"refused after SQL: {error!r}")
        return None


def assert_stored(row: Any, draft: EventDraft) -> None:
    given_key = draft.aggregate_id if draft.key is None else draft.key
    assert row.event_type == as_text(draft.event_type)
    assert row.topic == ("orders" if draft.topic is None else as_text(draft.topic))
    assert row.key == as_text(given_key)
    assert row.aggregate_id == as_text(draft.aggregate_id)
    assert row.aggregate_type == as_text(draft.aggregate_type)
    assert row.correlation_id == as_text(draft.correlation_id)
    assert row.content_type == ("application/json" if draft.content_type is None else as_text(draft.content_type))
    assert row.version == draft.version
    assert json.loads(row.headers or "{}") == (draft.headers or {})
    if isinstance(draft.event_id, UUID):
        assert row.id == draft.event_id
    if draft.occurred_at is None:
        assert row.occurred_at is None
    else:
        assert abs(row.occurred_at - draft.occurred_at) <= timedelta(milliseconds=1)
    assert_due(row, draft)
    if isinstance(draft.payload, bytes):
        assert row.payload == draft.payload
    else:
        assert row.payload == to_json(draft.payload)
        json.loads(row.payload, parse_constant=pytest.fail, parse_int=str)
        assert not holds_no_number(draft.payload)


def assert_due(row: Any, draft: EventDraft) -> None:
    wait = row.next_retry_at - row.created_at
    if isinstance(draft.delay, timedelta):
        assert abs(wait - draft.delay) < timedelta(seconds=1)
    elif draft.not_before is not None:
        assert abs(row.next_retry_at - max(draft.not_before, row.created_at)) < timedelta(seconds=1)
    elif draft.delay is None:
        assert wait == timedelta(0)


def as_text(given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given and str.__str__(given)
    return str(int(given) if isinstance(given, int) else given)


def holds_no_number(payload: Any) -> bool:
    """Whether there is a NaN or Infinity anywhere."""
    if isinstance(payload, float):
        return not math.isfinite(payload)
    if isinstance(payload, dict):
        return any(map(holds_no_number, payload.values()))
    if isinstance(payload, list | tuple):
        return any(map(holds_no_number, payload))
    if isinstance(payload, Line | Order):
        return any(map(holds_no_number, vars(payload).values()))
    return False

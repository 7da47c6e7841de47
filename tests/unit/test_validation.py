from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, IntEnum
from types import MappingProxyType
from uuid import UUID

import pytest

from outbox_publisher.validation import headers_of, key_of, label_of, moment_of, text_of, version_of, wait_of
from outbox_shared.errors import InvalidHeader, InvalidKey, PublishError


class Name(str, Enum):  # noqa: UP042 - its str() is another than a StrEnum's
    RED = "red"


class Size(IntEnum):
    BIG = 3


class OtherDatetime(datetime):
    """As libraries make them."""


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("a", "a"),
        (7, "7"),
        (-(10**510), "-1" + "0" * 510),
        (Size.BIG, "3"),
        (UUID(int=7), str(UUID(int=7))),
        (None, None),
        ("ü", "ü"),
        (Name.RED, "red"),
    ],
)
def test_keys_become_text(given, key):
    assert key_of("key", given) == key


@pytest.mark.parametrize(
    "wrong", ["", "None", "a\x00b", "\ud800", "x" * 513, 10**512, 1 << 20_000, b"bytes", 1.5, True, ["a"]],
    ids=lambda wrong: type(wrong).__name__,
)  # fmt: skip
def test_a_key_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(InvalidKey):
        key_of("key", wrong)


def test_an_unflushed_id_is_named():
    with pytest.raises(InvalidKey, match="Did you flush"):
        key_of("key", "None")


def test_headers_of_the_caller_pass():
    assert headers_of({"tenant-id": "acme", "x.y_z": "ü", "empty": ""}) == {
        "tenant-id": "acme",
        "x.y_z": "ü",
        "empty": "",
    }
    assert headers_of(None) == headers_of({}) == {}
    assert headers_of(MappingProxyType({"a": "b"})) == {"a": "b"}


def test_headers_come_out_as_plain_text():
    ((name, value),) = headers_of({Name.RED: Name.RED}).items()
    assert (type(name), type(value)) == (str, str)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outbox_event_id": "x"},
        {"Content-Type": "text/plain"},
        {"": "x"},
        {"ü": "x"},
        {"a b": "x"},
        {"a\ud800": "x"},
        {"x" * 129: "x"},
        {1: "x"},
        {"a": 1},
        {"a": None},
        {"a": "line\r\nbreak"},
        {"a": "nul\x00"},
        {"a": "\udfff"},
        {f"h{n}": "x" * 4000 for n in range(10)},
        [("a", "b")],
        "",
        0,
    ],
)
def test_headers_that_a_broker_would_refuse_are_refused(wrong):
    with pytest.raises(InvalidHeader):
        headers_of(wrong)


@pytest.mark.parametrize("wrong", ["", "x" * 256, "a\x00", "\ud800", 7, None])
def test_text_that_a_database_would_refuse_is_refused(wrong):
    with pytest.raises(PublishError):
        text_of("topic", wrong)


@pytest.mark.parametrize(("wrong", "advice"), [(7, "write str(value)"), (b"x", "write value.decode()")])
def test_the_advice_for_what_is_no_text_fits(wrong, advice):
    for check in (lambda: text_of("topic", wrong), lambda: headers_of({"a": wrong})):
        with pytest.raises(PublishError) as caught:
            check()
        assert str(caught.value).endswith(advice)


@pytest.mark.parametrize("wrong", ["orders ", " orders", "orders\n", "\u3000orders"])
def test_blanks_around_a_name_are_refused(wrong):
    with pytest.raises(PublishError, match="write 'orders', not"):
        label_of("topic", wrong)


@pytest.mark.parametrize(("given", "version"), [(None, None), (0, 0), (2**31 - 1, 2**31 - 1), (Size.BIG, 3)])
def test_versions_become_numbers(given, version):
    assert version_of(given) == version
    assert type(version_of(given)) is type(version)


@pytest.mark.parametrize("wrong", [-1, 2**31, True, 1.0, "1"])
def test_a_version_that_no_column_holds_is_refused(wrong):
    with pytest.raises(PublishError, match="a whole number from 0"):
        version_of(wrong)


def test_moments_become_plain_ones_in_utc():
    there = timezone(timedelta(hours=2))
    for kind in (datetime, OtherDatetime):
        found = moment_of("occurred_at", kind(2026, 1, 31, 14, 30, 0, 250_001, tzinfo=there))
        assert found == datetime(2026, 1, 31, 12, 30, 0, 250_001, tzinfo=UTC)
        assert (type(found), found.tzinfo) == (datetime, UTC)
    assert moment_of("occurred_at", None) is None


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001 - that is the mistake
        date(2026, 1, 1),
        "2026-01-01",
        0,
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_a_moment_that_could_be_any_or_that_no_column_holds_is_refused(wrong):
    with pytest.raises(PublishError):
        moment_of("occurred_at", wrong)


@pytest.mark.parametrize(
    ("given", "delay"), [(None, None), ("10m", timedelta(minutes=10)), (timedelta(1), timedelta(1)), (0, timedelta(0))]
)
def test_delays_are_read(given, delay):
    assert wait_of(given) == delay


@pytest.mark.parametrize(
    "wrong", ["soon", 10, -1, timedelta(seconds=-1), timedelta.max, "3651d", "9" * 400 + "d", True]
)
def test_a_delay_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(PublishError, match="delay"):
        wait_of(wrong)

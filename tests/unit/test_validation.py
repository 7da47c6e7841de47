from uuid import UUID

import pytest

from outbox_publisher.validation import headers_of, key_of, text_of
from outbox_shared.errors import InvalidHeader, InvalidKey, PublishError


@pytest.mark.parametrize(
    ("given", "key"), [("a", "a"), (7, "7"), (UUID(int=7), str(UUID(int=7))), (None, None), ("ü", "ü")]
)
def test_keys_become_text(given, key):
    assert key_of("key", given) == key


@pytest.mark.parametrize("wrong", ["", "None", "a\x00b", "\ud800", "x" * 513, b"bytes", 1.5, True, ["a"]])
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
    assert headers_of(None) == {}


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
    ],
)
def test_headers_that_a_broker_would_refuse_are_refused(wrong):
    with pytest.raises(InvalidHeader):
        headers_of(wrong)


@pytest.mark.parametrize("wrong", ["", "x" * 256, "a\x00", "\ud800", 7, None])
def test_text_that_a_database_would_refuse_is_refused(wrong):
    with pytest.raises(PublishError):
        text_of("topic", wrong)

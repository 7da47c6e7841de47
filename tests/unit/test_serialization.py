from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from pydantic import BaseModel

from outbox_publisher.serialization import serialize
from outbox_shared.errors import PayloadTooLarge, SerializationError


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    total: Decimal


@dataclass
class Data:
    at: datetime


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (Model(total="1.50"), b'{"total":"1.50"}'),
        (Data(datetime(2026, 1, 1, tzinfo=UTC)), b'{"at":"2026-01-01T00:00:00Z"}'),
        ({"id": UUID(int=1), "colour": Colour.RED}, b'{"id":"00000000-0000-0000-0000-000000000001","colour":"red"}'),
        ([1, "ü", None, True], '[1,"ü",null,true]'.encode()),
        ("text", b'"text"'),
        (b"\x00\xff as they are", b"\x00\xff as they are"),
        ({"note": "NaN and Infinity are only words here"}, b'{"note":"NaN and Infinity are only words here"}'),
    ],
)
def test_payloads_become_bytes(payload, body):
    assert serialize(payload, limit=1000) == body


def cyclic() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "payload", [float("nan"), {"x": [float("-inf")]}, object(), cyclic(), {"x": "\ud800"}, lambda: None],
    ids=["nan", "infinity", "object", "cyclic", "surrogate", "function"],
)  # fmt: skip
def test_what_json_does_not_have_is_refused(payload):
    with pytest.raises(SerializationError):
        serialize(payload, limit=1000)


def test_a_payload_over_the_limit_is_refused_with_both_numbers():
    with pytest.raises(PayloadTooLarge, match=r"1,001 bytes.*publisher\.max-payload allows \(1,000\)"):
        serialize(b"x" * 1001, limit=1000)

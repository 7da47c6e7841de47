import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer
from pydantic.dataclasses import dataclass as pydantic_dataclass

from outbox_publisher.serialization import About, EnvelopeSerializer, JsonSerializer, bounded
from outbox_shared.errors import PayloadTooLarge, SerializationError

NAN = float("nan")
ABOUT = About(UUID(int=7), "order-created", 2, datetime(2026, 1, 31, 12, tzinfo=UTC))


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    total: Decimal


@dataclass
class Data:
    at: Any


class Measured(BaseModel):
    value: float | None = None
    values: list[float] = []
    by_name: dict[str, float] = {}
    anything: Any = None


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (Model(total="1.50"), b'{"total":"1.50"}'),
        (Data(datetime(2026, 1, 1, tzinfo=UTC)), b'{"at":"2026-01-01T00:00:00Z"}'),
        ({"id": UUID(int=1), "colour": Colour.RED}, b'{"id":"00000000-0000-0000-0000-000000000001","colour":"red"}'),
        ([1, "ü", None, True], '[1,"ü",null,true]'.encode()),
        ("text", b'"text"'),
        (b"\x00\xff as they are", b"\x00\xff as they are"),
        (bytearray(b"\xff"), b"\xff"),
        (memoryview(b"\xff"), b"\xff"),
        ({"note": "NaN and Infinity are only words here"}, b'{"note":"NaN and Infinity are only words here"}'),
        (["NaN", 10**20], b'["NaN",100000000000000000000]'),
        (Measured(), b'{"value":null,"values":[],"by_name":{},"anything":null}'),
    ],
)
def test_payloads_become_bytes(payload, body):
    assert JsonSerializer()(payload, ABOUT) == body


def test_a_number_of_any_length_may_stand_beside_the_word_nan():
    assert JsonSerializer()(["NaN", 10**5000], ABOUT) == b'["NaN",1' + b"0" * 5000 + b"]"


def cyclic() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "payload", [NAN, {"x": [float("-inf")]}, object(), cyclic(), {"x": "\ud800"}, lambda: None],
    ids=["nan", "infinity", "object", "cyclic", "surrogate", "function"],
)  # fmt: skip
def test_what_json_does_not_have_is_refused(payload):
    with pytest.raises(SerializationError):
        JsonSerializer()(payload, ABOUT)


# A model writes null for NaN: that is a lost number, unless somebody chose it.


class Computing(BaseModel):
    @computed_field
    @property
    def value(self) -> float:
        return NAN


@pydantic_dataclass
class Validated:
    value: float


@pytest.mark.parametrize(
    "payload",
    [
        Measured(value=NAN),
        Measured(values=[1.0, NAN]),
        Measured(by_name={"a": float("inf")}),
        Measured(anything=NAN),
        Measured(anything={"deep": [(NAN,)]}),
        Measured(anything=Measured(values=[NAN])),
        Measured(anything=Data(NAN)),
        {"a": [Measured(values=[NAN])]},
        Data(Measured(value=NAN)),
        Computing(),
        Validated(NAN),
    ],
    ids=repr,
)
def test_a_number_that_a_model_would_turn_into_null_is_refused(payload):
    with pytest.raises(SerializationError, match=r"holds NaN.*use None or text for it"):
        JsonSerializer()(payload, ABOUT)


class NullByChoice(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="null")
    value: float = NAN


class TextByChoice(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float = NAN


class NoneBySerializer(BaseModel):
    value: float = NAN

    @field_serializer("value")
    def _none(self, value: float) -> None:
        return None


class LeftOut(BaseModel):
    value: float = Field(NAN, exclude=True)
    other: None = None


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (NullByChoice(), b'{"value":null}'),
        ([NullByChoice(), None], b'[{"value":null},null]'),
        (TextByChoice(), b'{"value":"NaN"}'),
        (NoneBySerializer(), b'{"value":null}'),
        (LeftOut(), b'{"other":null}'),
    ],
)
def test_a_model_may_choose_what_stands_for_nan(payload, body):
    assert JsonSerializer()(payload, ABOUT) == body


# The limit.


def test_a_payload_over_the_limit_is_refused_with_both_numbers():
    assert bounded(b"x" * 1000, limit=1000) == b"x" * 1000
    with pytest.raises(PayloadTooLarge, match=r"1,001 bytes.*publisher\.max-payload allows \(1,000\)"):
        bounded(b"x" * 1001, limit=1000)


@pytest.mark.parametrize("made", ["text", None, {"a": 1}, 7])
def test_a_serializer_must_return_bytes(made):
    with pytest.raises(SerializationError, match=rf"returned {type(made).__name__}, not bytes: return json"):
        bounded(made, limit=1000)


# The envelope.


def test_an_envelope_says_what_headers_would():
    body = EnvelopeSerializer(actor="alice")({"total": Decimal("1.50")}, ABOUT)

    assert json.loads(body) == {
        "event_id": "00000000-0000-0000-0000-000000000007",
        "version": 2,
        "occurred_at": "2026-01-31T12:00:00.000000Z",
        "actor": "alice",
        "data": {"total": "1.50"},
    }


def test_an_envelope_asks_for_its_actor_at_each_publish():
    actors = iter(["alice", {"id": 7}])
    envelope = EnvelopeSerializer(actor=lambda: next(actors))

    assert [json.loads(envelope(None, ABOUT))["actor"] for _ in range(2)] == ["alice", {"id": 7}]


def test_an_envelope_without_more_knowledge_has_the_moment_of_the_publish():
    before = datetime.now(UTC)
    envelope = json.loads(EnvelopeSerializer()([1], About(UUID(int=7), "a", None, None)))

    assert before <= datetime.fromisoformat(envelope.pop("occurred_at")) <= datetime.now(UTC)
    assert envelope == {"event_id": str(UUID(int=7)), "version": None, "actor": None, "data": [1]}


@pytest.mark.parametrize("payload", [NAN, Measured(values=[NAN]), Data(Measured(value=NAN)), {"x": "\ud800"}])
def test_an_envelope_refuses_what_json_does_not_have(payload):
    with pytest.raises(SerializationError):
        EnvelopeSerializer()(payload, ABOUT)


@pytest.mark.parametrize("payload", [b"{}", bytearray(b"{}"), memoryview(b"{}")])
def test_an_envelope_holds_no_bytes(payload):
    with pytest.raises(SerializationError, match="pass the data itself, or publish without it"):
        EnvelopeSerializer()(payload, ABOUT)

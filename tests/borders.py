"""Values at the borders of publish(), for the tests that cross them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any

from pydantic import BaseModel, computed_field
from sqlalchemy import event

from tests.publishing import Shop

NAN, INFINITY, SURROGATE = float("nan"), float("inf"), "a\ud800b"
NOW = datetime(2026, 1, 31, 12, 30, 0, 250_000, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


class Name(str, Enum):  # noqa: UP042 - its str() is another than a StrEnum's
    RED = "red"


class Size(IntEnum):
    BIG = 3


class OtherDatetime(datetime):
    """As libraries make them."""

    def __str__(self) -> str:
        return self.strftime("%d/%m/%Y")


@dataclass
class Line:
    price: Any
    colour: Colour = Colour.RED


class Order(BaseModel):
    total: float = 0.0
    prices: list[float] = []
    anything: Any = None
    by_name: dict[str, float] = {}


class Sum(BaseModel):
    """What is stored is computed at the end."""

    parts: list[float]

    @computed_field
    @property
    def total(self) -> float:
        return sum(self.parts) - sum(self.parts)


def cyclic() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@contextmanager
def statements(shop: Shop) -> Iterator[list[str]]:
    """What SQLAlchemy sends in this block; nothing for drivers that it does not know."""
    engine = getattr(shop, "engine", None)
    engine, sent = getattr(engine, "sync_engine", engine), []

    def note(_connection, _cursor, statement, *_rest):
        sent.append(statement)

    if engine is not None:
        event.listen(engine, "before_cursor_execute", note)
    yield sent
    if engine is not None:
        event.remove(engine, "before_cursor_execute", note)

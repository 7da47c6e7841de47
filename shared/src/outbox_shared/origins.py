"""Where a transaction came from: which database it is, and how to reach that beside the transaction's own connection."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import StaticPool

from outbox_shared.lines import DjangoLine, EngineLine, Line
from outbox_shared.places import Place, place, place_of

IDLE = 10.0
"""Seconds for which an unused line is kept."""
IDLE_WITHOUT_REUSE = 0.2
"""The same for an application that closes its own connections after use."""


class Origin(Protocol):
    """One per engine, or per database of Django's. What is made for it is kept in `made`, so it ends with it."""

    place: Place
    is_async: bool
    idle: float
    made: dict[Any, Any]
    can_open: bool
    """Whether a line is another connection than the transaction's."""

    def open(self) -> Line: ...
    def when_disposed(self, do: Callable[[], None]) -> None:
        """Whoever disposes of the engine wants every connection closed, ours as well."""


class EngineOrigin:
    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)  # whoever hears of an engine must not keep it alive
        self.place, self.is_async, self.idle = place_of(engine.url), engine.dialect.is_async, IDLE
        self.can_open = not isinstance(engine.pool, StaticPool)  # its creator may hand out one connection for ever
        self.made: dict[Any, Any] = {}

    def open(self) -> EngineLine:
        engine = self._engine()
        if engine is None:
            raise LookupError("the engine is gone")
        return EngineLine(engine)

    def when_disposed(self, do: Callable[[], None]) -> None:
        engine = self._engine()
        if engine is not None:
            event.listen(engine, "engine_disposed", lambda _: do())


class DjangoOrigin:
    is_async = False
    can_open = True

    def __init__(self, connection: Any) -> None:
        settings = connection.settings_dict
        self.place = place(connection.vendor, settings.get("HOST"), settings.get("PORT"), settings.get("NAME"))
        self.idle = IDLE_WITHOUT_REUSE if settings.get("CONN_MAX_AGE") == 0 else IDLE
        self.made: dict[Any, Any] = {}
        self._pattern = connection.copy()  # never connected: each line is a copy of its own, also after a fork

    def open(self) -> DjangoLine:
        return DjangoLine(self._pattern)

    def when_disposed(self, do: Callable[[], None]) -> None:
        """Django has no such moment."""


_django: dict[tuple[str, Place], DjangoOrigin] = {}


def django_origin(connection: Any) -> DjangoOrigin:
    """The same for each thread's connection of an alias."""
    settings = connection.settings_dict
    where = place(connection.vendor, settings.get("HOST"), settings.get("PORT"), settings.get("NAME"))
    found = _django.get((connection.alias, where))
    if found is None:
        found = _django[connection.alias, where] = DjangoOrigin(connection)
    return found

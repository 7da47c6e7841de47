"""Who uses a cleaner: consumers come and go, the last one that goes ends it. The same for threads and for tasks."""

import weakref
from collections.abc import Callable, Hashable

from sqlalchemy import event
from sqlalchemy.engine import Engine

from outbox_consumer.cleaning.duty import Cleaning, Tell
from outbox_consumer.settings import ConsumerSettings
from outbox_shared.clock import Clock
from outbox_shared.settings import CleanUpSettings


class User:
    """A consumer's engine and settings. The engine is the application's: a cleaner must not keep it alive."""

    def __init__(self, engine: Engine, settings: ConsumerSettings, tell: Tell) -> None:
        self.engine = weakref.ref(engine)
        self.settings, self.tell = settings, tell
        self.ended = False


class Users:
    """Those of one database, in one process or loop."""

    def __init__(self) -> None:
        self._users: tuple[User, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._users)

    def add(self, user: User) -> None:
        self._users = (*self._users, user)

    def remove(self, user: User) -> None:
        self._users = tuple(one for one in self._users if one is not user)
        user.ended = True

    def of(self, engine: Engine) -> list[User]:
        return [user for user in self._users if user.engine() is engine]

    def forget(self) -> None:
        for user in self._users:
            self.remove(user)

    def cleaning(self, clock: Clock) -> Cleaning:
        """Their common duty."""
        names = self._users[0].settings.tables.names
        return Cleaning(self._engine, names, self._settings, clock, self._tell)

    def _engine(self) -> Engine | None:
        return next((engine for user in self._users if (engine := user.engine()) is not None), None)

    def _settings(self) -> CleanUpSettings:
        """They share a table, so the one who wants its rows longest decides; between processes the shortest ttl does."""
        return max((user.settings.clean_up for user in self._users), key=lambda it: it.ttl, default=CleanUpSettings())

    def _tell(self, count: int) -> None:
        for user in self._users[:1]:
            user.tell(count)


def key_of(engine: Engine, settings: ConsumerSettings) -> Hashable:
    """Which database and tables. An engine of which only its creator knows where it leads is a place of its own."""
    url = engine.url
    alone = None if url.host or url.database or url.query else id(engine.dialect)
    return url, alone, settings.tables.names


_watched: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def when_disposed(engine: Engine, do: Callable[[Engine], None]) -> None:
    """Whoever disposes of an engine wants its connections closed, and none opened by a cleaner a moment later."""
    if engine not in _watched:
        _watched.add(engine)
        event.listen(engine, "engine_disposed", do)

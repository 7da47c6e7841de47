"""What wakes a relay between its polls: hints of other processes where the database carries them, and of this process everywhere."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from sqlalchemy.engine import Engine

from outbox_publisher.hints import Bell, answer
from outbox_publisher.relay.listener import Listener
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.store import channel_for
from outbox_shared.durations import format_duration
from outbox_shared.origins import EngineOrigin
from outbox_shared.places import place_of

log = logging.getLogger(__name__)

AGAIN = (0.005, 0.01, 0.02, 0.04)
"""Seconds to the next looks of a relay that was woken and found nothing."""


@dataclass(frozen=True, slots=True)
class Alert:
    """How soon to look again, while a ring is fresh: it may be ahead of its rows, whoever rang."""

    left: tuple[float, ...] = ()

    @classmethod
    def rung(cls) -> Self:
        return cls(AGAIN)

    def after_look(self, usual: float, *, found: bool) -> "tuple[float, Alert]":
        """The pause after a look, and what is left of the alert."""
        if found or not self.left:
            return usual, Alert()
        return min(usual, self.left[0]), Alert(self.left[1:])


class Wakeup:
    """Each thread of a relay takes a bell; every hint rings all of them. A hint may be lost: whoever waits has a poll behind it."""

    def __init__(self, engine: Engine, settings: PublisherSettings) -> None:
        self._engine, self._settings = engine, settings
        self._bells: tuple[Bell, ...] = ()
        self._listener: Listener | None = None
        self._answering = ExitStack()

    def bell(self) -> Bell:
        bell = Bell()
        self._bells += (bell,)
        return bell

    def start(self) -> None:
        if self._settings.wakeup == "poll":
            return
        names, dialect = self._settings.tables.names, self._engine.dialect
        self._answering.enter_context(answer((place_of(self._engine.url), names), self._told_here))
        channel = channel_for(dialect.name, names)
        if channel is None:
            return
        poll = format_duration(self._settings.defaults.fixed_delay)
        if dialect.driver != "psycopg":
            log.warning(
                "the driver %s cannot wait for hints: new events are found by polling, every %s; "
                "a database-url with psycopg (postgresql+psycopg://…) is woken by commits, wakeup: poll ends this message",
                dialect.driver,
                poll,
            )
            return
        self._listener = Listener(EngineOrigin(self._engine).open, channel, self.ring, poll)
        self._listener.start()

    def stop(self) -> None:
        self._answering.close()
        if self._listener is not None:
            self._listener.stop()
            self._listener = None

    def ring(self) -> None:
        for bell in self._bells:
            bell.ring()

    @property
    def hears(self) -> bool:
        """Whether hints of other processes arrive at the moment."""
        return self._listener is not None and self._listener.hears

    def _told_here(self) -> None:
        if (
            not self.hears
        ):  # else the same hint is on its way from the database, and a second ring would be a look in vain
            self.ring()

"""`outbox.wake()`: a hint from somebody whose connection cannot tell when it commits."""

from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import InvalidRequestError

from outbox_publisher.hints.bells import ring
from outbox_publisher.hints.hint import Hint
from outbox_publisher.store import channel_for
from outbox_shared.database import make_engine
from outbox_shared.database_urls import name_the_driver
from outbox_shared.origins import EngineOrigin
from outbox_shared.places import place_of
from outbox_shared.tables import TableNames


class ByHand:
    """Wakes the relays of one `database-url`; connects, like every hint, beside and not before the caller."""

    def __init__(self, database_url: str, names: TableNames) -> None:
        self._url = make_url(name_the_driver(database_url))
        self._place, self._names = place_of(self._url), names
        self._origin: EngineOrigin | None = None

    def wake(self, *, on_loop: bool) -> None:
        if channel_for(self._place.dialect, self._names) is None:
            ring((self._place, self._names))
            return
        if self._origin is None:
            self._engine = self._async_engine() if on_loop else self._sync_engine()
            self._origin = EngineOrigin(self._engine)
        Hint(self._names)(self._origin)

    def _sync_engine(self) -> Engine:
        return make_engine(self._url.render_as_string(hide_password=False), "outbox-publisher")

    def _async_engine(self) -> Engine:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - needs greenlet

        try:
            return create_async_engine(self._url).sync_engine
        except InvalidRequestError:  # a driver that is sync only
            return self._sync_engine()

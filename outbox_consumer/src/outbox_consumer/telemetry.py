"""What a consumer tells about its work: log lines, metrics, spans. Never the payload."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from outbox_consumer.identity import Identity

End = Literal["consumed", "duplicated", "failed"]


class Telemetry:
    """One per consumer; called from any thread."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer

    def asked_cache(self, hits: int, misses: int) -> None:
        """A cache was asked for so many ids."""

    @contextmanager
    def processing(self, identity: Identity) -> Iterator[None]:
        """Around the handler of one event: the publisher's trace goes on in here."""
        yield

    def ended(
        self,
        identity: Identity,
        end: End,
        seconds: float,
        *,
        from_cache: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """What became of one delivery."""

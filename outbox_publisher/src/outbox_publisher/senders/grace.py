"""A topic, exchange, route or handler that is missing may be about to appear: for a while its events wait, uncharged."""

import threading
from collections.abc import Hashable

from outbox_publisher.senders.base import SendResult
from outbox_shared.clock import Clock

STEP = 1.0
"""Seconds between two looks."""


class Grace:
    """Counts in memory, from this process's first refusal of each place; an answer from there ends the count."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        self._first_refusal: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def refused(self, place: Hashable, reason: str) -> SendResult:
        """An uncharged retry while the grace lasts; then no retry will help."""
        with self._lock:
            since = self._first_refusal.setdefault(place, self._clock.monotonic())
        if self._clock.monotonic() - since < self._seconds:
            return SendResult.retry(reason, charged=False, after=STEP)
        return SendResult.reject(f"{reason} (and it stayed so for {self._seconds:g} s)")

    def answered(self, place: Hashable) -> None:
        if self._first_refusal:
            self._first_refusal.pop(place, None)

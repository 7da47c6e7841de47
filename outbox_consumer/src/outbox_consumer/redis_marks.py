"""The decisions of `RedisIdempotency`, without a client: each function yields what is to be done and returns what follows from the answers.

A key holds `running:<token>` while somebody has a lease on the event, and `done:<token>` for the ttl. Whatever else stands there was
written by another program and means that the event was processed. The token is one attempt's own, and every write but the first names
it: who lost the lease changes nothing. It also makes each step safe to repeat, where an answer was lost and a client asks again.
"""

import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from outbox_consumer.identify import identify
from outbox_shared.errors import ConsumeError, EventInProgress, LeaseLost, RedisUnavailable
from outbox_shared.ids import parse_event_id

log = logging.getLogger(__name__)

R = TypeVar("R")

DONE, RUNNING = "done:", "running:"

_TRIES = 5
"""A key that is there for SET and gone for GET ended in between; it cannot do so for ever."""

_BEFORE_NEXT_TRY = 0.1

_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

# also where nothing stands: the lease ended and nobody came meanwhile, and what was done shall not be done again
_FINISH = """
local found = redis.call('GET', KEYS[1])
if not found or found == ARGV[1] or found == ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
return 0
"""

now = time.monotonic


@dataclass(frozen=True, slots=True)
class Command:
    """To be sent to Redis. The answer is its reply, or a RedisUnavailable that is thrown in."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """The answer is whether somebody wants this to end."""

    seconds: float


Steps: TypeAlias = Generator[Command | Pause, Any, R]


@dataclass(frozen=True, slots=True)
class Times:
    """In milliseconds, as Redis counts."""

    ttl: int
    lease: int


@dataclass(frozen=True, slots=True)
class Mark:
    """One attempt at one event."""

    key: str
    event_id: UUID
    token: str
    times: Times

    @property
    def done(self) -> str:
        return DONE + self.token

    @property
    def running(self) -> str:
        return RUNNING + self.token


class Fresh:
    """What a guard says of its event: true in an `if` where the work is to be done now, false where it was done before."""

    def __init__(self, mark: Mark, *, is_fresh: bool, began: float) -> None:
        self.mark, self.is_fresh = mark, is_fresh
        self.was_asked = False
        self.lease_lost = False
        """True as soon as the lease is known to be lost: look before a step that cannot be taken back."""
        self.leased_until = began + mark.times.lease / 1000

    def __bool__(self) -> bool:
        self.was_asked = True
        return self.is_fresh


def event_id_of(message_or_id: object) -> UUID:
    """A UUID, its text, or a message of any client that `identify` knows."""
    if isinstance(message_or_id, UUID | str):
        return parse_event_id(message_or_id)
    return identify(message_or_id).event_id


def check_and_mark(mark: Mark) -> Steps[bool]:
    """Whether the event was marked before; marks it. One SET where it is new."""
    return not (yield from _take(mark, mark.done, "EX", -(-mark.times.ttl // 1000)))


def begin(mark: Mark) -> Steps[Fresh]:
    """A lease on the event, unless it was processed before."""
    began = now()
    return Fresh(mark, is_fresh=(yield from _take(mark, mark.running, "PX", mark.times.lease)), began=began)


def keep(fresh: Fresh) -> Steps[None]:
    """Renew the lease while the work is under way."""
    mark = fresh.mark
    while fresh.is_fresh and not (yield Pause(mark.times.lease / 3000)):
        began = now()
        try:
            is_ours = yield Command(("EVAL", _RENEW, 1, mark.key, mark.running, mark.times.lease))
        except RedisUnavailable as error:
            log.info("the lease on event %s could not be renewed, it is tried again: %s", mark.event_id, error)
            continue
        if not is_ours:
            fresh.lease_lost = True
            return
        fresh.leased_until = began + mark.times.lease / 1000


def give_back(fresh: Fresh) -> Steps[None]:
    """The work failed: a redelivery does it."""
    mark = fresh.mark
    if not fresh.is_fresh:
        return
    try:
        yield Command(("EVAL", _RELEASE, 1, mark.key, mark.running))
    except RedisUnavailable as error:
        log.warning("the lease on event %s was not given back and ends by itself: %s", mark.event_id, error)


def finish(fresh: Fresh) -> Steps[None]:
    """The work is done, and nobody does it again unless another attempt has the lease by now."""
    if fresh.is_fresh and not (yield from _record(fresh)):
        raise LeaseLost(
            f"event {fresh.mark.event_id} was processed, but the lease on it ended before that and another delivery took it over: the "
            "work may have been done twice. Give RedisIdempotency a longer lease, and look at `lease_lost` before the last step"
        )
    if not fresh.was_asked:
        raise ConsumeError(
            "the guard was not asked whether the event is fresh, so a duplicate is processed as well: write "
            "`with idempotency.guard(message) as fresh:` and below it `if fresh:`"
        )


def _record(fresh: Fresh) -> Steps[bool]:
    """Tried for as long as the lease protects us: what is not recorded is done again."""
    mark = fresh.mark
    while True:
        try:
            return bool((yield Command(("EVAL", _FINISH, 1, mark.key, mark.running, mark.done, mark.times.ttl))))
        except RedisUnavailable as error:
            if now() + _BEFORE_NEXT_TRY >= fresh.leased_until:
                raise RedisUnavailable(
                    f"event {mark.event_id} was processed, but that could not be recorded, so a redelivery does it again: {error}"
                ) from error
        yield Pause(_BEFORE_NEXT_TRY)


def _take(mark: Mark, value: str, unit: str, lifetime: int) -> Steps[bool]:
    """Whether the key is this attempt's now; False: the event was processed."""
    for _ in range(_TRIES):
        if (yield Command(("SET", mark.key, value, "NX", unit, lifetime))):
            return True
        found = _text((yield Command(("GET", mark.key))))
        if found == value:  # the client sent it twice, since the first answer was lost
            return True
        if found is not None and found.startswith(RUNNING):
            break
        if found is not None:
            return False
    raise EventInProgress(
        f"event {mark.event_id} is being processed by another delivery right now: deliver the message again later"
    )


def _text(reply: object) -> str | None:
    if reply is None:
        return None
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)

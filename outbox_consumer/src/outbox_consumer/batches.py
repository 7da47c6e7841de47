"""The messages of one batch, and what became of each: values only, without a database."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from outbox_consumer.foreign import IdFrom
from outbox_consumer.identify import identify
from outbox_consumer.identity import Identity
from outbox_consumer.outcome import Outcome, Status
from outbox_shared.errors import ConsumeError

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Batch(Generic[M]):
    """Messages in the broker's order, each with its event; an event may be there more than once."""

    messages: Sequence[M]
    identities: Sequence[Identity]

    @classmethod
    def of(cls, messages: Iterable[M], id_from: IdFrom | None = None) -> "Batch[M]":
        """Every message is looked at before anything is done: the error for a bad one says which it is."""
        if isinstance(messages, Mapping | str | bytes) or not isinstance(messages, Iterable):
            raise TypeError(
                f"a batch is a list of messages, not {type(messages).__name__}: write [message], or consume(message, handler)"
            )
        listed = list(messages)
        return cls(listed, [_identify(message, index, id_from) for index, message in enumerate(listed)])

    def firsts(self) -> list[Identity]:
        """Each event once, in the broker's order."""
        found: dict[UUID, Identity] = {}
        for identity in self.identities:
            found.setdefault(identity.event_id, identity)
        return list(found.values())

    def with_ids(self, ids: Iterable[UUID]) -> list[M]:
        """The first message of each of these events, in the broker's order."""
        wanted, chosen = set(ids), []
        for message, identity in zip(self.messages, self.identities, strict=True):
            if identity.event_id in wanted:
                wanted.discard(identity.event_id)
                chosen.append(message)
        return chosen

    def outcomes(self, fates: Mapping[UUID, Outcome[Any]]) -> list[Outcome[Any]]:
        """One for each message. A copy within the batch shares a failure, and is a duplicate otherwise."""
        told: set[UUID] = set()
        found = []
        for identity in self.identities:
            fate = fates[identity.event_id]
            if identity.event_id in told and fate.status is Status.CONSUMED:
                fate = Outcome(Status.DUPLICATE, identity.event_id, identity.event_type)
            told.add(identity.event_id)
            found.append(fate)
        return found


def _identify(message: object, index: int, id_from: IdFrom | None) -> Identity:
    try:
        return identify(message, id_from)
    except ConsumeError as error:
        error.index = index
        error.args = (f"message number {index} of the batch, counted from 0: {error}",)
        raise

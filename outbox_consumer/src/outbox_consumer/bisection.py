"""Finding the bad ones of many by halves: a decision over values, without a database."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Refused(NamedTuple, Generic[T]):
    """A part that failed as a whole."""

    suspects: Sequence[T]
    """Those of the part that the error may come from, in their order."""
    error: Exception


def find_bad(items: Sequence[T], attempt: Callable[[Sequence[T]], Refused[T] | None]) -> list[tuple[T, Exception]]:
    """Try all at once, and what is refused by halves, in order; returns those that were refused alone.

    Among n items k bad ones cost at most 2·k·log2(n) more attempts.
    """
    bad: list[tuple[T, Exception]] = []
    parts = [items] if items else []
    while parts:
        refused = attempt(parts.pop())
        if refused is None or not refused.suspects:
            continue
        suspects = refused.suspects
        if len(suspects) == 1:
            bad.append((suspects[0], refused.error))
        else:
            middle = len(suspects) // 2
            parts += [suspects[middle:], suspects[:middle]]  # the first half is taken next
    return bad

"""What a Kafka error code means for the row that met it. Pure, and checked code by code in the tests.

A broker's verdict on content covers the whole wire batch (one bad message of ten fails all ten), so such rows are sent again alone
before anything is rejected. Negative codes are librdkafka's own.
"""

from enum import Enum, auto


class Verdict(Enum):
    ALONE = auto()  # refused by content, perhaps because of a neighbour: send it by itself
    REJECT = auto()  # no retry will cure it
    UNKNOWN_TOPIC = auto()  # the topic may be about to be created: a grace, then rejected
    FORBIDDEN = auto()  # a grant cures it: the topic is away, nothing is charged
    FATAL = auto()  # this producer will never send again: make a new one
    UNAVAILABLE = auto()  # the topic's partition or its broker is away
    TIMED_OUT = auto()  # nobody knows: ask the broker what is wrong
    PURGED = (
        auto()
    )  # our own deadline took it out of the queue, where it may have come back after a request without an answer
    PURGED_IN_FLIGHT = auto()  # our own deadline gave up on the answer: maybe sent
    RETRY = auto()  # anything else: counted, with backoff


_VERDICTS: dict[int, Verdict] = {
    **dict.fromkeys((10, 87, 32, 2, 4, 18, 43, 44, 76, -138), Verdict.ALONE),
    17: Verdict.REJECT,
    **dict.fromkeys((3, -188, -190), Verdict.UNKNOWN_TOPIC),
    **dict.fromkeys((29, 31, 53), Verdict.FORBIDDEN),
    **dict.fromkeys((45, 47, 59, 90, -144, -150, -172), Verdict.FATAL),
    **dict.fromkeys((-195, -185, 5, 6, 9, 13, 19, 20, 56), Verdict.UNAVAILABLE),
    -192: Verdict.TIMED_OUT,
    -152: Verdict.PURGED,
    -151: Verdict.PURGED_IN_FLIGHT,
}


def verdict_of(code: int, *, fatal: bool = False) -> Verdict:
    """`fatal` is what the error says of itself: the producer is lost then, whatever the code."""
    return Verdict.FATAL if fatal else _VERDICTS.get(code, Verdict.RETRY)

"""Hints: "there is something to send", told by whoever published to whoever relays, once the rows can be seen.

A hint may be lost or come for nothing; polling stands behind it. No hint is worth an error, a wait, or anything in a user's transaction.
"""

from outbox_publisher.hints.bells import Bell, answer, ring
from outbox_publisher.hints.by_hand import ByHand
from outbox_publisher.hints.hint import Hint

__all__ = ["Bell", "ByHand", "Hint", "answer", "ring"]

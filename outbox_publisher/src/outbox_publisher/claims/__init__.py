"""How a relay gets rows to send: one seam, one strategy per file."""

from outbox_publisher.claims.base import Batch, Claimed, ClaimStrategy
from outbox_publisher.claims.rows import RowClaims

__all__ = ["Batch", "ClaimStrategy", "Claimed", "RowClaims"]

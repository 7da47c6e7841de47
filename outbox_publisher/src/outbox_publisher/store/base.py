"""An event's life after its publish, in statements written once: look, claim, settle, recover, clean. A dialect overrides what differs.

Every method works on a Connection inside a transaction that the caller owns. Every write after the claim names the claim's token, so a
relay that lost its rows to another changes nothing when it wakes up.
"""

from outbox_publisher.store.claiming import Claiming
from outbox_publisher.store.cleaning import Cleaning
from outbox_publisher.store.counting import Counting
from outbox_publisher.store.failed import Failed
from outbox_publisher.store.looking import Looking
from outbox_publisher.store.recovering import Recovering


class EventStore(Looking, Claiming, Recovering, Cleaning, Failed, Counting):
    """The outbox of one database, in SQL as SQLAlchemy writes it."""

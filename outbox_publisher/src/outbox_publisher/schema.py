"""Creating the publisher's tables: `init-db`, and the relay's auto-create."""

from sqlalchemy.engine import Engine

from outbox_publisher.store import store_for
from outbox_shared.tables import TableNames, create_missing


def create_tables(engine: Engine, names: TableNames) -> list[str]:
    """Create what is missing and return its names; may be run by any number of processes at once."""
    return create_missing(engine, store_for(engine.dialect.name, names).tables)

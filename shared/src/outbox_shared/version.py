"""The version row: which form of the tables a database has, one row of outbox_state for each side."""

import logging

from sqlalchemy import Insert, Table, insert, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from outbox_shared.database import reading

SCHEMA_VERSION = 1
"""Raised by the release that changes a table, together with the statements that lead there."""

KIND = "schema"

log = logging.getLogger(__name__)


def version_row(state: Table, side: str) -> Insert:
    return insert(state).values(kind=KIND, name=side, value=str(SCHEMA_VERSION))


def read_version(connection: Connection, state: Table, side: str) -> str | None:
    """What the database says; None where it says nothing."""
    row = connection.execute(select(state.c.value).where(state.c.kind == KIND, state.c.name == side)).first()
    return None if row is None else str(row.value)


def record_version(engine: Engine, state: Table, side: str) -> None:
    """Write the row where there is none. Nothing depends on it but `schema check`, so a role that may not write starts all the same."""
    try:
        with reading(engine) as connection:
            if read_version(connection, state, side) is not None:
                return
        with engine.begin() as connection:
            connection.execute(version_row(state, side))
    except IntegrityError:
        return  # another process was first
    except DBAPIError as error:
        log.info("the schema's version was not recorded: %s", str(error.orig).strip().partition("\n")[0])

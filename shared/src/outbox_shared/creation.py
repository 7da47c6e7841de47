"""Looking for tables in the catalogue, and creating those that are not there."""

from collections.abc import Iterable

from sqlalchemy import Table, inspect
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from outbox_shared.database import reading
from outbox_shared.ddl import making
from outbox_shared.errors import ConfigurationError

_TRIES = 3


def missing_tables(engine: Engine, tables: Iterable[Table]) -> list[Table]:
    """Those that are not there yet, by a look into the catalogue: a role without CREATE may start where nothing is missing."""
    with reading(engine) as connection:
        catalogue = inspect(connection)
        return [table for table in tables if not catalogue.has_table(table.name, schema=table.schema)]


def create_missing(engine: Engine, tables: Iterable[Table]) -> list[str]:
    """Create what is missing and return its names. Safe when several processes do it at once, and heals what one left half done.

    Table by table, each whole or not at all: where MySQL ends the transaction with every statement, processes that race would
    otherwise trip over each other's tables again and again.
    """
    missing = missing_tables(engine, tables)
    for schema in {table.schema for table in missing if table.schema is not None}:
        _require_schema(engine, schema)
    return [table.name for table in missing if _create(engine, table)]


def _require_schema(engine: Engine, name: str) -> None:
    with reading(engine) as connection:
        if name not in inspect(connection).get_schema_names():
            raise ConfigurationError(
                f"tables.schema names {name!r}, which this database does not have (or this role may not see): "
                f"run CREATE SCHEMA {name}; first"
            )


def _create(engine: Engine, table: Table) -> bool:
    """Whether it was this process that created it. An error counts only while the table is still not there."""
    for last_try in (number == _TRIES for number in range(1, _TRIES + 1)):
        try:
            with engine.begin() as connection:
                for statement in making(table, connection.dialect):
                    connection.execute(statement)
        except DBAPIError:
            if not missing_tables(engine, [table]):
                return False
            if last_try:
                raise
        else:
            return True
    return False

"""What a database really has, against what the tables say it should have: `schema check`."""

from sqlalchemy.engine import Engine

from outbox_shared.catalogue.base import Catalogue
from outbox_shared.catalogue.findings import compare, compare_version, missing
from outbox_shared.catalogue.mysql import MysqlCatalogue
from outbox_shared.catalogue.postgresql import PostgresqlCatalogue
from outbox_shared.catalogue.sqlite import SqliteCatalogue
from outbox_shared.database import reading
from outbox_shared.side import Side, state_of
from outbox_shared.tables import TableNames
from outbox_shared.version import read_version

__all__ = ["check"]

_CATALOGUES: dict[str, type[Catalogue]] = {
    "postgresql": PostgresqlCatalogue,
    "mysql": MysqlCatalogue,
    "mariadb": MysqlCatalogue,
    "sqlite": SqliteCatalogue,
}


def check(engine: Engine, side: Side, names: TableNames) -> list[str]:
    """What is missing or differs, a line each: what it is, and what to do about it. Changes nothing."""
    tables = side.tables_on(engine.dialect.name, names)
    state = state_of(tables, names)
    lines: list[str] = []
    with reading(engine) as connection:
        catalogue = _CATALOGUES[engine.dialect.name](connection.dialect, side.program)
        for table in tables:
            found = catalogue.found(connection, table)
            if found is None:
                lines.append(missing(table, side.program))
                continue
            lines += compare(catalogue, table, catalogue.wanted(table), found)
            if table is state and {"kind", "name", "value"} <= found.columns.keys():
                lines += compare_version(catalogue, table, side, read_version(connection, table, side.name))
    return lines

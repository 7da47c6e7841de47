"""The statements that make a table, in order: what `init-db` runs is what `schema print` shows."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import DDL, Table
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from outbox_shared.errors import ConfigurationError
from outbox_shared.tables import MYSQL

STORAGE = "outbox_storage"
"""A key of a table's `info`: its storage parameters on PostgreSQL. SQLAlchemy 2.0 has no keyword for them."""

WRITTEN_BY_CLAIMS = "outbox_written_by_claims"
"""A key of a table's `info`: the columns that no index may name, since every claim and settle writes them."""

_DIALECTS: dict[str, type[Dialect]] = {
    "postgresql": PGDialect,
    "mysql": MySQLDialect,
    "mariadb": MySQLDialect,
    "sqlite": SQLiteDialect,
}


def dialect_named(name: str) -> Dialect:
    """A database's SQL by its name, without a driver or a server."""
    if name not in _DIALECTS:
        raise ConfigurationError(f"there are no tables for {name!r}; write one of postgresql, mysql, mariadb, sqlite")
    return _DIALECTS[name]()


class CreateWhole(CreateTable):
    """CREATE TABLE with its keys inside, where the database takes them.

    MySQL commits after every statement, so a process that dies between table and index would leave a table that looks complete; and
    AUTO_INCREMENT asks for its key in the same statement.
    """


@compiles(CreateWhole)
def _create(element: CreateWhole, compiler: Any, **_: Any) -> str:
    return str(compiler.visit_create_table(element))


@compiles(CreateWhole, "mysql", "mariadb")
def _create_with_keys(element: CreateWhole, compiler: Any, **_: Any) -> str:
    table = element.element
    columns, _options = compiler.visit_create_table(element).rsplit("\n)", 1)
    keys = [
        f", \n\tKEY {compiler.preparer.quote(str(index.name))} ({key_columns(index, compiler)})"
        for index in sorted_indexes(table)
    ]
    # SQLAlchemy 2.0 writes them in another order than 2.1
    options = {name: table.kwargs[f"mysql_{name}"] for name in ("engine", "charset", "collate")}
    written = " ".join(f"{name.upper()}={value}" for name, value in options.items())
    return f"{columns}{''.join(keys)}\n) {written}"


def key_columns(index: Any, compiler: DDLCompiler) -> str:
    return ", ".join(compiler.preparer.quote(column.name) for column in index.columns)


def making(table: Table, dialect: Dialect, *, unless_there: bool = False) -> list[ExecutableDDLElement]:
    """Everything that makes `table`, ready to be executed."""
    separate = [] if dialect.name in MYSQL else [CreateIndex(index) for index in sorted_indexes(table)]
    storage = table.info.get(STORAGE) if dialect.name == "postgresql" else None
    return [
        CreateWhole(table, if_not_exists=unless_there),
        *separate,
        *([] if storage is None else [set_storage(table, storage)]),
    ]


def set_storage(table: Table, parameters: dict[str, Any]) -> ExecutableDDLElement:
    written = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    statement: ExecutableDDLElement = DDL(f"ALTER TABLE %(fullname)s SET ({written})").against(table)  # type: ignore[no-untyped-call]
    return statement


def sql_of(statements: Iterable[Any], dialect: Dialect) -> list[str]:
    """As text, without the blanks that SQLAlchemy leaves at the ends of lines."""
    compiled = (
        str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})) for statement in statements
    )
    return ["\n".join(line.rstrip() for line in text.strip().expandtabs(4).splitlines()) for text in compiled]


def sorted_indexes(table: Table) -> list[Any]:
    return sorted(table.indexes, key=lambda index: str(index.name))

"""The tables for a user's own MetaData: made of plain SQLAlchemy types, so that a migration that Alembic writes needs nothing of ours."""

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BLANK_SCHEMA,
    Column,
    Identity,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ColumnCollectionConstraint, SchemaItem
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.sql.elements import conv
from sqlalchemy.types import TypeDecorator, TypeEngine

from outbox_shared.ddl import STORAGE, dialect_named, sorted_indexes
from outbox_shared.tables import MYSQL, TABLES, TableNames

_AS_SHOWN = {"false": "0", "'9999-12-31'": "'9999-12-31 00:00:00.000000'", "''": "'" + r"\0" * 16 + "'"}
"""Defaults that MySQL completes: Alembic compares texts, and would set them anew each time where compare_server_default is on."""

IncludeName = Callable[[str | None, str, MutableMapping[Any, Any]], bool]


def add_plain(tables: Iterable[Table], metadata: MetaData, dialect: str, way_out: str = "") -> None:
    """Put a plain copy of each into `metadata`; one that is there already, such as the state table that both sides have, stays.

    `way_out` is what Alembic shows in place of a column that it cannot create.
    """
    speaks = dialect_named(dialect)
    for table in tables:
        if table.fullname not in metadata.tables:
            _copy(table, metadata, speaks, way_out)


def _copy(table: Table, metadata: MetaData, dialect: Dialect, way_out: str) -> None:
    ddl = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type] # a compiler's parts need no statement
    items: list[SchemaItem] = [_column(column, dialect, ddl) for column in table.columns]
    # conv: the name is whole, and no naming convention of the user's changes it
    key = table.primary_key
    items.append(PrimaryKeyConstraint(*key.columns.keys(), name=conv(str(key.name)) if key.name else None))
    items += [
        UniqueConstraint(*constraint.columns.keys(), name=conv(str(constraint.name)))
        for constraint in table.constraints
        if isinstance(constraint, UniqueConstraint)
    ]
    options = dict(table.kwargs) if dialect.name in MYSQL else {}
    if STORAGE in table.info and "with" in _table_options(dialect):  # from SQLAlchemy 2.1 on
        options["postgresql_with"] = table.info[STORAGE]
    # a MetaData may have a schema of its own, which is not the one that our SQL means by no schema
    copy = Table(table.name, metadata, *items, schema=table.schema or BLANK_SCHEMA, implicit_returning=False, **options)
    for index in sorted_indexes(table):
        where = None if dialect.name in MYSQL else index.dialect_options[dialect.name]["where"]
        columns = [copy.c[column.name] for column in index.columns]
        made = Index(str(index.name), *columns, **({} if where is None else {f"{dialect.name}_where": where}))
        if len(columns) == 1 and _is_counted(ddl, columns[0]):
            copy.append_constraint(InlineKey(*columns, name=conv(str(index.name)), way_out=way_out))
            made.ddl_if(callable_=_never)


def _column(column: Column[Any], dialect: Dialect, ddl: DDLCompiler) -> Column[Any]:
    default = column.server_default
    if default is not None and not isinstance(default, Identity):
        default = text(_default(str(ddl.get_column_default_string(column)), dialect))  # type: ignore[assignment]
    extra = [Identity(always=True)] if isinstance(default, Identity) else []
    return Column(
        column.name,
        _plain(column.type, dialect),
        *extra,
        nullable=column.nullable,
        primary_key=column.primary_key,
        autoincrement=column.autoincrement,
        server_default=None if extra else default,
    )


def _default(written: str, dialect: Dialect) -> str:
    if dialect.name in MYSQL:
        return _AS_SHOWN.get(written, written)
    # SQLite takes an expression in parentheses only, and SQLAlchemy 2.0 adds none to a text
    return f"({written})" if dialect.name == "sqlite" and "(" in written else written


def _plain(kind: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    named: Any = _NameOf(dialect.name)
    return kind.load_dialect_impl(named) if isinstance(kind, TypeDecorator) else kind


@dataclass(frozen=True)
class _NameOf:
    """A dialect that leaves types as they are; a real one puts classes of its own in their place, which no migration can name."""

    name: str

    def type_descriptor(self, kind: TypeEngine[Any]) -> TypeEngine[Any]:
        return kind


def _table_options(dialect: Dialect) -> dict[str, Any]:
    return dict(next((options for kind, options in dialect.construct_arguments or () if kind is Table), {}))


def _is_counted(ddl: DDLCompiler, column: Column[Any]) -> bool:
    return "AUTO_INCREMENT" in ddl.dialect.type_compiler_instance.process(column.type)


def _never(*_: Any, **__: Any) -> bool:
    return False


class InlineKey(ColumnCollectionConstraint):
    """MySQL's plain KEY inside CREATE TABLE, which AUTO_INCREMENT asks for: so `metadata.create_all` works there.

    Alembic cannot write it, and shows this object's repr in the migration instead of something that would create a broken table.
    """

    __visit_name__ = "outbox_inline_key"

    def __init__(self, *columns: Any, way_out: str = "", **options: Any) -> None:
        super().__init__(*columns, **options)
        self._way_out = way_out

    def __repr__(self) -> str:
        return self._way_out

    def _copy(self, **_: Any) -> "InlineKey":
        return InlineKey(*self.columns.keys(), name=self.name, way_out=self._way_out)


@compiles(InlineKey)
def _inline_key(element: InlineKey, compiler: DDLCompiler, **_: Any) -> str:
    columns = ", ".join(compiler.preparer.quote(column.name) for column in element.columns)
    return f"KEY {compiler.preparer.quote(str(element.name))} ({columns})"


def leave_out(names: TableNames) -> IncludeName:
    """Alembic's `include_name` for those who keep all seven tables out of their migrations."""
    ours = {names.of(table) for table in TABLES}

    def include_name(name: str | None, type_: str, parent_names: MutableMapping[Any, Any]) -> bool:
        # Alembic says None for the connection's default schema, also where the settings call it by its name
        here = parent_names.get("schema_name") in {names.schema, None}
        return not (type_ == "table" and here and name in ours)

    return include_name

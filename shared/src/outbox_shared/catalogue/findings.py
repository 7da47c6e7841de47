"""What differs, a line each. Pure: facts in, sentences out.

Columns and indexes that a user added are theirs, with two exceptions: a unique key can refuse an event that is none of its business,
and an index that names what every claim writes makes every claim write it too.
"""

import re
from collections.abc import Iterator

from sqlalchemy import Table

from outbox_shared.catalogue.base import Catalogue, run
from outbox_shared.catalogue.facts import TableFacts
from outbox_shared.ddl import WRITTEN_BY_CLAIMS, sorted_indexes
from outbox_shared.side import Side
from outbox_shared.version import SCHEMA_VERSION


def missing(table: Table, program: str) -> str:
    return f"{table.fullname} is missing; run: {program} init-db"


def compare(catalogue: Catalogue, table: Table, wanted: TableFacts, found: TableFacts) -> Iterator[str]:
    yield from _columns(catalogue, table, wanted, found)
    yield from _keys(catalogue, table, wanted, found)
    yield from _indexes(catalogue, table, wanted, found)
    yield from _strangers(catalogue, table, wanted, found)
    for name, value in wanted.options.items():
        is_now = found.options.get(name)
        if is_now != value:
            said = f"has no {name}" if is_now is None else f"has {name} {is_now}"
            yield f"{table.fullname} {said}, not {value}; {catalogue.change_option(table, name, value)}"


def compare_version(catalogue: Catalogue, state: Table, side: Side, found: str | None) -> Iterator[str]:
    wanted = str(SCHEMA_VERSION)
    if found is None:
        yield f"{state.fullname} has no schema version for the {side.name}; run: {side.program} init-db"
    elif found != wanted and found.isdecimal() and int(found) > SCHEMA_VERSION:
        yield (
            f"{state.fullname} says schema version {found} for the {side.name}, and this {side.program} knows {wanted}; "
            "install the release that made the tables, or a later one"
        )
    elif found != wanted:
        row = f"kind = 'schema' AND name = '{side.name}'"
        update = f"UPDATE {catalogue.full_name(state)} SET value = '{wanted}' WHERE {row}"  # noqa: S608
        yield (
            f"{state.fullname} says schema version {found} for the {side.name}, not {wanted}; "
            f"mend what else is said here, then {run(update)}"
        )


def _columns(catalogue: Catalogue, table: Table, wanted: TableFacts, found: TableFacts) -> Iterator[str]:
    for column in table.columns:
        name, should, has = (
            f"{table.fullname}.{column.name}",
            wanted.columns[column.name],
            found.columns.get(column.name),
        )
        if has is None:
            yield f"{name} is missing; {catalogue.add_column(table, column)}"
            continue
        if has.type != should.type:
            yield f"{name} is {has.type}, not {should.type}; {catalogue.change_type(table, column)}"
        if has.nullable != should.nullable:
            said = "takes NULL and should not" if has.nullable else "is NOT NULL and should take NULL"
            yield f"{name} {said}; {catalogue.change_null(table, column)}"
        if should.default is not None and has.default != should.default:
            said = "no default" if has.default is None else f"the default {has.default}, not {should.default}"
            yield f"{name} has {said}; {catalogue.change_default(table, column, has)}"


def _keys(catalogue: Catalogue, table: Table, wanted: TableFacts, found: TableFacts) -> Iterator[str]:
    if found.primary_key != wanted.primary_key:
        has = f"the primary key ({', '.join(found.primary_key)})" if found.primary_key else "no primary key"
        yield f"{table.fullname} has {has}, not ({', '.join(wanted.primary_key)}); {catalogue.change_key(table, found)}"
    unique = {index.definition for index in found.indexes.values() if index.unique}
    for definition in sorted(catalogue.wanted_uniques(table) - unique):
        name = "_".join([table.name, *_words(definition), "key"])
        create = f"CREATE UNIQUE INDEX {catalogue.quote(name)} ON {catalogue.full_name(table)} {definition}"
        yield f"{table.fullname} has no unique key {definition}; {run(create)}"


def _indexes(catalogue: Catalogue, table: Table, wanted: TableFacts, found: TableFacts) -> Iterator[str]:
    for index in sorted_indexes(table):
        name = str(index.name)
        should, has, create = wanted.indexes[name], found.indexes.get(name), catalogue.create_index(index)
        if has is None:
            yield f"the index {name} is missing; {run(create)}"
        elif has.definition != should.definition or has.unique:
            said = f"{'unique ' if has.unique else ''}{has.definition}, not {should.definition}"
            yield f"the index {name} is {said}; {run(catalogue.drop_index(table, name, has), create)}"
        elif not has.valid:
            yield f"the index {name} was never finished; {run(catalogue.drop_index(table, name, has), create)}"


def _strangers(catalogue: Catalogue, table: Table, wanted: TableFacts, found: TableFacts) -> Iterator[str]:
    allowed = catalogue.wanted_uniques(table)
    written = table.info.get(WRITTEN_BY_CLAIMS, ())
    for name, index in sorted(found.indexes.items()):
        if name in wanted.indexes:
            continue
        named = [column for column in written if column in _words(index.definition)]
        if index.unique and index.definition not in allowed:
            why = f"has an extra unique key {name} {index.definition}, which can refuse events"
            yield f"{table.fullname} {why}; {_drop(catalogue, table, name, found)}"
        elif named:
            why = f"has an index {name} that names {' and '.join(named)}, so that every claim must write it"
            yield f"{table.fullname} {why}; {_drop(catalogue, table, name, found)}"


def _drop(catalogue: Catalogue, table: Table, name: str, found: TableFacts) -> str:
    statement = catalogue.drop_index(table, name, found.indexes[name])
    return run(statement) if statement.startswith(("ALTER", "DROP")) else statement


def _words(definition: str) -> list[str]:
    return re.findall(r"\w+", definition)

"""`init-db`, `schema print` and `schema check`, the same for both programs.

Needs typer, which both packages declare.
"""

from collections.abc import Callable
from typing import Annotated

import typer
from sqlalchemy.engine import make_url

from outbox_shared.catalogue import check
from outbox_shared.commands import created_or_there
from outbox_shared.database import make_engine
from outbox_shared.errors import ConfigurationError
from outbox_shared.settings import FlatSettings
from outbox_shared.side import Side
from outbox_shared.tables import TableNames

FINDINGS = 1
"""The exit code of `schema check` where something is missing or differs."""


def create_tables(side: Side, settings: FlatSettings) -> None:
    """`init-db`."""
    names = settings.tables.names
    engine = make_engine(settings.require_database_url(), side.program)
    try:
        created = side.create(engine, names)
    finally:
        engine.dispose()
    tables = [table.name for table in side.tables_on(engine.dialect.name, names)]
    typer.echo("\n".join(created_or_there(created, tables)))


def schema_commands(side: Side, load: Callable[[], FlatSettings]) -> typer.Typer:
    """The `schema` group of a program; `load` reads its settings."""
    app = typer.Typer(help="The tables as SQL, and whether a database has them.", no_args_is_help=True)

    @app.command("print")
    def print_(
        dialect: Annotated[
            str | None, typer.Option(help="postgresql, mysql, mariadb or sqlite; that of database-url if there is one.")
        ] = None,
        schema: Annotated[str | None, typer.Option(help="Where the tables are to be; that of the settings.")] = None,
        prefix: Annotated[str | None, typer.Option(help="What their names begin with; that of the settings.")] = None,
    ) -> None:
        """Print the statements that create the tables. Needs no database."""
        settings = load()
        names = TableNames(schema or settings.tables.schema_, settings.tables.prefix if prefix is None else prefix)
        statements = side.statements(dialect or _dialect_of(settings), names)
        typer.echo("\n\n".join(f"{statement};" for statement in statements))

    @app.command("check")
    def check_() -> None:
        """Compare the database with what this release expects: a line for each difference, and exit code 1."""
        settings = load()
        engine = make_engine(settings.require_database_url(), side.program)
        try:
            lines = check(engine, side, settings.tables.names)
        finally:
            engine.dispose()
        typer.echo("\n".join(lines) or f"the tables of the {side.name} are as they should be")
        if lines:
            raise typer.Exit(FINDINGS)

    return app


def _dialect_of(settings: FlatSettings) -> str:
    if settings.database_url is None:
        raise ConfigurationError(
            "no database is configured, so say which one is meant: --dialect postgresql, mysql, mariadb or sqlite"
        )
    return make_url(settings.database_url).get_backend_name()

"""What the two commands share: a mistake is one line on stderr and exit code 2, never a traceback.

Whoever reads it is setting something up, not debugging us.
"""

import sys
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from outbox_shared.errors import OutboxError

MISTAKE = 2


def run_command(name: str, app: Callable[[], object]) -> None:
    """Run a command line; what went wrong on purpose, or in the database, becomes its one line."""
    try:
        app()
    except OutboxError as error:
        _fail(name, str(error))
    except DBAPIError as error:
        _fail(name, f"the database refused: {_first_line(error.orig)}")
    except SQLAlchemyError as error:
        _fail(name, _first_line(error))


def created_or_there(created: list[str], tables: list[str]) -> list[str]:
    """What `init-db` says, a line for each table."""
    return [f"{table}: {'created' if table in created else 'already there'}" for table in tables]


def _fail(name: str, why: str) -> None:
    sys.stderr.write(f"{name}: {why}\n")
    raise SystemExit(MISTAKE)


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]

"""How commands show things to people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as what is in them; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[column]) for row in cells) for column in range(len(head))]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return [line(head), *(line(row) for row in cells)]


def age(now: datetime, then: datetime) -> str:
    """For people: one unit, two where the first is small."""
    seconds = max(0, int((now - then).total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} d"


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _is_number(cell: str) -> bool:
    return cell.isdigit() or not cell


def as_json(found: Any) -> str:
    """The same for programs: a dataclass, or a list of them."""
    plain = [asdict(one) for one in found] if isinstance(found, list) else asdict(found)
    return json.dumps(plain, default=_in_json, indent=2)


def _in_json(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")

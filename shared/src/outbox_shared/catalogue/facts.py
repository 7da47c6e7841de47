"""A table as plain facts: the same form for what we want and for what a catalogue says, so that both can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    type: str
    nullable: bool
    default: str | None
    """An identity or AUTO_INCREMENT too: whatever fills the column where an INSERT leaves it out."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    definition: str
    """Columns and predicate in one normal form, such as `(event_type, seq) WHERE processed_at IS NULL`."""
    unique: bool = False
    valid: bool = True
    is_constraint: bool = False


@dataclass(frozen=True, slots=True)
class TableFacts:
    columns: Mapping[str, ColumnFacts]
    primary_key: tuple[str, ...]
    indexes: Mapping[str, IndexFacts]
    options: Mapping[str, str]
    """Storage parameters, engine, collation: what else the database keeps about a table."""

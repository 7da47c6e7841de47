"""What all measurements share: variants take turns, medians with their spread, a table for people, JSON and a plot beside it."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

RESULTS = Path(__file__).parent / "results"
ROUNDS = 3
PACKAGES = ("sqlalchemy", "psycopg", "confluent-kafka", "pika", "pymysql")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one variant did, run after run."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def take_turns(variants: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, Sample]:
    """Each variant once, then each again: whatever else the machine does meets all of them alike."""
    seen: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        for name, run in variants.items():
            seen[name].append(run())
            print(f"    {number + 1}/{rounds}  {name}: {seen[name][-1]:,.5g}", flush=True)
    return {name: Sample(tuple(values)) for name, values in seen.items()}


@dataclass(slots=True)
class Row:
    name: str
    sample: Sample
    base: str | None = None
    """The row that it is compared with."""
    bar: str = ""
    """What the ratio shall be, such as `≥ 0.7`."""


@dataclass(slots=True)
class Table:
    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)

    def add(self, name: str, sample: Sample, *, base: str | None = None, bar: str = "") -> None:
        self.rows.append(Row(name, sample, base, bar))

    def ratio(self, row: Row) -> float | None:
        if row.base is None:
            return None
        return row.sample.median / next(one.sample.median for one in self.rows if one.name == row.base)

    def lines(self) -> list[str]:
        width = max(len(row.name) for row in self.rows)
        found = [self.title, ""]
        for row in self.rows:
            ratio = self.ratio(row)
            spread = f"({min(row.sample.values):,.5g} … {max(row.sample.values):,.5g})"
            compared = "" if ratio is None else f"{ratio:5.2f} × {row.base}  {row.bar}"
            found.append(
                f"  {row.name:<{width}}  {row.sample.median:>10,.5g} {self.unit}  {spread:<22}  {compared}".rstrip()
            )
        return found


def publish(
    name: str, *tables: Table, servers: Mapping[str, str] | None = None, notes: Mapping[str, Any] | None = None
) -> None:
    """Print the tables, and leave them in `benchmarks/results/`."""
    RESULTS.mkdir(exist_ok=True)
    for table in tables:
        print("\n" + "\n".join(table.lines()), flush=True)
    told = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "servers": dict(servers or {}),
    }
    found = [
        {"title": table.title, "unit": table.unit, "rows": [
            {"name": row.name, "median": row.sample.median, "values": row.sample.values,
             "compared_with": row.base, "ratio": table.ratio(row), "bar": row.bar}
            for row in table.rows]}
        for table in tables
    ]  # fmt: skip
    whole = {**told, "tables": found, "notes": dict(notes or {})}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    (RESULTS / f"{name}.svg").write_text(plot(tables, told))


def machine() -> dict[str, Any]:
    packages = {name: version(name) for name in PACKAGES}
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **packages,
    }


# A plot without a plotting library: bars, their spread, and what was compared.

_WIDTH, _NAME, _BAR, _HEIGHT = 860, 330, 380, 24


def plot(tables: tuple[Table, ...], told: Mapping[str, Any]) -> str:
    y, shapes = 24, list[str]()
    for table in tables:
        longest = max(max(row.sample.values) for row in table.rows)
        shapes.append(f'<text x="12" y="{y}" font-weight="bold">{escape(table.title)}</text>')
        y += 16
        for row in table.rows:
            length = _BAR * row.sample.median / longest
            low, high = (_NAME + _BAR * value / longest for value in (min(row.sample.values), max(row.sample.values)))
            ratio = table.ratio(row)
            label = f"{row.sample.median:,.4g} {table.unit}" + ("" if ratio is None else f"  ({ratio:.2f} ×)")
            middle, colour = y + _HEIGHT / 2, "#8aa4c8" if ratio is None else "#3b6ea5"
            shapes += [
                f'<text x="{_NAME - 8}" y="{middle + 4}" text-anchor="end">{escape(row.name)}</text>',
                f'<rect x="{_NAME}" y="{y + 4}" width="{length:.1f}" height="{_HEIGHT - 8}" fill="{colour}"/>',
                f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="#222"/>',
                f'<text x="{max(_NAME + length, high) + 6:.1f}" y="{middle + 4}">{escape(label)}</text>',
            ]
            y += _HEIGHT
        y += 22
    cores, python = told["machine"]["cores"], told["machine"]["python"]
    about = f"{cores} cores, Python {python}, {told['measured_at']}; bars are medians, lines the spread"
    shapes.append(f'<text x="12" y="{y}" fill="#666">{escape(about)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 14}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *shapes, "</svg>"]) + "\n"

"""The benchmark's figures as a table for people: beside what matters stands its ratio to nginx's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One figure: its name in JSON, its heading, its format, and whether its ratio is shown."""

    name: str
    heading: str
    style: str
    is_compared: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's figures, by column name."""

    label: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Table:
    """One measurement; every row is compared with the first."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def ratio(self, row: Row, column: Column) -> float | None:
        """Return a figure of `row` over that of the first row, `None` where that is zero."""
        first = self.rows[0].figures[column.name]
        return row.figures[column.name] / first if first else None


def _cells(table: Table, row: Row) -> list[str]:
    cells = [row.label]
    for column in table.columns:
        cells.append(format(row.figures[column.name], column.style))
        if column.is_compared:
            ratio = table.ratio(row, column)
            cells.append("-" if ratio is None else f"{ratio:.2f}")
    return cells


def render(table: Table) -> str:
    """Return `table` as aligned text."""
    heading = [""]
    for column in table.columns:
        heading += [column.heading, "ratio"] if column.is_compared else [column.heading]
    lines = [heading, *(_cells(table, row) for row in table.rows)]
    widths = [max(len(line[position]) for line in lines) for position in range(len(heading))]
    text = [table.title]
    for label, *figures in lines:
        right = "  ".join(figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        text.append(f"  {label.ljust(widths[0])}  {right}")
    return "\n".join(text)


def as_json(table: Table) -> dict[str, object]:
    """Return `table` for machines; ratios are named after their figure."""
    rows = []
    for row in table.rows:
        ratios = {f"{c.name}_ratio": table.ratio(row, c) for c in table.columns if c.is_compared}
        rows.append({"name": row.label, **row.figures, **ratios})
    return {"title": table.title, "rows": rows}

"""Plain text tables: a heading, then rows; figures to the right, words to the left."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | None


def table(heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return aligned lines; whole numbers get thousands separators, `None` is a dash."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heading, *texts, strict=True)]
    are_figures = [
        all(not isinstance(row[index], str) or _is_figure(row[index]) for row in rows)
        for index in range(len(heading))
    ]
    lines = (
        "  ".join(
            cell.rjust(width) if is_figure else cell.ljust(width)
            for cell, width, is_figure in zip(line, widths, are_figures, strict=True)
        ).rstrip()
        for line in (list(heading), *texts)
    )
    return "\n".join(lines)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:,}"


def _is_figure(cell: Cell) -> bool:
    return isinstance(cell, str) and cell.lstrip("-$").replace(",", "").replace(".", "").rstrip("%").isdigit()

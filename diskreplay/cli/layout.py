"""Tables and lists for a terminal of any width: nothing is cut, and no value is broken in two."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from rich import box
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_GAP = 2  # blanks between columns
_HEAD_LINES = 3  # an empty one, the heads, a rule
_BAR = 40  # columns of the longest bar, where there is room


class Listing:
    """A table, or, where it would not fit, a few lines for each of its rows.

    Parameters
    ----------
    *columns : str
        Heads. A column whose name starts with ``>`` is aligned to the right. A value of the first
        column, a name, stands on a line of its own, above the others, where its column has no room
        for it. All values stay in one piece.
    bar : bool
        Whether a bar follows each row, as long as `add` is told.
    """

    def __init__(self, *columns: str, bar: bool = False) -> None:
        self._heads = [name.lstrip(">") for name in columns]
        self._right = [name.startswith(">") for name in columns]
        self._rows: list[list[Text]] = []
        self._bars: list[float] | None = [] if bar else None
        self._sections: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: str | Text, bar: float = 0.0) -> None:
        """Another row; `bar` counts from 0 to 1."""
        self._rows.append([c if isinstance(c, Text) else Text(c) for c in cells])
        if self._bars is not None:
            self._bars.append(bar)

    def add_section(self) -> None:
        """An empty line."""
        self._sections.append(len(self._rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(cell_len(head), *(row[at].cell_len for row in self._rows), 0)
            for at, head in enumerate(self._heads)
        ]
        needed = sum(widths[1:]) + _GAP * len(widths[1:])
        left = options.max_width - needed - 2  # the box has a blank at both ends
        short = [row[0].cell_len for row in self._rows if row[0].cell_len <= left]
        name = max(cell_len(self._heads[0]), *short, 0)
        if left < name:
            yield from self._blocks()
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for head, right in zip(self._heads, self._right, strict=True):
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        room = min(_BAR, left - name - _GAP)
        if self._bars is not None and room > 3:
            table.add_column("")
        for at, row in enumerate(self._rows):
            if at in self._sections:
                table.add_section()
            cells: list[Text | Bar] = [row[0] if row[0].cell_len <= left else Text(), *row[1:]]
            if self._bars is not None and len(table.columns) > len(row):
                cells.append(Bar(1, 0, self._bars[at], width=room))
            table.add_row(*cells)
        lines = iter(console.render_lines(table, options, pad=False))
        yield from _lines(lines, _HEAD_LINES)
        for at, row in enumerate(self._rows):
            yield from _lines(lines, int(at > 0 and at in self._sections))
            if row[0].cell_len > left:
                yield Text.assemble(" ", row[0])
            yield from _lines(lines, 1)
        yield from _lines(lines, None)

    def _blocks(self) -> RenderResult:
        yield Text()
        for row in self._rows:
            yield row[0].copy()
            cells = zip(self._heads[1:], row[1:], strict=True)
            yield _Parts([Text.assemble(f"{head} ", cell) for head, cell in cells if cell], 2)
        yield Text()


def _lines(lines: Iterator[list[Segment]], count: int | None) -> RenderResult:
    """The next lines; all that are left if `count` is None."""
    for line in islice(lines, count):
        yield from line
        yield Segment.line()


def facts(lines: Mapping[str, str | Sequence[str]]) -> Table:
    """Names in bold beside what there is to say of each.

    Of a sequence, the parts are set apart by commas, and a line ends between two of them.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, said in lines.items():
        grid.add_row(name, said if isinstance(said, str) else _Parts([Text(part) for part in said]))
    return grid


class _Parts:
    """Parts after each other, as many a line as there is room for."""

    def __init__(self, parts: Sequence[Text], indent: int = 0) -> None:
        self._parts, self._indent = parts, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(" " * self._indent, overflow="fold")
        for at, part in enumerate(self._parts):
            last = at == len(self._parts) - 1
            if line.cell_len > self._indent:
                if line.cell_len + 1 + part.cell_len + (not last) <= options.max_width:
                    line.append(" ")
                else:
                    yield line
                    line = Text(" " * self._indent, overflow="fold")
            line.append_text(part)
            if not last:
                line.append(",")
        yield line

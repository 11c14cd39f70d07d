"""Tables and lists for a terminal of any width: nothing is cut, and no value is broken in two."""

import re
from collections.abc import Mapping, Sequence

from rich import box
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2  # blanks between columns
_NARROWEST = 14  # columns that a folded name needs to be read
_FOLDS = 3  # lines of one
_WORD = re.compile(r"[^/_.\- ]*[/_.\- ]*")
_BAR = 40  # columns of the longest bar, where there is room


class Listing:
    """A table, or, where it would not fit, a few lines for each of its rows.

    Parameters
    ----------
    *columns : str
        Heads. A column whose name starts with ``>`` is aligned to the right. Values of the first
        column, names, are folded between words where room is scarce; all others stay in one
        piece.
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
        left = options.max_width - needed - 1  # the box begins with a blank
        names = [_folded(row[0], left) for row in self._rows]
        if left < min(widths[0], _NARROWEST) or any(len(name) > _FOLDS for name in names):
            yield from self._blocks()
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for at, head in enumerate(self._heads):
            table.add_column(
                head, justify="right" if self._right[at] else "left", no_wrap=at > 0,
                overflow="fold", max_width=left if at == 0 else None,
            )  # fmt: skip
        room = min(_BAR, options.max_width - needed - widths[0] - _GAP)
        if self._bars is not None and room > 3:
            table.add_column("")
        for at, row in enumerate(self._rows):
            if at in self._sections:
                table.add_section()
            cells: list[Text | Bar] = [Text("\n").join(names[at]), *row[1:]]
            if self._bars is not None and len(table.columns) > len(row):
                cells.append(Bar(1, 0, self._bars[at], width=room))
            table.add_row(*cells)
        yield table

    def _blocks(self) -> RenderResult:
        yield Text()
        for row in self._rows:
            yield row[0].copy()
            cells = zip(self._heads[1:], row[1:], strict=True)
            yield _Parts([Text.assemble(f"{head} ", cell) for head, cell in cells if cell], 2)
        yield Text()


def _folded(name: Text, width: int) -> list[Text]:
    """Lines of whole words of a name; too many of them if a word is too long."""
    ends, begin = [], 0
    for word in _WORD.finditer(name.plain):
        if cell_len(name.plain[begin : word.end()]) > width and word.start() > begin:
            ends.append(word.start())
            begin = word.start()
        if cell_len(word[0]) > width:
            return [name] * (_FOLDS + 1)
    return list(name.divide(ends))


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

"""Draw the pictures of docs/how-it-works.md: a segment, a commit, a checkpoint.

::

    python tools/drawings.py           write docs/segment.svg, docs/commit.svg, docs/checkpoint.svg
    python tools/drawings.py --check   say whether they are current, exit code 1 if not
"""

import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
INK, BLUE, GREEN, GREY, RED = "#1f2933", "#cfe3f7", "#d3efd5", "#eceff2", "#f8d7d4"


class Drawing:
    """Boxes, arrows and texts on white, which is readable on a dark page too."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._size, self._title, self._parts = (width, height), title, []

    def box(self, x: int, y: int, w: int, h: int, text: str = "", fill: str = GREY) -> None:
        """A box with lines of text in its middle."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{fill}" stroke="{INK}"/>'
        )
        lines = text.split("\n") if text else []
        for at, line in enumerate(lines):
            self.text(
                x + w // 2, y + h // 2 + 5 + round((at - (len(lines) - 1) / 2) * 16), line, "middle"
            )

    def text(self, x: int, y: int, text: str, anchor: str = "start", bold: bool = False) -> None:
        """A line of text."""
        weight = ' font-weight="bold"' * bold
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, x1: int, y1: int, x2: int, y2: int, *, dashed: bool = False) -> None:
        """An arrow from the first point to the second."""
        dash = ' stroke-dasharray="5 4"' * dashed
        self._parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}"{dash} '
            'marker-end="url(#tip)"/>'
        )

    def svg(self) -> str:
        """The whole document."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif" '
            f'font-size="13" fill="{INK}"><title>{escape(self._title)}</title>'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
            f'<rect width="{width}" height="{height}" fill="white"/>'
        )
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"


def segment() -> Drawing:
    """Where the rows of one field are."""
    d = Drawing("The rows of one compressed field: sealed segments, open shard, tail", 760, 300)
    d.text(20, 28, "rows of one field, oldest first", bold=True)
    for at, (name, fill) in enumerate(
        [("segment 4", GREEN), ("segment 5", GREEN), ("open shard", BLUE)]
    ):
        d.box(
            20 + at * 190, 45, 180, 60, f"{name}\n" + ("sealed" if fill == GREEN else "grows"), fill
        )
    d.box(590, 45, 110, 60, "tail\nnewest rows", RED)
    d.arrow(380, 135, 380, 110)
    d.text(370, 135, "full: sealed once, with a checksum, never changed", "end")
    d.arrow(645, 165, 645, 110)
    d.text(740, 182, "add writes here: memory that is mapped from a file", "end")
    d.text(20, 215, "inside a shard", bold=True)
    for at in range(6):
        d.box(20 + at * 85, 228, 80, 42, "block\n8 rows", BLUE)
    d.box(530, 228, 200, 42, "index: where each block\nis, and a checksum", GREY)
    return d


def commit() -> Drawing:
    """What `add` does before it returns, and what comes later."""
    d = Drawing("A commit: values first, then the count", 760, 300)
    d.text(20, 28, "add(...), in this order", bold=True)
    d.box(20, 45, 210, 60, "1. the values of the row\ninto each field's file", RED)
    d.box(275, 45, 210, 60, "2. the commit page:\ncount + 1", BLUE)
    d.box(530, 45, 210, 60, "3. index, priorities;\nadd returns", GREY)
    d.arrow(232, 75, 273, 75)
    d.arrow(487, 75, 528, 75)
    d.text(125, 130, "killed here: the row is not there", "middle")
    d.text(508, 130, "killed here: the row is there, whole", "middle")
    d.text(20, 180, "later, on the maintenance thread", bold=True)
    d.box(20, 195, 210, 60, "8 rows become a block,\nblocks a sealed segment", GREEN)
    d.box(275, 195, 210, 60, "files are synced\nto the disk", GREEN)
    d.box(530, 195, 210, 60, "the record: so many rows\nare durable", BLUE)
    d.arrow(232, 225, 273, 225)
    d.arrow(487, 225, 528, 225)
    d.text(740, 282, "power cut: rows that the record names are there", "end")
    return d


def checkpoint() -> Drawing:
    """What a checkpoint shares with the store, and what is its own."""
    d = Drawing("A checkpoint shares sealed files with the store by hard links", 760, 330)
    d.text(20, 28, "live store", bold=True)
    d.text(740, 28, "checkpoint", "end", bold=True)
    for at, number in enumerate((4, 5, 6)):
        y = 45 + at * 55
        d.box(20, y, 180, 42, f"name of segment {number}", GREY)
        d.box(290, y, 180, 42, f"segment {number}\non the disk once", GREEN)
        d.box(560, y, 180, 42, f"name of segment {number}", GREY)
        d.arrow(202, y + 21, 288, y + 21)
        d.arrow(558, y + 21, 472, y + 21)
    d.box(20, 210, 180, 42, "tail and open shard", RED)
    d.box(560, 210, 180, 42, "a copy of these rows", RED)
    d.arrow(202, 231, 558, 231, dashed=True)
    d.text(380, 223, "copied: a few MB", "middle")
    d.box(560, 265, 180, 50, "attachments, manifest\nwith all checksums", BLUE)
    d.text(20, 288, "Built under another name and synced; then it gets")
    d.text(20, 306, "its name in one step: it is there whole or not at all.")
    return d


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    drawn = {DOCS / f"{each.__name__}.svg": each().svg() for each in (segment, commit, checkpoint)}
    if arguments == ["--check"]:
        stale = [
            path for path, text in drawn.items() if not path.is_file() or path.read_text() != text
        ]
        print(*(f"{path}: not current; run tools/drawings.py" for path in stale), sep="\n", end="")
        return 1 if stale else 0
    for path, text in drawn.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

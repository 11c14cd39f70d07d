"""What is made, made durable and deleted of the files of one field."""

from collections.abc import Callable
from pathlib import Path

from diskreplay.locks import Lock
from diskreplay.store import files
from diskreplay.store.field import Field
from diskreplay.store.field_paths import FieldPaths
from diskreplay.store.place import Place


class ColumnFiles:
    """The files of one field.

    Attributes
    ----------
    new : list of Path
        Of opened segments, whose names are not durable yet.
    pending_deletes : list of Path
        To be deleted after the next record.
    changing : Lock
        Held by who makes, closes, puts in its place or deletes the file of a segment: the
        maintenance thread and adding threads. Taken before `rwlock`, never after it.
    """

    def __init__(self, place: Place, number: int, field: Field) -> None:
        self.place, self._number, self._field = place, number, field
        self.new: list[Path] = []
        self.pending_deletes: list[Path] = []
        self.changing = Lock()

    @property
    def root(self) -> Path:
        return self.place.path

    @property
    def paths(self) -> FieldPaths:
        return FieldPaths(self.root, self._number, self._field)

    def make_way(self, path: Path) -> Path:
        """See to it that a file can be made at `path`, and is not deleted as one that has left.
        Call it with `changing` held.

        Raises
        ------
        StoreMovedError
            The store's directory was moved: the file would be in a new one, or in another store.
        """
        self.place.check()
        files.make_dirs(path.parent)
        if path in self.pending_deletes:
            files.remove(path)  # a reader may have it mapped: it must not become shorter
        while path in self.pending_deletes:  # twice, if it has left twice
            self.pending_deletes.remove(path)
        return path

    def delete_pending(self, dispose: Callable[[Path], None] | None = None) -> None:
        """Delete files of segments that have left, or `dispose` of them."""
        while self.pending_deletes:
            with self.changing:  # else a file may be deleted that was just made anew
                if self.pending_deletes:
                    (dispose or files.remove)(self.pending_deletes[-1])
                    self.pending_deletes.pop()

    def move(self, before: Path) -> None:
        """The store's directory, which was `before`, is `root` now. Cannot fail."""
        self.new = [self.root / path.relative_to(before) for path in self.new]

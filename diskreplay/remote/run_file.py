"""Who publishes the checkpoints of a directory: a name in a file beside them."""

import errno
import secrets
from pathlib import Path

from diskreplay.errors import FormatError, StorageError
from diskreplay.remote.document import text
from diskreplay.store import files, format

RUN_FILE = "remote.json"


def run_of(directory: Path) -> str:
    """Who publishes the checkpoints of a directory; a random name at first."""
    path = directory / RUN_FILE
    if not files.is_there(path):
        new = path.with_name(f".{RUN_FILE}.{secrets.token_hex(8)}")
        files.write(new, [format.encode({"run": secrets.token_hex(8)})])
        files.sync([new])
        try:  # of two processes the first one's stays, where files can be linked
            if not files.link(new, path):
                files.rename(new, path)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
        finally:
            files.remove(new)
        files.sync_dirs([directory])
    try:
        return text("run", format.read_document(path).get("run"))
    except ValueError as error:
        raise FormatError(
            f"{path}: damaged ({error}). It says which run publishes from here: remove it, and the "
            "next push is another run's, which has to take over"
        ) from error

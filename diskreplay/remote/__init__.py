"""Checkpoints in an object store: S3, Google Cloud Storage, Azure, or a directory.

::

    checkpoints.py     RemoteCheckpoints: what a program calls
    saver.py           what `buffer.save` and `buffer.load` do with a URL
    publisher.py       push: what is new is put there, and published
    fetcher.py         pull: a whole checkpoint in a directory, or none
    collector.py       collect: what no checkpoint needs any more goes
    verifier.py        whether all that is published is there
    ranges.py          a Zarr store over what is published, read lazily
    catalog.py         which checkpoints are published, and by whom
    document.py        one checkpoint: where the bytes of its files are
    bucket.py          the requests
    client_options.py  what the client is given: what is refused, and what is a secret
    refusals.py        what the client's errors say, without secrets

`docs/remote.md` says how to use it, `docs/design/0014-remote-checkpoints.md` why it is as it is.
"""

from diskreplay.remote.catalog import RemoteCheckpoint
from diskreplay.remote.checkpoints import RemoteCheckpoints
from diskreplay.remote.collector import Collected
from diskreplay.remote.publisher import Pushed
from diskreplay.remote.verifier import RemoteReport

__all__ = ["Collected", "Pushed", "RemoteCheckpoint", "RemoteCheckpoints", "RemoteReport"]

"""The readers of all stores that the page asks for, and for no longer."""

import time

from diskreplay.errors import InvalidInputError
from diskreplay.locks import Lock
from diskreplay.view.shown_stores import ShownStores
from diskreplay.view.store_reader import StoreReader

_MOST = 16  # at once
_IDLE = 60.0  # seconds after the last question


class Readers:
    """Makes a `StoreReader` for each store that is asked for, and closes it when nobody has asked
    for a minute, or for others since.
    """

    def __init__(self, stores: ShownStores) -> None:
        self.stores = stores
        self._lock = Lock()
        self._readers: dict[str, StoreReader] = {}

    def of(self, key: str) -> StoreReader:
        """The reader of a store.

        Raises
        ------
        InvalidInputError
            There is no such store.
        """
        with self._lock:
            reader = self._readers.pop(key, None)
        if reader is None:
            store = self.stores.find(key)
            if store is None:
                raise InvalidInputError(f"store {key!r:.40}: there is none with this key, any more")
            reader = StoreReader(store)
        reader.used = time.monotonic()
        with self._lock:
            reader = self._readers.setdefault(key, reader)  # the last one is the newest
            surplus = [*self._readers][: max(0, len(self._readers) - _MOST)]
            dropped = [self._readers.pop(old) for old in surplus]
        for old in dropped:
            old.close()
        return reader

    def sweep(self) -> None:
        """Close those that nobody has asked for lately."""
        with self._lock:
            before = time.monotonic() - _IDLE
            old = [key for key, reader in self._readers.items() if reader.used < before]
            dropped = [self._readers.pop(key) for key in old]
        for reader in dropped:
            reader.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            dropped = [*self._readers.values()]
            self._readers.clear()
        for reader in dropped:
            reader.close()

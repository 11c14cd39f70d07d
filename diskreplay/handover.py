"""From a batch that was read to what the one who takes it gets."""

from collections.abc import Callable
from functools import partial
from typing import Any

from diskreplay import extensions
from diskreplay.batch import Batch
from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError

Map = Callable[[Any], Any]


class Handover:
    """The memory of one batch, which is filled again and again, and what is made of it.

    `wait`, reading into `batch` and `make` come in this order, on any thread; then `give` on the
    thread that takes it. After it is let go this begins anew.

    Attributes
    ----------
    batch : Batch or None
        The one to be filled; None: there is none yet.
    """

    def __init__(self, map: Map | None = None) -> None:
        self.batch: Batch | None = None
        self._map = map

    def wait(self) -> None:
        """Wait until nothing reads the memory of `batch` any more."""

    def make(self, batch: Batch) -> Any:
        """What is to be given, of a batch that was read."""
        self.batch = batch
        if self._map is None:
            return batch
        made = self._map(batch)
        if made is None:
            raise InvalidInputError(
                f"map: {getattr(self._map, '__qualname__', self._map)} returned None; it has to "
                "return what is to be given, the batch itself say"
            )
        return made

    def give(self, made: Any) -> Any:
        """What `make` made, once the one who takes it may use it."""
        return made


def handovers_to(device: Any, map: Map | None) -> Callable[[], Handover]:
    """What makes the handovers that a prefetcher is asked for.

    Raises
    ------
    InvalidInputError
    ModuleNotFoundError
        A device is asked for, and there is no PyTorch.
    """
    if map is not None and not callable(map):
        raise InvalidInputError(f"map: a function of a batch expected, found {brief(map, 80)}")
    if device is None:
        return partial(Handover, map)
    return extensions.find("handovers_to")(device, map)

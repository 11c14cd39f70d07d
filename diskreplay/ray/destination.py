"""Where shards save their parts of checkpoints to, as it is sent to them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from diskreplay.errors import InvalidInputError
from diskreplay.store.paths import is_remote

if TYPE_CHECKING:
    from diskreplay.remote.checkpoints import RemoteCheckpoints


class Bucket(NamedTuple):
    """A URL, and how its object store is reached.

    Attributes
    ----------
    url : str
    how : dict
        Of `RemoteCheckpoints`. It goes to the shards by way of Ray, and nowhere else.
    """

    url: str
    how: Mapping[str, Any]

    @classmethod
    def of(cls, where: Any) -> "Bucket | None":
        """The one that a URL, or `RemoteCheckpoints`, name; None for a path.

        Raises
        ------
        InvalidInputError, ModuleNotFoundError
        """
        if not is_remote(where):
            return None
        from diskreplay.remote.checkpoints import RemoteCheckpoints

        remote = where if isinstance(where, RemoteCheckpoints) else RemoteCheckpoints(where)
        if not remote.has_url:
            raise InvalidInputError(
                f"directory: {remote.url} is no URL; each shard reaches the store from its own "
                "node, and needs one"
            )
        return cls(remote.url, remote.options)

    def part(
        self, name: str, run: str | None = None, *, takeover: bool = False
    ) -> "RemoteCheckpoints":
        """The parts of one shard, by its name, as a run writes them; without one, only to read.

        Not with the `takeover` of all: each of these objects could take over once, also those of a
        run that has been taken over from meanwhile.
        """
        from diskreplay.remote.checkpoints import RemoteCheckpoints

        how = {**self.how, "takeover": takeover, "run": run}
        return RemoteCheckpoints(f"{self.url}/parts/{name}", **how)

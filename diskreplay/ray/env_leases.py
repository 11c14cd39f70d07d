"""Who may add to the envs of a shard; on its disk."""

import json
import math
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diskreplay.errors import FormatError, UsageError
from diskreplay.store import files, numbers
from diskreplay.store.format import read_json

_COPY = "."  # in a token: what follows it is of a copy of the writer


class _Hold(NamedTuple):
    token: str
    until: float
    seconds: float
    """For how long, from the last rows on."""


_NOBODY = _Hold("", 0.0, 0.0)


class EnvLeases:
    """The leases of one shard. They have to be known after a kill: else two writers could add to
    one env.

    Parameters
    ----------
    path : Path
        Of their file.
    num_envs : int
    restarted : bool
        The process before was killed, and its writers live on: each has its time again, since when
        they sent rows last is not on the disk.
    """

    def __init__(self, path: Path, num_envs: int, *, restarted: bool = False) -> None:
        self._path, self._num_envs = path, num_envs
        self._held: dict[int, _Hold] = dict(self._noted()) if files.is_there(path) else {}
        if restarted:
            now = time.time()
            for env, hold in self._held.items():
                self._held[env] = hold._replace(until=max(hold.until, now + hold.seconds))

    def _noted(self) -> Iterator[tuple[int, _Hold]]:
        """What the file says, all of it checked."""
        try:
            for env, token, until, *seconds in read_json(self._path):
                if type(token) is not str:
                    raise ValueError(f"token: a text expected, found {token!r:.60}")
                env = numbers.integer("env", env, 0, self._num_envs - 1)
                until = numbers.real("until", until, -math.inf, math.inf)
                (last,) = seconds or (0.0,)  # the first version wrote none
                yield env, _Hold(token, until, numbers.real("seconds", last, 0, math.inf))
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"{self._path}: damaged ({error}); a list of [env, token, until, seconds] "
                "expected. Remove it once no writer of this shard lives: it says which envs they "
                "have"
            ) from error

    def free(self) -> list[int]:
        """Envs that nobody has."""
        now = time.time()
        held = {env for env, hold in self._held.items() if hold.until > now}
        return [env for env in range(self._num_envs) if env not in held]

    def take(self, size: int, seconds: float) -> tuple[str, list[int]] | None:
        """A token for so many envs; None if there are not as many that nobody has."""
        free = self.free()
        if len(free) < size:
            return None
        token, envs = secrets.token_hex(8), free[:size]
        self.extend(token, envs, seconds)
        self._write()
        return token, envs

    def extend(self, token: str, envs: list[int], seconds: float) -> None:
        """So many seconds from now on. Not on the disk: who holds an env counts, and not until
        when."""
        self._held |= dict.fromkeys(envs, _Hold(token, time.time() + seconds, seconds))

    def release(self, token: str) -> None:
        """Let others have the envs of a writer that has ended, and of its copies. One of these that
        another one came after has none."""
        held = [
            env for env, hold in self._held.items()
            if token in (hold.token, hold.token.partition(_COPY)[0])
        ]  # fmt: skip
        for env in held:
            del self._held[env]
        if held:
            self._write()

    def hand_on(self, token: str, envs: list[int]) -> str:
        """Give the lease of a writer to one copy of it, which gets a token of its own: the earlier
        ones, and the writer that was copied, have none any more.

        Raises
        ------
        UsageError
            Another writer holds them.
        """
        origin = token.partition(_COPY)[0]
        for env in envs:
            if self._held.get(env, _NOBODY).token.partition(_COPY)[0] != origin:
                raise self._not_held(env)
        made = f"{origin}{_COPY}{secrets.token_hex(8)}"
        for env in envs:
            self._held[env] = self._held[env]._replace(token=made)
        self._write()
        return made

    def check(self, token: str, envs: list[int]) -> None:
        """Refuse a writer that does not hold these envs.

        Raises
        ------
        UsageError
        """
        for env in envs:
            if self._held.get(env, _NOBODY).token != token:
                raise self._not_held(env)

    def _not_held(self, env: int) -> UsageError:
        return UsageError(
            f"{self._path.parent}: env {env} is leased by another writer, since this one was "
            "closed, sent no rows for longer than its lease, or is a copy in another process "
            "that adds now; make a new writer"
        )

    def _write(self) -> None:
        rows = [[env, *hold] for env, hold in self._held.items()]
        files.replace({self._path: json.dumps(rows).encode()})

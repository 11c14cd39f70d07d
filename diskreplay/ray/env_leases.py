"""Who may add to the envs of a shard; on its disk."""

import json
import math
import secrets
import time
from pathlib import Path

from diskreplay.errors import FormatError, UsageError
from diskreplay.store import files, numbers
from diskreplay.store.format import read_json

_COPY = "."  # in a token: what follows it is of a copy of the writer


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
        self._held: dict[int, tuple[str, float]] = {}
        self._seconds: dict[str, float] = {}  # by token
        if files.is_there(path):
            now = time.time()
            for env, token, until, seconds in self._noted():
                if seconds is not None:
                    self._seconds[token] = seconds
                    until = max(until, now + seconds) if restarted else until
                self._held[env] = token, until

    def _noted(self) -> list[tuple[int, str, float, float | None]]:
        """What the file says, all of it checked."""
        noted: list[tuple[int, str, float, float | None]] = []
        try:
            for env, token, until, *seconds in read_json(self._path):
                if type(token) is not str:
                    raise ValueError(f"token: a text expected, found {token!r:.60}")
                env = numbers.integer("env", env, 0, self._num_envs - 1)
                until = numbers.real("until", until, -math.inf, math.inf)
                if seconds:  # written by a later version than the first
                    (found,) = seconds
                    noted.append((env, token, until, numbers.real("seconds", found, 0, math.inf)))
                else:
                    noted.append((env, token, until, None))
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"{self._path}: damaged ({error}); a list of [env, token, until, seconds] "
                "expected. Remove it once no writer of this shard lives: it says which envs they "
                "have"
            ) from error
        return noted

    def free(self) -> list[int]:
        """Envs that nobody has."""
        now = time.time()
        held = {env for env, (_token, until) in self._held.items() if until > now}
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
        until, self._seconds[token] = time.time() + seconds, seconds
        self._held |= dict.fromkeys(envs, (token, until))

    def release(self, token: str) -> None:
        """Let others have the envs of a writer that has ended, and of its copies. One of these that
        another one came after has none."""
        held = [
            env for env, (holder, _until) in self._held.items()
            if token in (holder, holder.partition(_COPY)[0])
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
            holder, _until = self._held.get(env, ("", 0.0))
            if holder.partition(_COPY)[0] != origin:
                raise self._not_held(env)
        made = f"{origin}{_COPY}{secrets.token_hex(8)}"
        for env in envs:
            holder, until = self._held[env]
            self._seconds[made] = self._seconds.get(holder, 0.0)
            self._held[env] = made, until
        self._write()
        return made

    def check(self, token: str, envs: list[int]) -> None:
        """Refuse a writer that does not hold these envs.

        Raises
        ------
        UsageError
        """
        for env in envs:
            holder, _until = self._held.get(env, (None, 0.0))
            if holder != token:
                raise self._not_held(env)

    def _not_held(self, env: int) -> UsageError:
        return UsageError(
            f"{self._path.parent}: env {env} is leased by another writer, since this one was "
            "closed, sent no rows for longer than its lease, or is a copy in another process "
            "that adds now; make a new writer"
        )

    def _write(self) -> None:
        tokens = {token for token, _until in self._held.values()}
        self._seconds = {token: self._seconds.get(token, 0.0) for token in tokens}
        rows = [
            [env, token, until, self._seconds[token]]
            for env, (token, until) in self._held.items()
        ]  # fmt: skip
        files.replace({self._path: json.dumps(rows).encode()})

"""Minari data sets from stores, and stores from Minari data sets.

A Minari episode of T steps has T + 1 observations, and no stacks: each frame is there once. How
episodes become Minari's:

=========================== ========================================================================
the episode                 what is written
=========================== ========================================================================
has a final row             all of it; the final row is the last observation
terminated without one      all of it; the last observation is zeros. The value of what follows a
                            termination counts nothing, so no algorithm bootstraps from them
truncated without one, cut, all but its last transition, of which nobody knows what it led to. Its
or still open               own observation is the last one, and the step before it is marked
                            truncated: the recording stops there, and bootstrapping is right
its beginning is evicted    what is retained, as an episode. Its metadata say as
                            ``diskreplay_first_step`` which step is the first, so that `from_minari`
                            makes no stacks of it that the agent never saw
=========================== ========================================================================

Every extra becomes an info of its name. Infos have T + 1 entries too: the first belongs to the
reset and is zeros, entry ``t + 1`` belongs to step ``t``.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diskreplay.brief import brief
from diskreplay.buffer import ReplayBuffer
from diskreplay.convert.buffer_options import foreign_options, of_episodes, options_of
from diskreplay.convert.hdf5_file import telling_nothing
from diskreplay.convert.importer import Progress, importing
from diskreplay.convert.minari_directory import (
    check_space,
    datasets_below,
    new_dataset,
    root_lock,
)
from diskreplay.convert.timeline import take_retained
from diskreplay.episodes import Episodes
from diskreplay.errors import DiskReplayError, FormatError, InvalidInputError
from diskreplay.extensions import needed
from diskreplay.inspection.episodes import episodes_of, unbroken
from diskreplay.opening import open
from diskreplay.store import numbers
from diskreplay.store.system_errors import check_lost
from diskreplay.stored_space import StoredSpace

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec
    from minari import EpisodeData, MinariDataset
    from minari.data_collector import EpisodeBuffer

__all__ = ["from_minari", "to_minari"]

_OURS = "diskreplay"  # in a data set's metadata: what Minari has no word for
_PADDED = "diskreplay_padded"  # in an episode's: its last observation is made up
_SMALLEST_PICTURE = 32  # rows and columns: Minari takes what is smaller for no picture
_FIRST_STEP = "diskreplay_first_step"  # in an episode's, where those before it are lacking
_NO_SEED = -1
_REMINDERS = ".* is set to None|env_spec is None"  # of the metadata one might give


def to_minari(
    buffer: ReplayBuffer,
    dataset_id: str,
    *,
    environment: "str | gymnasium.Env | EnvSpec | None" = None,
    algorithm_name: str | None = None,
    author: str | set[str] | None = None,
    author_email: str | set[str] | None = None,
    description: str | None = None,
    jpeg_encoding: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> "MinariDataset":
    """Write the episodes of a buffer as a Minari data set; the table above says how.

    Parameters
    ----------
    buffer : ReplayBuffer
        Of any number of envs; episodes are in the order in which they began.
    dataset_id : str
        ``(namespace/)name-v0``: a new one, below ``MINARI_DATASETS_PATH``.
    environment : str or gymnasium.Env or EnvSpec, optional
        Where it was recorded, for ``dataset.recover_environment()``.
    algorithm_name, author, author_email, description
        Metadata.
    jpeg_encoding : bool
        Minari's lossy compression of images. Without it frames take their full size.
    progress : callable, optional
        Called with how many episodes were written since and how many there are.
    **options
        More of `minari.create_dataset_from_buffers`, such as ``data_format="parquet"``.

    Returns
    -------
    MinariDataset
        As `minari.load_dataset` returns it.

    Raises
    ------
    InvalidInputError
        The id is malformed or taken, ``MINARI_DATASETS_PATH`` is no absolute path, or there is no
        step to write. Or pictures are to be JPEG that are neither grey, (height, width), nor RGB.
    DiskFullError
        There is less space than the arrays take, or no more while they are written.
    StorageError
        The system refused a write.
    CorruptSegmentError

    Notes
    -----
    Memory for one episode at a time. Where an extra named ``seed`` holds one integer a step, that
    of an episode's first step is the episode's seed, unless negative; else it has none. A data set
    is there whole or not at all. While Minari makes its files, ``MINARI_DATASETS_PATH`` is a hidden
    directory in the one that it was. Rows that the writer of a live store evicts meanwhile are left
    out.
    """
    minari = _minari()
    if jpeg_encoding:
        _check_pictures(buffer)
    about: list[dict[str, Any]] = []
    with new_dataset(dataset_id) as root:
        episodes = episodes_of(buffer)
        with warnings.catch_warnings(), datasets_below(root):
            warnings.filterwarnings("ignore", _REMINDERS, UserWarning)
            storage = minari.create_dataset_from_buffers(
                dataset_id, [], env=environment, algorithm_name=algorithm_name, author=author,
                author_email=author_email, description=description, jpeg_encoding=jpeg_encoding,
                observation_space=buffer.observation_space, action_space=buffer.action_space,
                **options,
            ).storage  # fmt: skip
        if storage.FORMAT != "parquet" and not jpeg_encoding:  # these may compress
            check_space(buffer, int(episodes.rows.sum()), root)
        as_lists = storage.FORMAT != "hdf5"
        advance = progress or (lambda amount, total: None)
        with telling_nothing(storage) as check:
            storage.update_episodes(_written(buffer, episodes, about, as_lists, advance, check))
            if not about:
                raise InvalidInputError(f"{buffer.path}: no whole step to write to {dataset_id}")
            storage.update_episode_metadata(about)
        storage.update_metadata({_OURS: options_of(buffer)})
    with root_lock:
        return minari.load_dataset(dataset_id)


def _check_pictures(buffer: ReplayBuffer) -> None:
    """Refuse what Minari takes for pictures and Pillow has no JPEG of."""
    for name, (shape, dtype) in buffer.fields.items():
        is_picture = dtype == np.uint8 and len(shape) == 3 and min(shape[:2]) >= _SMALLEST_PICTURE
        if is_picture and shape[2] != 3 and name not in buffer.extras:
            raise InvalidInputError(
                f"{name}: pictures of shape {shape} cannot be JPEG; (height, width) or (height, "
                "width, 3) expected: give jpeg_encoding=False"
            )


def _written(
    buffer: ReplayBuffer,
    episodes: Episodes,
    about: list[dict[str, Any]],
    as_lists: bool,
    advance: Progress,
    check: Callable[[], None],
) -> Iterator["EpisodeBuffer"]:
    """Minari's episodes one after the other; `about` gets the metadata of each, and `check` raises
    if one before could not be written."""
    for episode in range(len(episodes)):
        for piece, last in unbroken(episodes, episode):
            pad = bool(last < 0 and episodes.terminated[episode])
            rows = piece if last < 0 else np.append(piece, last)
            first_step, written = _episode(buffer, rows, pad, as_lists)
            check()
            if written is not None:
                about.append({_PADDED: pad} | ({_FIRST_STEP: first_step} if first_step else {}))
                yield written
        advance(1, len(episodes))


def _episode(
    buffer: ReplayBuffer, ids: np.ndarray, pad: bool, as_lists: bool
) -> "tuple[int, EpisodeBuffer | None]":
    """The observations of all these rows (and zeros behind them, to `pad`), and the steps from each
    one to the next, with the number of the first of these in the episode. Rows that a writer
    evicted meanwhile are left out; None if no step is left."""
    from minari.data_collector import EpisodeBuffer

    names = [name for name in buffer.fields if name != "is_final"]
    ids, columns = take_retained(buffer, names, ids)
    steps = len(ids) if pad else len(ids) - 1
    if steps < 1:
        return 0, None
    truncated = columns["truncated"][:steps]
    truncated[-1] |= not columns["terminated"][steps - 1]
    infos: dict[str, Any] = {}
    for name, (shape, _dtype, *_more) in buffer.extras.items():
        values = columns[name][:steps]
        infos[name] = np.concatenate([np.zeros_like(values[:1]), values])
        if as_lists and shape == ():
            infos[name] = list(infos[name])  # Minari reads no flat array back from Arrow
    seed = int(columns["seed"][0]) if _has_seeds(buffer.extras) else _NO_SEED
    observation = StoredSpace.of(buffer.observation_space, "observation")
    action = StoredSpace.of(buffer.action_space, "action")
    observations = []
    for name in observation.names:
        rows = columns[name]
        observations.append(np.concatenate([rows, np.zeros_like(rows[:1])]) if pad else rows)
    return int(columns["step"][0]), EpisodeBuffer(
        seed=None if seed < 0 else seed,
        observations=observation.unflatten(observations),
        actions=action.unflatten([columns[name][:steps] for name in action.names]),
        rewards=columns["reward"][:steps],
        terminations=columns["terminated"][:steps],
        truncations=truncated,
        infos=infos or None,
    )


def _has_seeds(extras: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> bool:
    shape, dtype = extras.get("seed", ((), np.dtype(np.void)))
    return shape == () and dtype.kind in "iu"


def from_minari(
    dataset: "MinariDataset | str | os.PathLike[str]",
    store_path: str | os.PathLike[str],
    *,
    infos: Sequence[str] = (),
    prioritized: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ReplayBuffer:
    """Make a store of a Minari data set.

    Parameters
    ----------
    dataset : MinariDataset or str or path
        A data set (or a part of one), the id of one that is there locally, or its data directory.
    store_path : path
        The new store's directory; there whole or not at all.
    infos : sequence of str
        Infos that become extras: one number or array a step. Only for a data set that others wrote,
        as is the next one: what `to_minari` wrote comes back by itself.
    prioritized : bool
        Whether to make the store of a `PrioritizedReplayBuffer`.
    overwrite : bool
        Replace a store that is there.
    progress : callable, optional
        Called with how many episodes were read since and how many there are.
    **options
        Of `ReplayBuffer` or `PrioritizedReplayBuffer`, instead of those of the buffer that was
        exported. By default everything is kept (``capacity=None``).

    Returns
    -------
    ReplayBuffer or PrioritizedReplayBuffer
        Open for writing, with one env and the episodes one after the other. What `to_minari` wrote
        comes back as the transitions that it wrote; Minari knows no priorities.

    Raises
    ------
    InvalidInputError
        There is something at `store_path`, a space cannot be stored, an info is missing or no array
        of numbers, or an episode ends before its last step.
    FormatError
        There is no such data set, or what `to_minari` wrote into its metadata is damaged.
    ShapeError, DtypeError, NotFiniteError
        Values do not fit their space.
    StorageError
    ModuleNotFoundError
        There is no Minari.

    Notes
    -----
    Every episode gets its last observation as a final row. One that Minari says neither terminated
    nor was truncated is truncated. The episodes' seeds become an extra named ``seed``, int64 and -1
    where there is none, if any has one. Memory for one episode at a time.
    """
    minari, name = _minari(), dataset
    if isinstance(dataset, str | os.PathLike):
        load = minari.load_dataset if isinstance(dataset, str) else minari.MinariDataset
        with _telling_damage(name):
            try:
                with root_lock:
                    dataset = load(dataset)
            except FileNotFoundError as error:
                raise FormatError(
                    f"{name}: no such Minari data set on this machine; `minari list local` names "
                    f"those that are there, and `minari download {name}` may bring it"
                ) from error
    elif not isinstance(dataset, minari.MinariDataset):
        raise InvalidInputError(
            f"dataset: an id, a path or a MinariDataset expected, found {brief(dataset)}"
        )
    with _telling_damage(name):
        document = dataset.storage.metadata.get(_OURS) or foreign_options(
            dataset.observation_space, dataset.action_space, _extras(dataset, infos), prioritized
        )
    if not isinstance(document, Mapping):
        raise FormatError(f"{dataset.id}: what its metadata say of {_OURS!r} is {document!r}")
    described = of_episodes(document)
    with importing(
        described, store_path, dataset.id, overwrite=overwrite, progress=progress, options=options
    ) as importer:
        for columns in _episodes(dataset, name, importer.buffer):
            if columns:
                importer.buffer.extend(columns)
            importer.progress(1, len(dataset))
    return open(store_path, mode="a")


def _episodes(
    dataset: "MinariDataset", name: object, buffer: ReplayBuffer
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of each episode; nothing of one without a step."""
    with _telling_damage(name):
        indices = dataset.episode_indices
        metadata = iter(dataset.storage.get_episode_metadata(indices))
        episodes = iter(dataset.iterate_episodes(indices))
    for _ in indices:
        with _telling_damage(name):
            found, about = next(episodes), next(metadata)
            columns = _columns(buffer, found, about) if len(found.rewards) else {}
        yield columns


@contextlib.contextmanager
def _telling_damage(name: object) -> Iterator[None]:
    """Raise a `FormatError` for what Minari and h5py raise where files are missing or damaged."""
    try:
        yield
    except DiskReplayError:
        raise
    except (
        OSError, LookupError, TypeError, ValueError, AttributeError, AssertionError, StopIteration
    ) as error:  # fmt: skip
        check_lost(error, str(name), "cannot read it")
        raise FormatError(f"{name}: no Minari data set that can be read ({error})") from error


def _extras(dataset: "MinariDataset", infos: Sequence[str]) -> dict[str, Any]:
    """Shape and dtype of the extras."""
    extras: dict[str, Any] = {}
    if infos and len(dataset):
        found = dataset[0].infos or {}
        for name in infos:
            values = found.get(name)
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
                raise InvalidInputError(
                    f"{dataset.id}: info {name!r} is no array of numbers; its infos are "
                    f"{sorted(found)}"
                )
            extras[name] = values.shape[1:], values.dtype
    metadata = dataset.storage.get_episode_metadata(dataset.episode_indices)
    if any(about.get("seed") is not None for about in metadata):
        extras.setdefault("seed", ((), np.int64))
    return extras


def _columns(
    buffer: ReplayBuffer, found: "EpisodeData", about: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The rows of an episode, its final row among them."""
    steps = len(found.rewards)
    terminated, truncated = (
        np.array(flags, np.bool_) for flags in (found.terminations, found.truncations)
    )
    ended = np.flatnonzero(terminated | truncated)
    if len(ended) and ended[0] != steps - 1:
        raise InvalidInputError(
            f"episode {found.id}: it ends with step {ended[0]} and has {steps}; split it there"
        )
    truncated[-1] |= not terminated[-1]
    rows = steps if about.get(_PADDED) else steps + 1
    first_step = np.asarray(about.get(_FIRST_STEP, 0)).item()
    first_step = numbers.integer(_FIRST_STEP, first_step, 0, numbers.LAST_STEP + 1 - rows)
    columns = {
        **_leaves(buffer.action_space, "action", found.actions),
        "reward": found.rewards, "terminated": terminated, "truncated": truncated,
    }  # fmt: skip
    for name in buffer.extras:
        if name in (found.infos or {}):
            columns[name] = np.asarray(found.infos[name])[-steps:]
        elif name == "seed":
            seed = about.get("seed")
            columns[name] = np.full(steps, _NO_SEED if seed is None else seed)
    if rows > steps:
        columns = {
            name: np.concatenate([values, np.zeros_like(values[:1])])
            for name, values in columns.items()
        }
    seen = _leaves(buffer.observation_space, "observation", found.observations)
    return columns | {
        **{name: values[:rows] for name, values in seen.items()},
        "step": first_step + np.arange(rows), "is_final": np.arange(rows) == steps,
    }  # fmt: skip


def _leaves(space: "gymnasium.Space[Any]", of: str, value: Any) -> dict[str, np.ndarray]:
    """The arrays of an episode's observations or actions by field name."""
    stored = StoredSpace.of(space, of)
    parts = stored.flatten(value)
    return {name: np.asarray(part) for name, part in zip(stored.names, parts, strict=True)}


def _minari() -> Any:
    with needed("Minari data sets need Minari", "minari"):
        import minari
    return minari

"""What is saved with the rows of Tianshou's replay buffers, and checkpoints of both."""

import base64
import os
from pathlib import Path
from typing import Any

import numpy as np
from tianshou.data import PrioritizedReplayBuffer

from diskreplay.brief import brief
from diskreplay.errors import InvalidInputError
from diskreplay.integrations.tianshou_leaves import NOTE, LeavesOnDisk
from diskreplay.locks import one_call
from diskreplay.store import checkpoint_names, files
from diskreplay.store.checkpoint_names import CHECKPOINT_DURATION
from diskreplay.store.format import read_attributes
from diskreplay.store.listing import Checkpoint
from diskreplay.store.paths import is_remote, local

# What Tianshou changes when it adds a transition.
_PLACE = ("_insertion_idx", "_size", "last_index", "_ep_return", "_ep_len", "_ep_start_idx")


class SavedBuffer(LeavesOnDisk):
    """Mixin of Tianshou's buffers: their state, `flush`, `close`, `save` and `load`."""

    def _state(self) -> dict[str, Any]:
        """All that is not in the rows, as JSON."""
        parts = []
        for _, part in self._parts():
            gain = part._ep_return
            parts.append(
                [
                    int(part._insertion_idx), int(part._size), int(part.last_index[0]),
                    _as_json(gain.tolist() if isinstance(gain, np.ndarray) else float(gain)),
                    int(part._ep_len), int(part._ep_start_idx),
                ]
            )  # fmt: skip
        state: dict[str, Any] = {
            "parts": parts, "random": [_packed_random(each) for each in self._generators()]
        }  # fmt: skip
        if isinstance(self, PrioritizedReplayBuffer):
            state["priorities"] = _as_json([float(self._max_prio), float(self._min_prio)])
        return state

    def _generators(self) -> list[np.random.RandomState]:
        own = [self._random_state]
        return own + [part._random_state for _, part in self._parts() if part is not self]

    def _note(self) -> None:
        """Hand over to the slots what is saved with them."""
        slots = self._there.slots
        slots.notes = {**slots.notes, NOTE: {"leaves": self._there.names, **self._state()}}
        if isinstance(self, PrioritizedReplayBuffer):
            slots.weights[:] = self.weight[np.arange(self.maxsize)]

    def _noted(self) -> dict[str, Any]:
        return self._there.slots.notes[NOTE]

    def _found(self) -> None:
        """Know what a store has that was reopened; episodes that were under way are over."""
        self._restore_generators()
        counted = np.zeros(self.maxsize, np.bool_)
        for lane, (_, part) in enumerate(self._parts()):
            slots = self._there.order(lane)
            counted[slots] = True
            order = slots - int(self._there.slots.offsets[lane])
            part._size = len(order)
            last = int(order[-1]) if len(order) else -1
            part._insertion_idx = part._ep_start_idx = (last + 1) % part.maxsize
            part.last_index = np.array([max(last, 0)])
            part._ep_return, part._ep_len = 0.0, 0
        self._know_parts(counted)
        cut_unfinished(self)

    def _know_lengths(self) -> None:
        """What a manager knows of its buffers."""
        if "buffers" in self.__dict__:
            self._lengths = np.array([len(part) for _, part in self._parts()])
            self.last_index = np.array([at + int(part.last_index[0]) for at, part in self._parts()])

    def _know_parts(self, counted: np.ndarray) -> None:
        """What a manager knows of its buffers, and the weights of these slots."""
        self._know_lengths()
        if isinstance(self, PrioritizedReplayBuffer):
            own: Any = self
            own._max_prio, own._min_prio = map(float, self._noted().get("priorities", (1.0, 1.0)))
            weights = self._there.slots.weights
            weights = np.where(np.isnan(weights), self._max_prio**self._alpha, weights)
            self.weight[np.arange(self.maxsize)] = np.where(counted, weights, 0.0)

    def _restore_generators(self) -> None:
        saved = self._noted().get("random")
        if saved is not None:
            for generator, state in zip(self._generators(), saved, strict=True):
                generator.set_state(_unpacked_random(state))

    def _restore(self) -> None:
        """Go on from what `_state` gave, after the rows were loaded."""
        saved = self._noted()
        for (_, part), state in zip(self._parts(), saved["parts"], strict=True):
            part._insertion_idx, part._size, last, gain, part._ep_len, part._ep_start_idx = state
            value = np.array(gain, np.float64) if isinstance(gain, list) else float(gain)
            part._ep_return = value  # type: ignore[assignment]
            part.last_index = np.array([last])
        self._restore_generators()
        # Tianshou's reset leaves weights as they are, and the saved run had them.
        self._know_parts(self._there.slots.used)

    # -- an `add` that fails

    def _places(self) -> tuple[list[dict[str, Any]], np.ndarray]:
        """Where each part has its next transition, and what else changes when one is added."""
        parts = self.__dict__.get("buffers", (self,))
        places = [part.__dict__.copy() for part in parts]
        for place in places:
            place["last_index"] = place["last_index"].copy()
            if type(place["_ep_return"]) is np.ndarray:  # which Tianshou adds to in place
                place["_ep_return"] = place["_ep_return"].copy()
        return places, self._there.marks

    def _count_what_is_there(self, before: tuple[list[dict[str, Any]], np.ndarray]) -> None:
        """Have no transition that is not on the disk: Tianshou counts them before it sets them."""
        for lane, ((first, part), place) in enumerate(zip(self._parts(), before[0], strict=True)):
            at = place["_insertion_idx"]
            count, is_all = self._there.added(lane, at, int(before[1][lane]))
            slots = (at + np.arange(count)) % part.maxsize
            if not is_all:
                was_moved = part._insertion_idx != at
                part.__dict__.update((name, place[name]) for name in _PLACE)
                if was_moved and count:  # of many the first ones fitted
                    part.last_index[0] = slots[-1]
                    part._insertion_idx = (at + count) % part.maxsize
                    part._size = min(part._size + count, part.maxsize)
            if count and isinstance(self, PrioritizedReplayBuffer):
                self.init_weight(first + slots)
        self._know_lengths()

    # -- flush, checkpoints

    name = "replay"

    @one_call
    def flush(self) -> None:
        """Make everything durable, also against a power cut, with weights and generators."""
        if self._rows is not None:
            self._note()
            self._there.slots.flush()

    @one_call
    def close(self) -> None:
        """`flush`, and let go of the store; a temporary one is removed."""
        if self._rows is not None:
            if not self._there.slots.closed:
                self._note()
            self._there.slots.close()

    @one_call
    def save(
        self, checkpoint_dir: str | os.PathLike[str], iteration_number: int | str, *,
        attachments: Any = None, keep: int | None = CHECKPOINT_DURATION,
    ) -> Path:  # fmt: skip
        """Write a checkpoint, as `diskreplay.ReplayBuffer.save` does; so `RunState` can.

        Arrays that are no numbers are not in it.
        """
        return self._save(checkpoint_dir, iteration_number, attachments, keep)

    def _save(
        self, checkpoint_dir: str | os.PathLike[str], iteration_number: int | str,
        attachments: Any, keep: int | None,
    ) -> Path:  # fmt: skip
        if self._rows is None:
            raise InvalidInputError("nothing to save: add transitions first")
        self._restore_originals()
        self._note()
        return self._there.slots.save(
            checkpoint_dir, iteration_number, attachments=attachments, keep=keep
        )

    @one_call
    def load(
        self, checkpoint_dir: str | os.PathLike[str], suffix: int | str | None = None, *,
        resume_episodes: bool = True,
    ) -> Checkpoint:  # fmt: skip
        """Go back to a checkpoint, of which the next batches are those of the run that saved it.

        Parameters
        ----------
        checkpoint_dir, suffix
            As for `diskreplay.ReplayBuffer.load`.
        resume_episodes : bool
            Go on with the episodes that were under way; otherwise they are over, and truncated.
        """
        if self._rows is None:
            if is_remote(checkpoint_dir):
                raise InvalidInputError(
                    f"checkpoint_dir: a directory expected, found {brief(checkpoint_dir, 200)}: a "
                    "buffer without a transition looks there first which arrays it is to have; "
                    "pull the checkpoint (diskreplay pull), and load it from where it is then"
                )
            path = local(checkpoint_dir, "checkpoint_dir")
            if not files.is_there(path / "zarr.json"):
                path = checkpoint_names.find(path, self.name, suffix)[0]
            self._like(path)
        self._restore_originals()
        found = self._there.slots.load(checkpoint_dir, suffix)
        names = self._noted()["leaves"]
        memory = {path: value for path, value in self._memory().items() if path not in names}
        self._take(self._leaf_rows(self._there.hand_over(), names), memory)
        self._share()
        self._restore()
        if not resume_episodes:
            cut_unfinished(self)
        return found

    def _like(self, checkpoint: Path) -> None:
        """Make a store of the arrays that a checkpoint has."""
        attributes = read_attributes(checkpoint)
        names = attributes["notes"][NOTE]["leaves"]
        self._take(self._leaf_rows(self._made_as(attributes, names), names))
        self._share()


def cut_unfinished(buffer: LeavesOnDisk) -> None:
    """Say of the newest transition of each episode under way that the episode was truncated there.

    A buffer that is reopened has done so: the environments begin anew, and no transition may go on
    from one episode to another.
    """
    for _, part in buffer._parts():
        for at in part.unfinished_index() if len(part) else ():
            row: Any = part._meta[np.array([at])]
            row.truncated[...] = True
            row.done[...] = True
            part._meta[np.array([at])] = row
        part._ep_return, part._ep_len, part._ep_start_idx = 0.0, 0, part._insertion_idx


def _packed_random(generator: np.random.RandomState) -> list[Any]:
    state: Any = generator.get_state()
    _, key, *rest = state
    return [base64.b64encode(key.astype("<u4").tobytes()).decode(), *rest]


def _unpacked_random(saved: list[Any]) -> tuple[Any, ...]:
    key = np.frombuffer(base64.b64decode(saved[0]), "<u4")
    return ("MT19937", key, *saved[1:])


def _as_json(value: Any) -> Any:
    """A number or a list of them for JSON, which has no NaN and nothing infinite: as texts, which
    `float` reads."""
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return value if np.isfinite(value) else str(value)

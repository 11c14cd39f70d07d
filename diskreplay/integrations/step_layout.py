"""The steps of DreamerV3 as rows of a store, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.errors import DtypeError, InvalidInputError, ShapeError
from diskreplay.sequence_batch import SequenceBatch
from diskreplay.spaces import box

STEP_BYTES = 20


class StepLayout:
    """Which keys a step has, and where each is in a row: ``action`` is the action, keys that are
    written again are mutable extras, all others are observations, nested at each ``/``.

    Parameters
    ----------
    fields : dict of str to (shape, dtype)
    workers : int
        Envs of the store.
    mutable : sequence of str
        Prefixes of the keys that are written again.
    """

    def __init__(
        self, fields: Mapping[str, Sequence[Any]], workers: int, mutable: Sequence[str]
    ) -> None:
        self.fields = {key: (tuple(shape), np.dtype(kind)) for key, (shape, kind) in fields.items()}
        self._workers = workers
        self.extras = {
            key: key.replace("/", "__") for key in fields if key.startswith(tuple(mutable))
        }
        self._seen = [key for key in fields if key not in self.extras and key != "action"]
        # One row of all workers, of which a step fills its worker's part.
        self._values = {
            key: np.zeros((workers, *shape), dtype) for key, (shape, dtype) in self.fields.items()
        }
        self._nothing = np.zeros((workers, 1), np.int8)

    @staticmethod
    def of(step: Mapping[str, np.ndarray]) -> dict[str, tuple[Any, ...]]:
        """The fields of a step."""
        return {key: (value.shape, value.dtype.str) for key, value in step.items()}

    def described(self) -> dict[str, list[Any]]:
        """The fields as JSON."""
        return {key: [list(shape), dtype.str] for key, (shape, dtype) in self.fields.items()}

    def options(self) -> dict[str, Any]:
        """What `ReplayBuffer` is given."""
        boxes = self._nested({key: _box(*self.fields[key]) for key in self._seen})
        action = self.fields.get("action")
        return {
            "observation_space": _dict(boxes or {"nothing": spaces.MultiBinary(1)}),
            "action_space": spaces.MultiBinary(1) if action is None else _box(*action),
            "extras": {
                name: (*self.fields[key], "mutable") for key, name in self.extras.items()
            },
        }  # fmt: skip

    def _nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for key in self._seen:
            *parents, last = key.split("/")
            inside = nested
            for parent in parents:
                inside = inside.setdefault(parent, {})
            inside[last] = values[key]
        return nested

    def check(self, step: Mapping[str, np.ndarray]) -> None:
        """Refuse a step of other fields."""
        if step.keys() != self.fields.keys():
            raise InvalidInputError(
                f"a step with the keys {sorted(self.fields)} expected, found {sorted(step)}"
            )
        for key, value in step.items():
            shape, dtype = self.fields[key]
            if value.shape != shape:
                raise ShapeError(f"{key}: shape {shape} expected, found {value.shape}")
            if not np.can_cast(value.dtype, dtype, "same_kind"):
                raise DtypeError(f"{key}: {dtype} expected, found {value.dtype}")

    def row(self, step: Mapping[str, np.ndarray], lane: int) -> dict[str, Any]:
        """The arguments of `ReplayBuffer.add`; episodes and rewards are noted where a step says
        them, for those who look into the store."""
        for key, value in step.items():
            self._values[key][lane] = value
        mask = np.arange(self._workers) == lane
        is_last = bool(step.get("is_last", False))
        is_terminal = is_last and bool(step.get("is_terminal", False))
        reward = step.get("reward")
        is_number = reward is not None and reward.ndim == 0 and reward.dtype.kind in "fiub"
        shown = {key: self._shown(value) for key, value in self._values.items()}
        return {
            "observation": self._nested(shown) or {"nothing": self._shown(self._nothing)},
            "action": shown.get("action", self._shown(self._nothing)),
            "reward": self._shown(mask * np.float32(reward if is_number else 0)),
            "terminated": self._shown(mask & is_terminal),
            "truncated": self._shown(mask & (is_last and not is_terminal)),
            "mask": mask,
            **{name: shown[key] for key, name in self.extras.items()},
        }

    def _shown(self, array: np.ndarray) -> Any:
        return array if self._workers > 1 else array[0]

    def data(self, batch: SequenceBatch) -> dict[str, np.ndarray]:
        """A batch as the original has it."""
        data = {}
        for key in self.fields:
            if key in self.extras:
                data[key] = batch[self.extras[key]]
            elif key == "action":
                data[key] = batch.action
            else:
                found: Any = batch.observation
                for part in key.split("/"):
                    found = found[part]
                data[key] = found
        data["stepid"] = step_ids(batch.id)
        if "is_first" in data:
            # The buffer's own: an episode that was cut, by a restart say, does not go on.
            data["is_first"] |= batch.is_first.astype(data["is_first"].dtype)
            data["is_first"][:, 0] = True
            if "is_last" in data:
                follows = data["is_first"][:, 1:] != 0
                data["is_last"][:, :-1] |= follows.astype(data["is_last"].dtype)
        return data


def step_ids(ids: np.ndarray) -> np.ndarray:
    """Row ids as the original's 20 bytes: zeros, then the number."""
    out = np.zeros((*ids.shape, STEP_BYTES), np.uint8)
    out[..., -8:] = ids.astype(">i8")[..., None].view(np.uint8)
    return out


def row_ids(steps: Any) -> np.ndarray:
    """The opposite of `step_ids`."""
    steps = np.ascontiguousarray(steps, np.uint8)
    if steps.shape[-1:] != (STEP_BYTES,):
        raise ShapeError(f"stepid: (batch, steps, {STEP_BYTES}) expected, found {steps.shape}")
    return np.ascontiguousarray(steps[..., -8:]).view(">i8")[..., 0].astype(np.int64)


def _box(shape: tuple[int, ...], dtype: np.dtype) -> spaces.Box:
    if dtype.kind not in "fbiu":
        raise DtypeError(f"numbers expected, found {dtype} of shape {shape}")
    return box(shape, dtype)


def _dict(nested: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict({key: _dict(v) if isinstance(v, dict) else v for key, v in nested.items()})

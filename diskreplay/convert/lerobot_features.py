"""Which field of a store is which feature of a LeRobot data set, and the values of both.

=========================== ========================================================================
the field                   is the feature
=========================== ========================================================================
``observation``             ``observation.image`` if it is a picture, else ``observation.state``
``observation/door``        ``observation.door``; a picture ``observation.images.door``; a key that
                            begins with ``observation.`` keeps its name
``action``, ``action/arm``  ``action``, ``action.arm``
``reward``                  ``next.reward``
``terminated``,             ``next.done`` (one of both), ``next.truncated``
``truncated``
an extra ``grip``           ``complementary_info.grip``
=========================== ========================================================================

A picture is uint8 of shape (h, w), (h, w, 1 or 3) or (1 or 3, h, w); or, where a key begins with
``observation.image``, of floats from 0 to 1, which become the nearest of 256 steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from diskreplay.buffer import ReplayBuffer
from diskreplay.errors import InvalidInputError
from diskreplay.stored_space import StoredSpace

IMAGE, IMAGES, STATE, ACTION = (
    "observation.image", "observation.images.", "observation.state", "action",
)  # fmt: skip
REWARD, DONE, TRUNCATED = "next.reward", "next.done", "next.truncated"
MORE = "complementary_info."
_MOST_AXES = 5  # of a feature's shape that LeRobot reads
_COUNTERS = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
    "task_index": "int64",
}  # fmt: skip


class Feature(NamedTuple):
    """A field and its feature: `key` is what the data set calls it. Shape and dtype are those of a
    row of the field."""

    field: str
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    is_picture: bool

    @classmethod
    def of(cls, field: str, key: str, shape: tuple[int, ...], dtype: np.dtype) -> Self:
        """The feature of a field of a store. `key` is its own one in a nested space, "" if it is in
        none."""
        wanted = dtype == np.uint8 or (dtype.kind == "f" and key.startswith(IMAGE))
        is_picture = wanted and picture_shape(shape) is not None
        if key.startswith("observation."):
            name = key
        elif key:
            name = (IMAGES if is_picture else "observation.") + key.replace("/", ".")
        else:
            name = IMAGE if is_picture else STATE
        return cls(field, name, shape, dtype, is_picture)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape in the data set: a number is an array of one, and a picture has three
        colours."""
        if self.is_picture:
            height, width = picture_shape(self.shape) or (0, 0)
            return height, width, 3
        return self.shape or (1,)

    def as_pictures(self, values: np.ndarray) -> np.ndarray:
        """Rows of the field as pictures, uint8 of shape (n, h, w, 3): a view of `values` where that
        can be, read-only if it has one colour. An `InvalidInputError` if there are floats outside 0
        to 1."""
        if self.dtype.kind == "f":
            if not ((values >= 0) & (values <= 1)).all():
                raise InvalidInputError(
                    f"{self.field}: pictures of floats from 0 to 1 expected, found values from "
                    f"{values.min()} to {values.max()}"
                )
            values = np.rint(values * 255).astype(np.uint8)
        height, width = picture_shape(self.shape) or (0, 0)
        if self.shape[-1] not in (1, 3) or len(self.shape) == 2:
            values = values.reshape(len(values), -1, height, width)
            values = np.moveaxis(values, 1, -1)
        return np.broadcast_to(values, (len(values), height, width, 3))

    def of_pictures(self, pictures: np.ndarray) -> np.ndarray:
        """The opposite of `as_pictures`: of the field's shape and dtype, floats from 0 to 1."""
        if len(self.shape) == 2:
            values = pictures[..., 0]
        elif self.shape[-1] in (1, 3):
            values = pictures[..., : self.shape[-1]]
        else:
            values = np.moveaxis(pictures[..., : self.shape[0]], -1, 1)
        if self.dtype.kind == "f":
            values = values.astype(self.dtype) / self.dtype.type(255)
        return np.ascontiguousarray(values)

    def info(self, kind: str) -> dict[str, Any]:
        """What ``info.json`` says of it. `kind`: whether pictures are stored as "video" or
        "image"."""
        names: list[str] | None = ["height", "width", "channels"] if self.is_picture else None
        dtype = kind if self.is_picture else self.dtype.name
        return {"dtype": dtype, "shape": list(self.feature_shape), "names": names}


def picture_shape(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of a picture of shape (h, w), (h, w, 1 or 3) or (1 or 3, h, w), with sides
    of 8 pixels and more; None if it is none."""
    if len(shape) == 2:
        found = shape
    elif len(shape) == 3 and shape[-1] in (1, 3):
        found = shape[:2]
    elif len(shape) == 3 and shape[0] in (1, 3):
        found = shape[1:]
    else:
        return None
    return (found[0], found[1]) if min(found) >= 8 else None


def features_of(buffer: ReplayBuffer) -> list[Feature]:
    """The features of the observations, actions and extras of a buffer. An `InvalidInputError` if
    two fields would have one name, or a field has more axes than LeRobot reads."""
    observation = StoredSpace.of(buffer.observation_space, "observation")
    action = StoredSpace.of(buffer.action_space, "action")
    made = own_features(observation, action, buffer.extras)
    seen: dict[str, str] = {}
    for feature in made:
        if (other := seen.setdefault(feature.key, feature.field)) != feature.field:
            raise InvalidInputError(
                f"{other!r} and {feature.field!r} would both be the feature {feature.key!r}"
            )
        if len(feature.shape) > _MOST_AXES:
            raise InvalidInputError(
                f"{feature.field}: {_MOST_AXES} axes at most expected, found shape {feature.shape}"
            )
    return made


def own_features(
    observation: StoredSpace, action: StoredSpace, extras: Mapping[str, Sequence[Any]]
) -> list[Feature]:
    """The same of these spaces and extras, shape and dtype of each, without a check."""
    return [
        *(
            Feature.of(name, name.partition("/")[2], shape, dtype)
            for name, shape, dtype in observation.leaves
        ),
        *(
            Feature(name, name.replace("/", "."), shape, dtype, False)
            for name, shape, dtype in action.leaves
        ),
        *(
            Feature(name, MORE + name, tuple(shape), np.dtype(dtype), False)
            for name, (shape, dtype, *_mutable) in extras.items()
        ),
    ]


def describe(features: Iterable[Feature], kind: str) -> dict[str, Any]:
    """The features as ``info.json`` lists them, with rewards, ends and counters. `kind` is that of
    `Feature.info`."""
    flag: dict[str, Any] = {"shape": [1], "names": None}
    return {
        **{feature.key: feature.info(kind) for feature in features},
        REWARD: {"dtype": "float32", **flag},
        DONE: {"dtype": "bool", **flag},
        TRUNCATED: {"dtype": "bool", **flag},
        **{name: {"dtype": dtype, **flag} for name, dtype in _COUNTERS.items()},
    }


def foreign(described: Mapping[str, Mapping[str, Any]]) -> list[Feature]:
    """The features of a data set that others wrote, of ``features`` in ``info.json``, as fields of
    a store: observations are a Dict by the features' own names, pictures are uint8 with the
    channels last.

    Text, and what has a meaning of its own in a data set, is left out. A ``KeyError``,
    ``TypeError`` or ``ValueError`` if they are damaged.
    """
    made = []
    for key, about in described.items():
        shape = tuple(int(length) for length in about["shape"])
        is_picture = about["dtype"] in ("video", "image")
        if is_picture and shape[-1] not in (1, 3):
            shape = (*shape[1:], shape[0])
        if about["dtype"] == "string" or key in (*_COUNTERS, REWARD, DONE, TRUNCATED):
            continue
        dtype = np.dtype(np.uint8 if is_picture else about["dtype"])
        field = f"observation/{key}" if key.startswith("observation.") else key
        if not is_picture and shape == (1,) and field == key != ACTION:
            shape = ()
        made.append(Feature(field, key, shape, dtype, is_picture))
    return made

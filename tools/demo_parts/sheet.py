"""The contact sheet: sampled transitions, one beside the other."""

from pathlib import Path

import cv2
import numpy as np

import diskreplay
from demo_parts.training import ACTIONS

_SCALE = 2
_GAP = 8
_LABEL = 26
_COLUMNS = 2
_PAPER, _INK, _MARK = (250, 250, 250), (40, 40, 40), (200, 120, 0)  # BGR


def draw(batch: diskreplay.Batch, path: Path) -> None:
    """Write a PNG of the transitions of a batch: the stack, oldest frame first, and what came next.

    `path` must end with ``.png``.
    """
    cells = [_cell(batch, i) for i in range(len(batch))]
    rows = [np.hstack(cells[i : i + _COLUMNS]) for i in range(0, len(cells), _COLUMNS)]
    if not cv2.imwrite(str(path), np.vstack(rows)):
        raise OSError(f"{path}: could not be written")


def _cell(batch: diskreplay.Batch, i: int) -> np.ndarray:
    stack = [_enlarged(frame) for frame in batch.observation[i]]
    following = _enlarged(batch.next_observation[i, -1])
    height, width = following.shape[:2]
    cell = np.full(
        (_LABEL + height + 2 * _GAP, (len(stack) + 1) * (width + _GAP) + 5 * _GAP, 3),
        _PAPER, np.uint8,
    )  # fmt: skip
    left = 2 * _GAP
    for frame in stack:
        _place(cell, frame, left)
        left += width + _GAP
    left += _GAP
    _place(cell, following, left)
    cv2.rectangle(cell, (left - 3, _LABEL - 3), (left + width + 2, _LABEL + height + 2), _MARK, 2)
    _write(cell, _described(batch, i), 2 * _GAP, _INK)
    ending = ", game over" if batch.terminated[i] else ""
    steps = int(batch.steps[i])
    _write(cell, f"{steps} step{'s' * (steps > 1)} on{ending}", left, _MARK)
    return cell


def _described(batch: diskreplay.Batch, i: int) -> str:
    return (
        f"id {batch.id[i]}   {ACTIONS[batch.action[i]]}   return {batch.reward[i]:+.2f}   "
        f"discount {batch.discount[i]:.2f}   weight {batch.weight[i]:.2f}"
    )


def _enlarged(frame: np.ndarray) -> np.ndarray:
    big = cv2.resize(frame, None, fx=_SCALE, fy=_SCALE, interpolation=cv2.INTER_NEAREST)
    return cv2.cvtColor(big, cv2.COLOR_GRAY2BGR)


def _place(cell: np.ndarray, picture: np.ndarray, left: int) -> None:
    height, width = picture.shape[:2]
    cell[_LABEL : _LABEL + height, left : left + width] = picture


def _write(cell: np.ndarray, text: str, left: int, colour: tuple[int, int, int]) -> None:
    cv2.putText(
        cell, text, (left, _LABEL - 9), cv2.FONT_HERSHEY_SIMPLEX, 0.45, colour, 1, cv2.LINE_AA
    )

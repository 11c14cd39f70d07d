"""Contact sheets, read back with Pillow."""

import numpy as np
import pytest

from diskreplay.errors import InvalidInputError, ShapeError, StorageError
from diskreplay.pictures.sheet import save_sheet

Image = pytest.importorskip("PIL.Image")

COLOURS = np.random.default_rng(0).integers(0, 256, (7, 3), np.uint8)


def squares(side=168):
    """Frames of one colour each."""
    return np.broadcast_to(COLOURS[:, None, None], (7, side, side, 3))


def read(path):
    """A picture's format and its pixels as (h, w, 3)."""
    with Image.open(path) as image:
        return image.format, np.asarray(image.convert("RGB"))


def found(path):
    """Where each colour is on the sheet: (left, top, right, bottom)."""
    _format, sheet = read(path)
    boxes = []
    for colour in COLOURS:
        rows, columns = np.nonzero((sheet == colour).all(axis=-1))
        boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
    return np.array(boxes)


@pytest.mark.costly(1)
@pytest.mark.parametrize("columns", [1, 3, 7, 20])
def test_frames_are_in_reading_order(tmp_path, columns):
    path = save_sheet(squares(), tmp_path / "sheet.png", columns)
    boxes = found(path)
    assert (boxes[:, 2:] - boxes[:, :2] == 168).all()
    in_line = min(columns, 7)
    for at, box in enumerate(boxes):
        assert box[0] == boxes[at % in_line, 0]
        assert box[1] == boxes[at - at % in_line, 1]
    assert len(np.unique(boxes[:, 0])) == in_line


def test_small_frames_are_enlarged_by_whole_steps(tmp_path):
    frame = np.random.default_rng(1).integers(0, 256, (1, 84, 84), np.uint8)
    _format, sheet = read(save_sheet(frame, tmp_path / "s.png"))
    np.testing.assert_array_equal(
        sheet[24 : 24 + 168, 24 : 24 + 168, 0], frame[0].repeat(2, 0).repeat(2, 1)
    )


def test_captions_and_title_need_room(tmp_path):
    _format, plain = read(save_sheet(squares(), tmp_path / "a.png", 4))
    captions = ["a\nb"] * 7
    path = save_sheet(squares(), tmp_path / "b.png", 4, captions=captions, title="x" * 500)
    _format, named = read(path)
    assert named.shape[1] == plain.shape[1]
    assert named.shape[0] > plain.shape[0]
    boxes = found(tmp_path / "b.png")
    assert (boxes[:, 2:] - boxes[:, :2] == 168).all()


@pytest.mark.parametrize("ending", ["png", "JPG", "webp"])
def test_formats(tmp_path, ending):
    path = save_sheet(squares(20), tmp_path / f"sheet.{ending}")
    assert read(path)[0] == {"png": "PNG", "JPG": "JPEG", "webp": "WEBP"}[ending]


def test_transparent_frames(tmp_path):
    frames = np.zeros((1, 168, 168, 4), np.uint8)
    _format, sheet = read(save_sheet(frames, tmp_path / "s.png"))
    assert (sheet == sheet[0, 0]).all()


def test_refusals(tmp_path):
    with pytest.raises(InvalidInputError, match=r"\.png"):
        save_sheet(squares(), tmp_path / "sheet.txt")
    with pytest.raises(InvalidInputError, match="captions: 7 expected, found 1"):
        save_sheet(squares(), tmp_path / "s.png", captions=["one"])
    with pytest.raises(InvalidInputError, match="at least one"):
        save_sheet(np.zeros((0, 4, 4), np.uint8), tmp_path / "s.png")
    with pytest.raises(InvalidInputError, match="columns"):
        save_sheet(squares(), tmp_path / "s.png", 0)
    with pytest.raises(InvalidInputError, match="draw fewer"):
        save_sheet(np.broadcast_to(np.uint8(0), (40_000, 100, 100)), tmp_path / "s.png")
    with pytest.raises(ShapeError):
        save_sheet(np.zeros((3, 4)), tmp_path / "s.png")
    (tmp_path / "s.png").mkdir()
    with pytest.raises(StorageError):
        save_sheet(squares(), tmp_path / "s.png")

"""GIFs, read back with Pillow."""

import numpy as np
import pytest

from diskreplay.errors import InvalidInputError, ShapeError
from diskreplay.pictures.animation import save_gif

Image = pytest.importorskip("PIL.Image")


def read(path):
    """Every frame as (h, w, 3), and how long each is shown, in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
            durations.append(image.info["duration"])
        return np.array(frames), durations, image.info.get("loop")


def noise(*shape):
    """Frames of up to 256 colours each."""
    palette = np.random.default_rng(0).integers(0, 256, (200, *shape[3:]), np.uint8)
    return palette[np.random.default_rng(1).integers(0, 200, shape[:3])]


@pytest.mark.parametrize("shape", [(6, 20, 30), (6, 20, 30, 3), (6, 20, 30, 1)])
def test_frames_are_exact(tmp_path, shape):
    frames = noise(*shape)
    shown, durations, loop = read(save_gif(frames, tmp_path / "a.gif", scale=1))
    np.testing.assert_array_equal(
        shown, np.broadcast_to(frames.reshape(6, 20, 30, -1), (6, 20, 30, 3))
    )
    assert durations == [70] * 6
    assert loop == 0


def test_parts_are_one_animation(tmp_path):
    frames = noise(7, 10, 12)
    parts = iter([frames[:3], frames[3:4], frames[4:]])
    one = save_gif(frames, tmp_path / "one.gif", fps=50).read_bytes()
    assert save_gif(parts, tmp_path / "parts.gif", fps=50).read_bytes() == one
    shown, durations, _loop = read(tmp_path / "parts.gif")
    assert len(shown) == 7
    assert set(durations) == {20}


def test_small_frames_are_enlarged(tmp_path):
    frames = noise(2, 84, 84)
    shown, *_rest = read(save_gif(frames, tmp_path / "a.gif"))
    np.testing.assert_array_equal(shown[..., 0], frames.repeat(3, 1).repeat(3, 2))


def test_equal_frames_take_their_time(tmp_path):
    frames = np.repeat(noise(2, 9, 9), [3, 1], axis=0)
    shown, durations, _loop = read(save_gif(frames, tmp_path / "a.gif", fps=10, scale=1))
    np.testing.assert_array_equal(shown[..., 0], frames[[0, 3]])
    assert durations == [300, 100]


def test_refusals(tmp_path):
    frames = noise(2, 9, 9)
    with pytest.raises(InvalidInputError, match=r"\.gif"):
        save_gif(frames, tmp_path / "a.png")
    with pytest.raises(InvalidInputError, match="fps"):
        save_gif(frames, tmp_path / "a.gif", fps=0)
    with pytest.raises(InvalidInputError, match="at least one"):
        save_gif(frames[:0], tmp_path / "a.gif")
    with pytest.raises(InvalidInputError, match="at least one"):
        save_gif(iter([]), tmp_path / "a.gif")
    with pytest.raises(ShapeError):
        save_gif(np.zeros(4), tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())

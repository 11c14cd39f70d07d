"""Pictures as videos and as PNG, by PyAV: written one after the other, and read in that order."""

import contextlib
import io
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from diskreplay.errors import FormatError, InvalidInputError
from diskreplay.extensions import needed
from diskreplay.store.system_errors import check_lost

Pictures = Literal["av1", "h264", "lossless", "png"]


_SKIPPED = 64  # frames that are sooner decoded than a place is looked for


class _Codec(NamedTuple):
    name: str
    pixels: str
    options: dict[str, str]
    smallest: int
    even: bool
    fastest: int | None  # frames a second; None: whatever `to_lerobot` takes


# A key frame every second frame, as in LeRobot's own: single frames are asked for.
_CODECS = {
    "av1": _Codec("libsvtav1", "yuv420p", {"g": "2", "crf": "30"}, 64, True, 240),
    "h264": _Codec("libx264", "yuv420p", {"g": "2", "crf": "23", "bf": "0"}, 16, True, None),
    "lossless": _Codec("libx264rgb", "rgb24", {"g": "2", "qp": "0", "bf": "0"}, 8, False, None),
}


def check(pictures: str, fps: int, key: str, height: int, width: int) -> None:
    """Refuse, by an `InvalidInputError`, pictures that a codec has no videos of: it is not there,
    or cannot have them of this size or with so many frames a second. Errors call them `key`."""
    codec = _CODECS.get(pictures)
    if codec is None:  # PNG has all of them
        return
    is_odd = codec.even and (height % 2 or width % 2)
    if is_odd or min(height, width) < codec.smallest:
        raise InvalidInputError(
            f"{key}: {height}x{width} pictures cannot be {pictures} videos, whose sides are even "
            f"and at least {codec.smallest}; choose pictures='lossless' or 'png'"
        )
    if codec.fastest is not None and fps > codec.fastest:
        raise InvalidInputError(
            f"fps: {pictures} videos have at most {codec.fastest} frames a second, found {fps}; "
            f"choose {_others(pictures)}"
        )
    if codec.name not in pyav().codecs_available:
        raise InvalidInputError(
            f"pictures: this PyAV has no {codec.name}; choose another one of {[*_CODECS, 'png']}"
        )


def _others(pictures: str) -> str:
    """The choices beside this one, as an error names them."""
    *most, last = [each for each in (*_CODECS, "png") if each != pictures]
    return f"pictures={', '.join(map(repr, most))} or {last!r}"


class VideoWriter:
    """A video that is being written, `frames` and `size` in bytes so far. An `InvalidInputError` if
    the encoder refuses such a video."""

    def __init__(self, path: Path, fps: int, pictures: str, height: int, width: int) -> None:
        av, codec = pyav(), _CODECS[pictures]
        self.path, self.frames, self.size, self._fps = path, 0, 0, fps
        os.environ.setdefault("SVT_LOG", "1")  # its encoder tells everything otherwise
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w")
        self._stream = self._container.add_stream(codec.name, fps, options=dict(codec.options))
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = codec.pixels
        try:
            with _scheduled_as_before():
                self._stream.codec_context.open(strict=False)
        except av.error.FFmpegError as error:  # a limit that `check` does not know
            self._container.close()
            raise InvalidInputError(
                f"{path}: the {pictures} encoder refuses {height}x{width} pictures, {fps} a "
                f"second ({error}); choose {_others(pictures)}"
            ) from error

    def write(self, pictures: np.ndarray) -> None:
        """Add pictures, uint8 of shape (n, h, w, 3)."""
        frame_type = pyav().VideoFrame
        for picture in pictures:
            frame = frame_type.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = self.frames
            self._put(frame)
            self.frames += 1

    def _put(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self.size += packet.size
            self._container.mux(packet)

    def info(self) -> dict[str, Any]:
        """What ``info.json`` says of the video."""
        context = self._stream.codec_context
        return {
            "video.height": self._stream.height, "video.width": self._stream.width,
            "video.codec": context.codec.canonical_name, "video.pix_fmt": self._stream.pix_fmt,
            "video.is_depth_map": False, "video.fps": self._fps,
            "video.channels": 3, "has_audio": False,
        }  # fmt: skip

    def close(self) -> None:
        """Write what the encoder has left, and close the file."""
        try:
            self._put(None)
        finally:
            self._container.close()


@contextlib.contextmanager
def _scheduled_as_before() -> Iterator[None]:
    """Where root opens it, SVT-AV1 gives its threads, and the one that opens it, the highest
    real-time priority: for as long as they live, nothing else on the machine would run beside
    them. Here they get back the scheduling that the caller had."""
    if not hasattr(os, "sched_getscheduler") or not os.path.isdir("/proc/self/task"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    before = set(os.listdir("/proc/self/task"))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
        for thread in set(os.listdir("/proc/self/task")) - before:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(int(thread)) != policy:
                    os.sched_setscheduler(int(thread), policy, parameters)


class VideoReader:
    """The frames of a video by their number; fast in the order in which they lie. A `FormatError`
    if there is no video that can be read."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path, self._fps = path, fps
        try:
            self._container = pyav().open(str(path))
            self._stream = self._container.streams.video[0]
        except (OSError, ValueError, IndexError) as error:
            check_lost(error, path, "cannot read it")
            raise FormatError(f"{path}: no video that can be read ({error})") from error
        self._stream.thread_type = "AUTO"
        self._frames: Iterator[Any] = self._container.decode(self._stream)
        self._next = 0

    def read(self, start: int, count: int) -> np.ndarray:
        """Frame number `start` and those behind it, uint8 of shape (count, h, w, 3). A
        `FormatError` if they are not all there, or the decoder has noticed that one is damaged."""
        if not 0 <= start - self._next < _SKIPPED:  # to the key frame before it
            second = start / self._fps / self._stream.time_base
            self._container.seek(int(second), stream=self._stream)
            self._frames = self._container.decode(self._stream)
        found: list[np.ndarray] = []
        while len(found) < count:
            frame = next(self._frames, None)
            if frame is None:
                raise FormatError(
                    f"{self.path}: frames {start} to {start + count - 1} expected, and it ends "
                    f"with frame {self._next - 1}"
                )
            number = round(float(frame.pts * frame.time_base) * self._fps)
            self._next = number + 1
            if number >= start:
                if number != start + len(found):
                    raise FormatError(
                        f"{self.path}: frame {start + len(found)} is missing: {number} comes next"
                    )
                if frame.is_corrupt:  # the decoder has made it up from those around it
                    raise FormatError(f"{self.path}: frame {number} is damaged")
                found.append(frame.to_ndarray(format="rgb24"))
        return np.stack(found)

    def close(self) -> None:
        """Let go of the file."""
        self._container.close()


def png(picture: np.ndarray) -> bytes:
    """A picture, uint8 of shape (h, w, 3), as the bytes of a PNG file."""
    av = pyav()
    context = av.CodecContext.create("png", "w")
    context.height, context.width = picture.shape[:2]
    context.pix_fmt, context.time_base = "rgb24", Fraction(1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode()])


def from_png(data: bytes) -> np.ndarray:
    """The picture, uint8 of shape (h, w, 3), in the bytes of a file: a PNG or whatever else FFmpeg
    knows. A `FormatError` if it cannot be read."""
    try:
        with pyav().open(io.BytesIO(data)) as container:
            frame = next(container.decode(video=0))
    except (OSError, ValueError, StopIteration) as error:
        raise FormatError(f"no picture that can be read ({error})") from error
    picture: np.ndarray = frame.to_ndarray(format="rgb24")
    return picture


def pyav() -> Any:
    """The module ``av``, or an error that says how to get it."""
    with needed("LeRobot data sets are written with PyAV", "lerobot"):
        import av
    return av

"""LeRobot data sets: what is written is what was recorded, and it comes back."""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings

av = pytest.importorskip("av")
pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import diskreplay  # noqa: E402
from diskreplay import FormatError, InvalidInputError, StorageError  # noqa: E402
from diskreplay.convert import lerobot, lerobot_videos, lerobot_writer  # noqa: E402
from diskreplay.convert.lerobot import from_lerobot, to_lerobot  # noqa: E402
from tests import processes  # noqa: E402
from tests.convert.recorded import STREAM, Recorded  # noqa: E402
from tests.effort import effort  # noqa: E402

KINDS = ["av1", "h264", "lossless", "png"]
ENDS = [(7, "T"), (5, "t"), (1, "U"), (6, "cut"), (3, "cut with"), (4, "u"), (5, "open")]


def picture(number, shape=(64, 96, 3)):
    """One that no other one is like: a bright bar at a place of its own."""
    high, wide = (shape[0], shape[1]) if shape[-1] == 3 or len(shape) == 2 else shape[1:]
    found = np.full((high, wide), 40, np.uint8)
    found[:, number * 3 % wide :][:, :9] = 220
    if len(shape) == 2:
        return found
    return np.stack([found, 255 - found, found // 2], axis=-1 if shape[-1] == 3 else 0)


def seen(number):
    return {
        "cam": picture(number), "grey": picture(number, (64, 64)),
        "first": picture(number, (3, 64, 64)),
        "pose": np.float32([number, 1, 2]), "door": number % 5, "m": np.full((2, 2), number / 1000),
    }  # fmt: skip


@pytest.fixture(scope="module")
def buffer():
    """Episodes with every kind of end."""
    space = Dict({
        "cam": Box(0, 255, (64, 96, 3), np.uint8), "grey": Box(0, 255, (64, 64), np.uint8),
        "first": Box(0, 255, (3, 64, 64), np.uint8), "pose": Box(-9, 9, (3,), np.float32),
        "door": Discrete(5), "m": Box(-1, 1, (2, 2), np.float64),
    })  # fmt: skip
    made = diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Box(-1, 1, (2,), np.float32), capacity=None,
        extras={"grip": ((), "float32"), "k": ((2,), "int8")}, metadata={"env_id": "Door-v0"},
    )  # fmt: skip
    number = 0
    for length, end in ENDS:
        for step in range(length):
            over = step == length - 1
            last = seen(100 + number) if over and end in ("T", "U") else None
            made.add(
                seen(number), np.float32([number / 100, -1]), number / 2, over and end in "Tt",
                over and end in "Uu", last, grip=number, k=[number, -number],
            )  # fmt: skip
            number += 1
        if end == "cut":
            made.end_episode()
        elif end == "cut with":
            made.end_episode(next_observation=seen(100 + number))
    yield made
    made.close()


def table(root):
    """All frames as a dict of columns, read without any of the package."""
    parts = [pq.read_table(path) for path in sorted((root / "data").glob("*/*.parquet"))]
    rows = [row for part in parts for row in part.to_pylist()]
    return {name: [row[name] for row in rows] for name in rows[0]}


def episodes(root):
    paths = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def frames(path):
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written(tmp_path, buffer, kind):
    root = to_lerobot(buffer, tmp_path / "set", pictures=kind, fps=20, task="Öffne die Tür")
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"]) == ("v3.0", 20, 7)
    assert info["total_frames"] == sum(length for length, _ in ENDS)
    found, about = table(root), episodes(root)
    lengths = [length for length, _ in ENDS]
    assert [each["length"] for each in about] == lengths
    assert [each["dataset_to_index"] for each in about] == np.cumsum(lengths).tolist()
    assert found["episode_index"] == np.repeat(np.arange(7), lengths).tolist()
    assert found["frame_index"] == [i for length in lengths for i in range(length)]
    assert found["index"] == list(range(sum(lengths)))
    np.testing.assert_allclose(found["timestamp"], np.array(found["frame_index"]) / 20, rtol=1e-6)
    done = [i == n - 1 and end in "TtUu" for n, end in ENDS for i in range(n)]
    assert found["next.done"] == done
    cut_off = [i == n - 1 and end in "Uu" for n, end in ENDS for i in range(n)]
    assert found["next.truncated"] == cut_off
    assert found["next.reward"] == [i / 2 for i in range(sum(lengths))]
    assert found["observation.pose"] == [[i, 1, 2] for i in range(sum(lengths))]
    assert found["observation.m"][3] == [[0.003, 0.003], [0.003, 0.003]]
    assert found["complementary_info.k"][4] == [4, -4]
    tasks = pytest.importorskip("pandas").read_parquet(root / "meta/tasks.parquet")
    assert tasks.to_dict() == {"task_index": {"Öffne die Tür": 0}}
    if kind == "png":
        assert info["video_path"] is None
        assert info["features"]["observation.images.cam"]["dtype"] == "image"
        return
    for name, expected in (("cam", picture(9)), ("grey", picture(9, (64, 64))[..., None])):
        assert info["features"][f"observation.images.{name}"]["dtype"] == "video"
        (path,) = (root / f"videos/observation.images.{name}").glob("*/*.mp4")
        shown = frames(path)
        assert len(shown) == sum(lengths)
        starts = [each[f"videos/observation.images.{name}/from_timestamp"] for each in about]
        np.testing.assert_allclose(starts, np.cumsum([0, *lengths[:-1]]) / 20)
        error = np.abs(
            shown[9].astype(int)
            - expected.reshape(64, -1, expected.size // 64 // expected.shape[1])
        )
        assert error.mean() < (0.1 if kind == "lossless" else 8)


def nearest(values, shape):
    """Which of the pictures each one is."""
    known = np.stack([picture(number, shape) for number in range(32)]).astype(int)
    return [
        int(np.abs(known - value).mean(axis=(1, 2, 3)[: value.ndim]).argmin()) for value in values
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back(tmp_path, buffer, kind):
    root = to_lerobot(buffer, tmp_path / "set", pictures=kind)
    with from_lerobot(root, tmp_path / "back") as back:
        assert back.bounds.tolist() == buffer.bounds.tolist()
        assert back.extras == buffer.extras
        assert back.metadata == buffer.metadata
        ids = np.arange(buffer.bounds[0, 1])
        final = buffer.take("is_final", ids)
        for field, (shape, _dtype) in buffer.fields.items():
            found, expected = back.take(field, ids), buffer.take(field, ids)
            assert found.dtype == expected.dtype
            if len(shape) < 2 or min(shape[-2:]) == 2 or kind in ("lossless", "png"):
                np.testing.assert_array_equal(found, expected, err_msg=field)
                continue
            np.testing.assert_array_equal(found[final], expected[final])  # these without loss
            error = np.abs(found.astype(int) - expected)
            assert error.mean() < 8
            assert nearest(found[~final][:31], shape) == list(range(31))
        np.testing.assert_array_equal(back.sampleable_ids(), buffer.sampleable_ids())


def expected_rows(recorded):
    """The rows of the store that comes back, by the docstring's table."""
    found = []
    for first, env, episode in recorded.starts():
        kept = recorded.rows[env]
        rows = [row for row in kept[first:] if row["episode"] == episode]
        piece = []
        for row in rows:
            if row["is_final"] and not piece:
                continue  # a frame before the first transition, or a second one
            ended = row["terminated"]
            piece.append(row | {"truncated": row["truncated"] and not ended})
            if row["is_final"]:
                found, piece = found + piece, []
        found += piece
    return found


@settings(max_examples=effort(8, 25))
@given(stream=STREAM)
def test_any_stream_comes_back(stream):
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lerobot, "_PIECE_BYTES", 100)  # a row or two at a time
        recorded = Recorded(Path(place, "store"), **(stream | {"prioritized": False}))
        expected = expected_rows(recorded)
        with recorded.buffer as buffer:
            if not expected:
                with pytest.raises(InvalidInputError, match="no transition"):
                    to_lerobot(buffer, Path(place, "set"))
                assert not Path(place, "set").exists()
                return
            to_lerobot(buffer, Path(place, "set"))
        with from_lerobot(Path(place, "set"), Path(place, "back")) as back:
            assert back.bounds.tolist() == [[0, len(expected)]]
            for field, (shape, dtype) in back.fields.items():
                values = np.array([row[field] for row in expected], dtype).reshape(-1, *shape)
                found = back.take(field, np.arange(len(expected)))
                np.testing.assert_array_equal(found, values, err_msg=field)


def test_each_episode_in_files_of_its_own(tmp_path, buffer, monkeypatch):
    for limit in ("_DATA_BYTES", "_VIDEO_BYTES", "_EPISODES_AT_ONCE"):
        monkeypatch.setattr(lerobot_writer, limit, -1)
    monkeypatch.setattr(lerobot_writer, "_CHUNK", 3)
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")
    about = episodes(root)
    assert [(e["data/chunk_index"], e["data/file_index"]) for e in about] == [
        divmod(number, 3) for number in range(7)
    ]
    assert (root / "videos/observation.images.cam/chunk-002/file-000.mp4").is_file()
    assert (root / "meta/episodes/chunk-002/file-000.parquet").is_file()
    with from_lerobot(root, tmp_path / "back", episodes=[4, 0, 4]) as back:
        ids = np.arange(back.bounds[0, 1])
        rewards = back.take("reward", ids)[~back.take("is_final", ids)]
        assert rewards.tolist() == [9.5, 10, 10.5, *np.arange(7) / 2, 9.5, 10, 10.5]
        shown = back.take("observation/cam", ids)
        np.testing.assert_array_equal(shown[0], picture(19))
        np.testing.assert_array_equal(shown[3], picture(100 + 22))  # what its end led to


def test_figures(tmp_path, buffer):
    root = to_lerobot(buffer, tmp_path / "set", pictures="png")
    stats = json.loads((root / "meta/stats.json").read_text())
    rewards = np.arange(31) / 2
    found = stats["next.reward"]
    assert [found[name][0] for name in ("min", "max", "count")] == [0, 15, 31]
    np.testing.assert_allclose([found["mean"][0], found["std"][0]], [rewards.mean(), rewards.std()])
    shown = np.stack([picture(number) for number in range(31)]).reshape(-1, 3) / 255
    found = stats["observation.images.cam"]
    np.testing.assert_allclose(np.ravel(found["mean"]), shown.mean(axis=0))
    np.testing.assert_allclose(np.ravel(found["std"]), shown.std(axis=0))
    assert np.shape(found["q50"]) == (3, 1, 1)
    first = episodes(root)[0]
    quantiles = [first[f"stats/next.reward/{q}"][0] for q in ("q01", "q50", "q99")]
    np.testing.assert_allclose(quantiles, np.quantile(rewards[:7], [0.01, 0.5, 0.99]))


def test_what_others_wrote(tmp_path, buffer):
    """Without our own notes: observations by the features' names, and no final observations."""
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")
    shutil.rmtree(root / "diskreplay")
    with from_lerobot(root, tmp_path / "back", prioritized=True, stack_size=2) as back:
        assert isinstance(back, diskreplay.PrioritizedReplayBuffer)
        assert set(back.extras) == {"grip", "k"}
        assert back.fields["observation/observation.images.cam"] == ((64, 96, 3), np.uint8)
        ids = np.arange(31)
        assert back.bounds.tolist() == [[0, 31]]
        ends = np.cumsum([length for length, _ in ENDS]) - 1
        terminated, truncated = back.take(["terminated", "truncated"], ids)
        assert np.flatnonzero(terminated).tolist() == ends[:2].tolist()
        assert np.flatnonzero(truncated).tolist() == ends[2:].tolist()
        cam = back.take("observation/observation.images.cam", ids)
        np.testing.assert_array_equal(cam[17], picture(17))
        grey = back.take("observation/observation.images.grey", ids)
        np.testing.assert_array_equal(grey[17, ..., 1], picture(17, (64, 64)))
    again = to_lerobot(diskreplay.open(tmp_path / "back"), tmp_path / "again", pictures="lossless")
    names = [json.loads((r / "meta/info.json").read_text())["features"] for r in (root, again)]
    assert names[0].keys() == names[1].keys()


def test_pictures_of_floats(tmp_path):
    """As HIL-SERL has them: from 0 to 1, the channels first."""
    space = Dict({"observation.image": Box(0, 1, (3, 16, 24), np.float32)})
    with diskreplay.ReplayBuffer(
        None, observation_space=space, action_space=Discrete(2), capacity=None
    ) as made:
        values = np.random.default_rng(0).random((5, 3, 16, 24), np.float32)
        for value in values:
            made.add({"observation.image": value}, 1, 0.0, False, False)
        root = to_lerobot(made, tmp_path / "set", pictures="png")
        with from_lerobot(root, tmp_path / "back") as back:
            found = back.take("observation/observation.image", np.arange(5))
        assert found.dtype == np.float32
        assert np.abs(found - values).max() <= 0.5 / 255 + 1e-6
        made.add({"observation.image": values[0] * 300}, 1, 0.0, False, False)
        with pytest.raises(InvalidInputError, match="from 0 to 1"):
            to_lerobot(made, tmp_path / "other", pictures="png")
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pictures": "gif"}, "'gif'"), ({"fps": 0}, "fps"), ({"fps": 2.5}, "fps"),
        ({"fps": 241}, r"fps: av1 .* 240 .* found 241; .*'h264', 'lossless' or 'png'"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, buffer, options, words):
    with pytest.raises(InvalidInputError, match=words):
        to_lerobot(buffer, tmp_path / "set", **options)
    assert not list(tmp_path.iterdir())


def test_what_an_encoder_refuses(tmp_path):
    """A guard for limits that nobody here knows."""
    with pytest.raises(InvalidInputError, match=r"x\.mp4: .* 64x96 .* 500 .*pictures='h264'"):
        lerobot_videos.VideoWriter(tmp_path / "x.mp4", 500, "av1", 64, 96)


def test_other_videos_may_be_faster(tmp_path, buffer):
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless", fps=500)
    with from_lerobot(root, tmp_path / "back") as back:
        ids = np.arange(buffer.bounds[0, 1])
        for field in ("observation/cam", "reward"):
            np.testing.assert_array_equal(back.take(field, ids), buffer.take(field, ids))


def test_sizes_that_no_video_has(tmp_path):
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(0, 255, (33, 40), np.uint8), action_space=Discrete(2),
        capacity=None,
    ) as made:  # fmt: skip
        made.add(picture(1, (33, 40)), 1, 0.0, True, False)
        for kind in ("av1", "h264"):
            with pytest.raises(InvalidInputError, match=r"observation\.image: 33x40"):
                to_lerobot(made, tmp_path / "set", pictures=kind)
        root = to_lerobot(made, tmp_path / "set", pictures="lossless")
        with from_lerobot(root, tmp_path / "back") as back:
            np.testing.assert_array_equal(back.take("observation", [0])[0], picture(1, (33, 40)))
        with pytest.raises(InvalidInputError, match="overwrite"):
            to_lerobot(made, root, pictures="png")
        to_lerobot(made, root, pictures="png", overwrite=True)
        assert not (root / "videos").exists()
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("all of it")
        with pytest.raises(InvalidInputError, match="no LeRobot data set"):
            to_lerobot(made, tmp_path / "mine", overwrite=True)


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling is told by /proc")
def test_no_thread_is_a_real_time_one(tmp_path):
    """SVT-AV1 makes its own so where root opens it, and the one that opens it."""
    code = """
import os, sys
from pathlib import Path
import numpy as np
from diskreplay.convert.lerobot_videos import VideoWriter

def scheduled():
    return {os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")}

before = scheduled()
writer = VideoWriter(Path(sys.argv[1]), 10, "av1", 64, 64)
assert len(os.listdir("/proc/self/task")) > 3
assert scheduled() == before, scheduled()
writer.write(np.zeros((4, 64, 64, 3), np.uint8))
assert scheduled() == before, scheduled()
writer.close()
"""
    processes.run(code, tmp_path / "video.mp4", check=True, imports=("av",))


def cut_video(root):
    path = root / "videos/observation.images.cam/chunk-000/file-000.mp4"
    path.write_bytes(path.read_bytes()[:100])


def other_version(root):
    path = root / "meta/info.json"
    path.write_text(path.read_text().replace("v3.0", "v2.1"))


def fewer_frames(root):
    path = root / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path).slice(0, 20), path)


@pytest.mark.costly(3)
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda root: (root / "meta/info.json").unlink(), "no LeRobot data set"),
        (lambda root: (root / "meta/info.json").write_text("{}"), "damaged"),
        (other_version, "v2.1"), (cut_video, "no video"), (fewer_frames, "frames"),
        (lambda root: (root / "data/chunk-000/file-000.parquet").write_bytes(b"x"), "Parquet"),
        (lambda root: shutil.rmtree(root / "meta/episodes"), "no episode"),
        (lambda root: (root / "diskreplay/final.parquet").write_bytes(b"x"), "Parquet"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path, buffer, harm, words):
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")
    harm(root)
    with pytest.raises(FormatError, match=words):
        from_lerobot(root, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_frame_that_a_decoder_has_made_up_is_refused(tmp_path, buffer):
    """H.264 shows the frame before in the place of a damaged one, and says so beside it."""
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")
    (path,) = root.glob("videos/observation.images.cam/*/*.mp4")

    def read():
        with contextlib.closing(lerobot_videos.VideoReader(path, 30)) as reader:
            return reader.read(0, 20)

    whole, frames, refused = path.read_bytes(), read(), []
    for at in range(len(whole) // 4, len(whole) * 3 // 4, len(whole) // 40):
        path.write_bytes(
            whole[:at] + bytes(byte ^ 0x5A for byte in whole[at:][:4]) + whole[at + 4 :]
        )
        try:
            np.testing.assert_array_equal(read(), frames)
        except (FormatError, av.FFmpegError) as error:
            refused.append(str(error))
    assert any("is damaged" in text for text in refused)


@pytest.mark.parametrize(("module", "opens"), [(pq, "ParquetFile"), (av, "open")])
def test_what_the_system_refuses_is_not_taken_for_damage(
    tmp_path, buffer, monkeypatch, module, opens
):
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")

    def refuse(path, *_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(module, opens, refuse)
    with pytest.raises(StorageError, match="cannot read it"):
        from_lerobot(root, tmp_path / "back")


def changed(root, where, change):
    """Give one of the Parquet files other columns."""
    (path,) = root.glob(where)
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def put(name, make):
    """Replace a column by what `make` makes of its values."""
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, [make(table[name].to_pylist())]
    )


DATA, ABOUT, FINAL = "data/*/*.parquet", "meta/episodes/*/*.parquet", "diskreplay/*.parquet"
LACKS = [
    *((DATA, name) for name in (
        "action", "observation.pose", "complementary_info.k", "episode_index", "next.reward",
        "next.done", "next.truncated",
    )),
    *((ABOUT, name) for name in (
        "length", "data/chunk_index", "data/file_index",
        "videos/observation.images.cam/from_timestamp",
    )),
    (FINAL, "observation/pose"), (FINAL, "episode_index"),
]  # fmt: skip


@pytest.mark.costly(4)
@pytest.mark.parametrize(("where", "name"), LACKS)
def test_a_column_that_is_missing_is_named(tmp_path, buffer, where, name):
    root = to_lerobot(buffer, tmp_path / "set", pictures="h264")
    changed(root, where, lambda table: table.drop([name]))
    with pytest.raises(FormatError, match=name.split("/")[-1]):
        from_lerobot(root, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("where", "name", "make"),
    [
        (DATA, "action", lambda values: [str(value) for value in values]),
        (DATA, "action", lambda values: [{"a": 1.0} for _ in values]),
        (DATA, "action", lambda values: [[7.0, None] for _ in values]),
        (DATA, "observation.m", lambda values: [[[None, 1.0], [1.0, 1.0]] for _ in values]),
        (DATA, "next.reward", lambda values: [None for _ in values]),
        (ABOUT, "length", lambda values: [None for _ in values]),
        (ABOUT, "length", lambda values: [0 for _ in values]),
        (ABOUT, "length", lambda values: ["7" for _ in values]),
    ],
)
def test_columns_of_other_values_are_refused(tmp_path, buffer, where, name, make):
    root = to_lerobot(buffer, tmp_path / "set", pictures="h264")
    changed(root, where, put(name, make))
    with pytest.raises(FormatError):
        from_lerobot(root, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", ["png", "h264"])
@pytest.mark.parametrize(
    "harm",
    [
        lambda info: info.update(data_path="{bad}"),
        lambda info: info.update(data_path=5),
        lambda info: info.update(video_path="{bad}"),
        lambda info: info["features"]["observation.images.cam"].pop("dtype"),
    ],
)
def test_an_info_that_says_something_else(tmp_path, buffer, kind, harm):
    root = to_lerobot(buffer, tmp_path / "set", pictures=kind)
    info = json.loads((root / "meta/info.json").read_text())
    harm(info)
    (root / "meta/info.json").write_text(json.dumps(info))
    if kind == "png" and info["video_path"] == "{bad}":
        from_lerobot(root, tmp_path / "back").close()  # there are no videos
        return
    with pytest.raises(FormatError):
        from_lerobot(root, tmp_path / "back")


def test_a_picture_that_is_missing(tmp_path, buffer):
    root = to_lerobot(buffer, tmp_path / "set", pictures="png")
    (path,) = root.glob(DATA)
    table, name = pq.read_table(path), "observation.images.cam"
    type_ = table.schema.field(name).type
    values = pyarrow.array([None, *table[name].to_pylist()[1:]], type_)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, [values]), path)
    with pytest.raises(FormatError):
        from_lerobot(root, tmp_path / "back")


def test_episodes_that_count_from_the_last(tmp_path, buffer):
    root = to_lerobot(buffer, tmp_path / "set", pictures="h264")
    lengths = [length for length, _end in ENDS]
    for episodes in ([-1], [-1, 0, -7], [np.int64(-2)]):
        with from_lerobot(root, tmp_path / "back", episodes=episodes, overwrite=True) as back:
            assert back.episodes().rows.tolist() == [lengths[at] for at in episodes]
    for wrong in ([1.5], ["a"], [None], 5, [True], "0", [[0]], [7], [-8]):
        with pytest.raises(InvalidInputError, match=r"^episode"):
            from_lerobot(root, tmp_path / "back", episodes=wrong, overwrite=True)


def test_texts_that_no_file_has(tmp_path, buffer):
    """As where a name on the disk is no text: Python has it with half a character."""
    for task in ("n\udcff", 5):
        with pytest.raises(InvalidInputError, match=r"^task: a text expected"):
            to_lerobot(buffer, tmp_path / "set", task=task)
    with pytest.raises(InvalidInputError, match="names in UTF-8"):
        to_lerobot(buffer, tmp_path / "n\udcff")
    with diskreplay.ReplayBuffer(
        tmp_path / "s\udcff", observation_space=Box(-1, 1, (2,), np.float32),
        action_space=Discrete(3), capacity=None,
    ) as other:  # fmt: skip
        for _ in range(3):
            other.add(np.zeros(2), 0, 1.0, False, False)
        root = to_lerobot(other, tmp_path / "set")
        assert "s\ufffd" in str(pq.read_table(root / "meta/tasks.parquet").to_pylist())
        with pytest.raises(InvalidInputError, match=r"^pictures"):  # though there are none
            to_lerobot(other, tmp_path / "other", pictures="x")


def test_an_episode_that_is_not_there(tmp_path, buffer):
    root = to_lerobot(buffer, tmp_path / "set", pictures="lossless")
    with pytest.raises(InvalidInputError, match="episode 7"):
        from_lerobot(root, tmp_path / "back", episodes=[0, 7])


def evicted(tmp_path):
    """A data set of 23 steps, of which the first episode lacks its first 3 and was cut after 5; the
    next one has 15."""
    with diskreplay.ReplayBuffer(
        None, observation_space=Box(-999, 999, (1,), np.float32), stack_size=4, capacity=20,
        action_space=Box(-1, 1, (1,), np.float32),
    ) as buffer:  # fmt: skip
        for step in range(23):
            buffer.add([step], [0.0], 1.0, False, False)
            if step == 7:
                buffer.end_episode()
        ids = np.sort(buffer.sampleable_ids())
        return to_lerobot(buffer, tmp_path / "set"), buffer.gather(ids).observation


def described(root, change):
    """Change what the file of final observations says of the buffer."""
    path = root / "diskreplay" / "final.parquet"
    found = pq.read_table(path)
    document = json.loads(found.schema.metadata[b"diskreplay"])
    change(document)
    pq.write_table(found.replace_schema_metadata({"diskreplay": json.dumps(document)}), path)


def test_stacks_of_an_evicted_beginning_are_not_made_up(tmp_path):
    root, stacks = evicted(tmp_path)
    with from_lerobot(root, tmp_path / "back") as back:
        found = back.gather(np.sort(back.sampleable_ids())).observation
        np.testing.assert_array_equal(found, stacks)
        assert back.take("step", np.arange(20)).tolist() == [*range(3, 8), *range(15)]
    described(root, lambda document: document.pop("first_steps"))  # as versions before wrote it
    with from_lerobot(root, tmp_path / "old") as back:
        assert back.take("step", np.arange(20)).tolist() == [*range(5), *range(15)]


def test_a_part_whose_steps_count_on_by_chance_begins_an_episode(tmp_path):
    root, _stacks = evicted(tmp_path)
    described(root, lambda document: document.update(first_steps={"0": 15}))
    for chosen in ([1, 0], [1, -2]):
        with from_lerobot(root, tmp_path / f"back{chosen[1]}", episodes=chosen) as back:
            assert back.take("step", np.arange(20)).tolist() == list(range(20))
            assert back.episodes().rows.tolist() == [15, 5]


@pytest.mark.parametrize("told", [5, [], {"x": 1}, {"0": 0}, {"0": -3}, {"0": 2**31}, {"0": "3"}])
def test_first_steps_that_say_something_else(tmp_path, told):
    root, _stacks = evicted(tmp_path)
    described(root, lambda document: document.update(first_steps=told))
    with pytest.raises(FormatError, match=r"final\.parquet: damaged"):
        from_lerobot(root, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_data_set_that_is_replaced_while_it_is_read_makes_no_mixture(tmp_path, buffer):
    options = {"fps": 10, "pictures": "png"}
    to_lerobot(buffer, tmp_path / "l", **options)

    def replace(amount, total):
        to_lerobot(buffer, tmp_path / "l", overwrite=True, **options)

    with pytest.raises(StorageError, match="replaced while it was read"):
        from_lerobot(tmp_path / "l", tmp_path / "back", progress=replace)
    assert not (tmp_path / "back").exists()


def test_a_directory_that_comes_meanwhile_stays(tmp_path, buffer):
    def come(amount, total):
        (tmp_path / "l").mkdir(exist_ok=True)
        (tmp_path / "l" / "notes").write_text("theirs")

    for overwrite, words in ((False, "is there already"), (True, "no LeRobot data set")):
        with pytest.raises(InvalidInputError, match=words):
            to_lerobot(buffer, tmp_path / "l", pictures="png", overwrite=overwrite, progress=come)
        assert [path.name for path in (tmp_path / "l").iterdir()] == ["notes"]
        shutil.rmtree(tmp_path / "l")

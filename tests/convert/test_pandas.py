"""Data frames, row by row against what was recorded."""

import io
import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

import diskreplay
from diskreplay.errors import InvalidInputError, NotSampleableError, UnknownIdError
from tests.convert.recorded import STREAM, Recorded, few_examples

pandas = pytest.importorskip("pandas")

from diskreplay.convert.pandas import iter_frames, to_pandas  # noqa: E402

SPREAD = {"action": 2, "choices": 4}
modest = few_examples(20)


def check_rows(frame, expected, vectors="spread"):
    """`frame` has just these transitions, each value of each column."""
    assert list(frame.index) == [row["id"] for row in expected]
    for (id_, found), row in zip(frame.iterrows(), expected, strict=True):
        for name in ("env", "row", "episode", "step", "reward", "terminated", "truncated",
                     "log_prob", "env_"):  # fmt: skip
            assert found[name] == row[name], (id_, name)
        assert math.isclose(found["return_to_go"], row["return_to_go"], rel_tol=1e-9)
        for name, parts in SPREAD.items():
            value = np.reshape(row[name], -1)
            if vectors == "array":
                np.testing.assert_array_equal(found[name], row[name])
            else:
                assert [found[f"{name}_{i}"] for i in range(parts)] == value.tolist()


@modest
@given(stream=STREAM, gamma=st.sampled_from([1.0, 1.0, 0.5, 0.0]), chunk=st.integers(1, 9))
def test_every_transition_once(tmp_path_factory, stream, gamma, chunk):
    recorded = Recorded(tmp_path_factory.mktemp("s") / "store", **stream)
    with recorded.buffer as buffer:
        expected = recorded.transitions(gamma)
        frame = to_pandas(buffer, gamma=gamma)
        check_rows(frame, expected)
        arrays = to_pandas(buffer, vectors="array", gamma=gamma)
        check_rows(arrays, expected, "array")
        pieces = list(iter_frames(buffer, gamma=gamma, chunk_rows=chunk))
        assert all(0 < len(piece) <= chunk for piece in pieces)
        if pieces:
            pandas.testing.assert_frame_equal(pandas.concat(pieces), frame)


@modest
@given(stream=STREAM, data=st.data())
def test_some_transitions(tmp_path_factory, stream, data):
    recorded = Recorded(tmp_path_factory.mktemp("s") / "store", **stream)
    with recorded.buffer as buffer:
        expected = recorded.transitions()
        if not expected:
            return
        numbers = sorted({row["episode"] for row in expected})
        some = data.draw(st.lists(st.sampled_from(numbers), max_size=4))
        check_rows(to_pandas(buffer, episodes=some), [r for r in expected if r["episode"] in some])
        newest = [row for row in expected if row["episode"] == numbers[-1]]
        check_rows(to_pandas(buffer, episodes=-1), newest)
        for wrong in ("x", [[0]], [None], [1.5], 1.5, [True], {"a"}):
            with pytest.raises(InvalidInputError, match="episode: an integer expected"):
                to_pandas(buffer, episodes=wrong)
        with pytest.raises(InvalidInputError, match="columns: a list of names expected"):
            to_pandas(buffer, columns=5)
        ids = data.draw(st.lists(st.sampled_from([row["id"] for row in expected])))
        check_rows(to_pandas(buffer, ids=ids), [row for row in expected if row["id"] in ids])


@modest
@given(stream=STREAM)
def test_observations(tmp_path_factory, stream):
    image = pytest.importorskip("PIL.Image")
    recorded = Recorded(tmp_path_factory.mktemp("s") / "store", **stream)
    with recorded.buffer as buffer:
        expected = recorded.transitions()
        arrays = to_pandas(buffer, observations="array")
        raw = to_pandas(buffer, observations="bytes")
        png = to_pandas(buffer, observations="png")
        assert list(arrays.index) == [row["id"] for row in expected]
        for i, row in enumerate(expected):
            for name in ("observation/camera", "observation/pose", "observation/door"):
                np.testing.assert_array_equal(arrays[name].iloc[i], row[name])
            assert raw["observation/camera"].iloc[i] == row["observation/camera"].tobytes()
            assert raw["observation/pose"].iloc[i] == row["observation/pose"].tobytes()
            picture = image.open(io.BytesIO(png["observation/camera"].iloc[i]))
            np.testing.assert_array_equal(np.asarray(picture), row["observation/camera"])
            np.testing.assert_array_equal(png["observation/pose"].iloc[i], row["observation/pose"])


ONE_OF_EACH = {
    "ticks": [[("on", True, True)] * 3, [("terminated", True, True)] * 3, [("on", True, True)] * 3],
    "num_envs": 3, "rows_per_env": None, "prioritized": False, "seed": 3,
}  # fmt: skip


@pytest.fixture
def recorded(tmp_path):
    made = Recorded(tmp_path / "store", **ONE_OF_EACH)
    yield made
    made.buffer.close()


DTYPES = {
    "env": "category", "row": "int64", "episode": "int64", "step": "int32", "action_0": "float32",
    "action_1": "float32", "reward": "float32", "terminated": "bool", "truncated": "bool",
    "return_to_go": "float64", "env_": "int16", "log_prob": "float32",
    **{f"choices_{i}": "int8" for i in range(4)},
}  # fmt: skip


def test_columns_and_dtypes(recorded):
    frame = to_pandas(recorded.buffer)
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == DTYPES
    assert list(frame.columns) == list(DTYPES)
    assert (frame.index.name, str(frame.index.dtype)) == ("id", "int64")
    assert list(frame["env"].cat.categories) == [0, 1, 2]


def test_an_empty_buffer_has_the_same_columns(tmp_path):
    with Recorded(tmp_path / "s", **{**ONE_OF_EACH, "ticks": []}).buffer as buffer:
        frame = to_pandas(buffer, observations="png")
        assert len(frame) == 0
        seen = ["observation/camera", "observation/door", "observation/pose"]
        assert sorted(frame.columns) == sorted([*DTYPES, *seen])
        assert {n: str(frame[n].dtype) for n in DTYPES} == DTYPES
        assert list(iter_frames(buffer)) == []


def test_columns_are_chosen(recorded):
    buffer = recorded.buffer
    assert list(to_pandas(buffer, ["reward", "action", "row"]).columns) == [
        "reward", "action_0", "action_1", "row",
    ]  # fmt: skip
    assert list(to_pandas(buffer, ["action_1"]).columns) == ["action_1"]
    seen = to_pandas(buffer, ["observation/pose"], observations="array")
    assert list(seen.columns) == ["observation/pose"]


def test_what_is_not_asked_for_is_not_read(recorded, monkeypatch):
    read = []
    real = recorded.buffer.take
    monkeypatch.setattr(
        recorded.buffer, "take", lambda field, *a, **k: read.append(field) or real(field, *a, **k)
    )
    to_pandas(recorded.buffer, ["return_to_go"])
    assert set(read) <= {"step", "is_final", "terminated", "truncated", "reward"}
    to_pandas(recorded.buffer)
    assert not any(name.startswith("observation") for name in read)


def test_a_frame_is_a_copy(recorded):
    frame = to_pandas(recorded.buffer, observations="array")
    before = recorded.buffer.take("observation/pose", [frame.index[0]])
    frame["observation/pose"].iloc[0][:] = -1
    np.testing.assert_array_equal(
        recorded.buffer.take("observation/pose", [frame.index[0]]), before
    )


def test_frames_are_bounded_in_bytes(recorded):
    whole = to_pandas(recorded.buffer, observations="bytes")
    pieces = list(iter_frames(recorded.buffer, observations="bytes", chunk_bytes=1))
    assert [len(piece) for piece in pieces] == [1] * len(whole)
    pandas.testing.assert_frame_equal(pandas.concat(pieces), whole)


def test_memory_is_bounded(tmp_path):
    """A store of 40 MB of frames passes as PNGs through a few chunks of one."""
    import tracemalloc

    pytest.importorskip("PIL.Image")
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Box(0, 255, (100, 100), np.uint8),
        action_space=Discrete(2), capacity=None,
    ) as buffer:  # fmt: skip
        rows = 4000
        columns = {name: np.zeros((rows, *shape), dtype)
                   for name, (shape, dtype) in buffer.fields.items()}  # fmt: skip
        columns["step"] = np.arange(rows)
        buffer.extend(columns)
        del columns
    with diskreplay.open(tmp_path / "s") as buffer:  # nothing is packed, which would be counted
        next(iter_frames(buffer, observations="png", chunk_bytes=1 << 20))  # imports, first use
        tracemalloc.start()
        seen = sum(
            len(piece) for piece in iter_frames(buffer, observations="png", chunk_bytes=1 << 20)
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert seen == rows
    assert peak < 8 << 20


def test_huge_rewards_stay_in_their_episode(tmp_path):
    with diskreplay.ReplayBuffer(
        tmp_path / "s", observation_space=Discrete(2), action_space=Discrete(2), capacity=None
    ) as buffer:
        for reward in (3e38, 0.25, 0.5):
            buffer.add(0, 0, reward, reward == 3e38, False)
        assert to_pandas(buffer)["return_to_go"].tolist()[1:] == [0.75, 0.5]


def test_a_live_store_is_followed(tmp_path):
    recorded = Recorded(tmp_path / "store", **{**ONE_OF_EACH, "rows_per_env": 9})
    with recorded.buffer, diskreplay.open(tmp_path / "store") as reader:
        check_rows(to_pandas(reader), recorded.transitions())
        for _ in range(20):
            recorded.tick([("on", True, True)] * 3)
            check_rows(to_pandas(reader), recorded.transitions())


def test_rows_that_leave_while_they_are_read_are_left_out(tmp_path):
    recorded = Recorded(tmp_path / "store", **{**ONE_OF_EACH, "rows_per_env": 200})
    for _ in range(300):
        recorded.tick([("on", True, True)] * 3)
    with recorded.buffer as buffer:
        before = len(recorded.rows[0])
        pieces = iter_frames(buffer, chunk_rows=50)
        found = [next(pieces)]
        for _ in range(30):
            recorded.tick([("on", True, True)] * 3)
        found += list(pieces)
    ids = pandas.concat(found).index.to_numpy()
    assert (np.diff(ids) > 0).all()
    kept = {row["id"] for row in recorded.transitions()}
    assert kept - set(ids.tolist()) == {
        row["id"] for row in recorded.transitions() if row["row"] >= before
    }


def test_a_checkpoint(tmp_path, recorded):
    path = recorded.buffer.save(tmp_path / "checkpoints", 1)
    with diskreplay.open(path) as checkpoint:
        check_rows(to_pandas(checkpoint), recorded.transitions())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"columns": ["nonsense"]}, InvalidInputError),
        ({"columns": "reward"}, InvalidInputError),
        ({"columns": ["action_0", "action_0"]}, InvalidInputError),
        ({"columns": ["action_0", "action"]}, InvalidInputError),
        ({"columns": ["observation/pose"]}, InvalidInputError),
        ({"observations": "jpeg"}, InvalidInputError),
        ({"vectors": "no"}, InvalidInputError),
        ({"gamma": 1.5}, InvalidInputError),
        ({"gamma": "1"}, InvalidInputError),
        ({"episodes": [6]}, InvalidInputError),
        ({"episodes": 0, "ids": [0]}, InvalidInputError),
        ({"ids": [0.5]}, InvalidInputError),
        ({"ids": [-1]}, UnknownIdError),
        ({"ids": [10**9]}, UnknownIdError),
        ({"ids": [6]}, NotSampleableError),  # a final row
    ],
)
def test_bad_arguments(recorded, arguments, error):
    with pytest.raises(error):
        to_pandas(recorded.buffer, **arguments)
    with pytest.raises(error):
        iter_frames(recorded.buffer, **arguments)


@pytest.mark.parametrize("arguments", [{"chunk_rows": 0}, {"chunk_bytes": -1}, {"chunk_rows": 1.5}])
def test_bad_chunks(recorded, arguments):
    with pytest.raises(InvalidInputError):
        iter_frames(recorded.buffer, **arguments)


def test_evicted_ids(tmp_path):
    recorded = Recorded(tmp_path / "s", **{**ONE_OF_EACH, "rows_per_env": 3})
    with recorded.buffer as buffer, pytest.raises(NotSampleableError, match="evicted"):
        to_pandas(buffer, ids=[0])

"""What copies of stores have of views of sequences, of parts of episodes, and of mutable fields."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.convert.copying import convert, merge, trim

VIEWS = {
    "ranked": {"prioritized": True, "ends": "pad", "alpha": 0.7},
    "fresh": {"online": True, "ends": "shift"},
}


def make(path, steps=40, first=0, num_envs=2, capacity=200, **views):
    """Steps of two envs with a part of an episode behind a cut one, and views that were used."""
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 255, (2,), "uint8"), action_space=Discrete(3),
        capacity=capacity, num_envs=num_envs,
        extras={"n": ((), "int64"), "h": ((2,), "float32", "mutable")},
    )  # fmt: skip

    def extend(low, high, step):
        rows = np.arange(low, high)
        for env in range(num_envs):
            buffer.extend({
                "observation": np.zeros((len(rows), 2), np.uint8), "action": rows * 0,
                "reward": np.ones(len(rows), np.float32), "terminated": rows == steps - 1,
                "truncated": rows < 0, "step": rows - low + step, "is_final": rows < 0,
                "n": first + rows * num_envs + env, "h": np.zeros((len(rows), 2), np.float32),
            }, env=env)  # fmt: skip
        buffer.end_episode()

    extend(0, steps // 2, 0)
    extend(steps // 2, steps, steps // 2)
    opened = [buffer.sequences(3, name=name, **asked) for name, asked in (views or VIEWS).items()]
    extend(steps, steps + 6, 0)
    for view in opened:
        if view.options.prioritized:
            anchors = view.anchors()
            view.update_priorities(anchors, 1 + (first + anchors) % 7)
    ids = np.arange(steps * num_envs)
    buffer.write("h", ids, np.repeat((ids + first)[:, None], 2, axis=1))
    buffer.flush()
    return buffer


def ranks(buffer):
    """The priority, up to a factor, of the window of each anchor, by the number in its row."""
    view = buffer.sequences(3, name="ranked", **VIEWS["ranked"])
    batch = view.gather(view.anchors())
    numbers = buffer.take("n", batch.anchor)
    powers = batch.probability / batch.probability.max()
    return dict(zip(numbers.tolist(), powers.round(12).tolist(), strict=True)), view


def expected(numbers, top=7):
    return {n: round(((1 + n % 7) / top) ** 0.7, 12) for n in numbers}


def test_a_copy_has_the_views_and_the_parts_of_episodes(tmp_path):
    with make(tmp_path / "store") as buffer:
        wanted, view = ranks(buffer)
        assert wanted == expected(wanted)
        assert buffer.begins == (40, 41)
        fresh = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
        convert(buffer, tmp_path / "copy")
        handed_out = fresh.sample(4).anchor.tolist()
        largest = view._view.anchors.largest
    assert verify(tmp_path / "copy").findings == ()
    with diskreplay.open(tmp_path / "copy", mode="a") as copy:
        found, view = ranks(copy)
        assert found == wanted
        assert view._view.anchors.largest == largest == 7
        assert copy.begins == (40, 41)
        assert len(copy.episodes().env) == 6
        fresh = copy.sequences(3, name="fresh", **VIEWS["fresh"])
        assert fresh.sample(4).anchor.tolist() == handed_out
        assert copy.extras["h"] == ((2,), np.float32, "mutable")
        assert copy.take("h", [7]).tolist() == [[7, 7]]
        assert copy.write("h", [7], [[1, 1]]) == 0


def test_new_windows_that_were_put_back_are_new_in_a_copy(tmp_path):
    with make(tmp_path / "store") as buffer:
        fresh = buffer.sequences(3, name="fresh", **VIEWS["fresh"])
        with fresh.prefetch(2, 2) as batches:
            next(batches)
            fresh.sample(2)
        buffer.flush()
        convert(buffer, tmp_path / "copy")
        merge([buffer], tmp_path / "merged")
        new = fresh.anchors()[fresh.anchors() >= 80].tolist()
        wanted = [fresh.sample(2).anchor.tolist() for _ in range(len(new) // 2 - 2)]
        assert len(new) == 8
    for path in ("copy", "merged"):
        with diskreplay.open(tmp_path / path, mode="a") as copy:
            fresh = copy.sequences(3, name="fresh", **VIEWS["fresh"])
            assert [fresh.sample(2).anchor.tolist() for _ in wanted] == wanted


def test_trimmed_rows_keep_theirs(tmp_path):
    with make(tmp_path / "store") as buffer:
        trim(buffer, tmp_path / "small", 60)
    with diskreplay.open(tmp_path / "small") as small:
        assert small.take("n", [0, 1]).tolist() == [32, 33]
        assert small.begins == (8, 9)
        found, _view = ranks(small)
        assert found == expected(found)
        assert len(found) > 30


def test_merged_stores_have_those_of_all(tmp_path):
    with make(tmp_path / "one") as one, make(tmp_path / "two", first=1000) as two:
        known = {*ranks(one)[0], *ranks(two)[0]}
        merge([one, two], tmp_path / "both")
    with diskreplay.open(tmp_path / "both") as both:
        found, _view = ranks(both)
        assert {n: found[n] for n in known} == expected(known)
        assert {found[n] for n in found.keys() - known} == {1.0}, "of the episode that was cut"
        assert {n >= 1000 for n in found} == {True, False}
        assert both.begins == (40, 41, 132, 133)


def test_a_view_of_other_options_is_left_out_with_a_warning(tmp_path):
    other = {"ranked": {**VIEWS["ranked"], "alpha": 0.5}}
    with make(tmp_path / "one") as one, make(tmp_path / "two", first=1000, **other) as two:
        known = set(ranks(one)[0])
        with pytest.warns(RuntimeWarning, match="alpha=0.7, not 0.5"):
            merge([one, two], tmp_path / "both")
    with diskreplay.open(tmp_path / "both") as both:
        found, _view = ranks(both)
        assert {n: found[n] for n in known} == expected(known)
        assert {found[n] for n in found.keys() - known} == {1.0}, "the largest priority"

"""Minari data sets: what is written is what was recorded, and it comes back."""

import gc
import shutil
import signal
import sys
import tempfile
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")
from minari.data_collector import EpisodeBuffer  # noqa: E402
from minari.namespace import list_local_namespaces  # noqa: E402

import diskreplay  # noqa: E402
from diskreplay import InvalidInputError  # noqa: E402
from diskreplay.convert.minari import from_minari, to_minari  # noqa: E402
from diskreplay.errors import DiskFullError, FormatError, StorageError  # noqa: E402
from diskreplay.store import files  # noqa: E402
from tests import processes  # noqa: E402

FORMATS = ["hdf5", "arrow", "parquet"]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Where Minari keeps its data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def make(path=None, *, kind=diskreplay.ReplayBuffer, **options):
    """A buffer of numbers: the observation is a running count."""
    defaults = {
        "observation_space": Box(-np.inf, np.inf, (2,), "float32"), "action_space": Discrete(100),
        "capacity": None,
    }  # fmt: skip
    return kind(path, **(defaults | options))


def seen(number):
    return np.float32([number, -number])


class Recording:
    """A buffer and, as plain lists, the Minari episodes that it should become."""

    def __init__(self, buffer):
        self.buffer, self.count, self.episodes = buffer, 0, []

    def episode(self, length, ending):
        """`ending`: "T" or "t", terminated with and without a final observation; "U" or "u",
        truncated likewise; "cut"."""
        observations, actions, rewards = [], [], []
        for step in range(length):
            over = step == length - 1
            self.count += 1
            last = seen(self.count + 0.5) if over and ending in ("T", "U") else None
            self.buffer.add(
                seen(self.count), self.count % 100, self.count / 2, over and ending in "Tt",
                over and ending in "Uu", last,
            )  # fmt: skip
            observations.append(seen(self.count))
            actions.append(self.count % 100)
            rewards.append(self.count / 2)
        if ending == "cut":
            self.buffer.end_episode()
        if ending in "TU":
            observations.append(seen(self.count + 0.5))
        elif ending == "t":
            observations.append(seen(0))
        else:
            actions.pop(), rewards.pop()
        steps = len(actions)
        if steps:
            ends = [False] * (steps - 1)
            terminated = ending in "Tt"
            self.episodes.append(
                {
                    "observations": observations, "actions": actions, "rewards": rewards,
                    "terminations": [*ends, terminated], "truncations": [*ends, not terminated],
                    "rows": steps + (ending != "t"),
                }
            )  # fmt: skip


def assert_written(dataset, episodes):
    assert len(dataset) == len(episodes)
    for found, expected in zip(dataset, episodes, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(found, name), expected[name], err_msg=name)


def assert_same_rows(ours, theirs):
    assert ours.fields == theirs.fields
    np.testing.assert_array_equal(ours.bounds, theirs.bounds)
    for env in range(ours.num_envs):
        ids = np.arange(*ours.bounds[env]) * ours.num_envs + env
        for name in ours.fields:
            np.testing.assert_array_equal(ours.take(name, ids), theirs.take(name, ids), name)


@pytest.mark.costly
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["T", "t", "U", "u", "cut"])),
        min_size=1, max_size=8,
    )
)  # fmt: skip
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_kind_of_ending(monkeypatch, episodes):
    with tempfile.TemporaryDirectory() as directory, make() as buffer:
        monkeypatch.setenv("MINARI_DATASETS_PATH", directory)
        recording = Recording(buffer)
        for length, ending in episodes:
            recording.episode(length, ending)
        expected = recording.episodes
        if not expected:
            with pytest.raises(InvalidInputError, match="no whole step"):
                to_minari(buffer, "random-v0")
            assert not (Path(directory) / "random-v0").exists()
            return
        dataset = to_minari(buffer, "random-v0")
        assert dataset.total_steps == sum(len(episode["actions"]) for episode in expected)
        assert_written(dataset, expected)
        with from_minari("random-v0", Path(directory, "back")) as back:
            step = [row for episode in expected for row in range(episode["rows"])]
            final = [
                row == len(episode["actions"])
                for episode in expected
                for row in range(episode["rows"])
            ]
            ids = np.arange(len(step))
            assert back.bounds.tolist() == [[0, len(step)]]
            np.testing.assert_array_equal(back.take("step", ids), step)
            np.testing.assert_array_equal(back.take("is_final", ids), final)
            rows = [seen for episode in expected for seen in episode["observations"]]
            made_up = [
                episode["rows"] == at
                for episode in expected
                for at in range(len(episode["observations"]))
            ]
            rows = [row for row, skipped in zip(rows, made_up, strict=True) if not skipped]
            np.testing.assert_array_equal(back.take("observation", ids), rows)
            assert_written(to_minari(back, "again-v0"), expected)


def test_an_open_episode_ends_before_its_newest_step():
    with make() as buffer:
        for number in (1, 2, 3):
            buffer.add(seen(number), number, 1.0, False, False)
        found = to_minari(buffer, "open-v0")[0]
    np.testing.assert_array_equal(found.observations, [seen(1), seen(2), seen(3)])
    np.testing.assert_array_equal(found.actions, [1, 2])
    assert found.truncations.tolist() == [False, True]
    assert not found.terminations.any()


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("kind", [diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer])
@pytest.mark.costly(2)
def test_nested_spaces_extras_and_stacks_come_back(data_format, kind, tmp_path):
    camera = Box(0, 255, (40, 36), "uint8")  # large enough for Minari to take it for a picture
    speed = Tuple((Box(-1, np.inf, (3,), "float32"), Discrete(4, start=-2)))
    buffer = make(
        kind=kind,
        observation_space=Dict({"speed": speed, "camera": camera}),
        action_space=Tuple((MultiDiscrete([3, 4]), MultiBinary(3))),
        stack_size=3, update_horizon=2, gamma=0.9,
        extras={"log_prob": ((), "float32"), "belief": ((2, 2), "uint16"), "greedy": ((), "bool")},
    )  # fmt: skip
    for space in (buffer.observation_space, buffer.action_space):
        space.seed(1)
    for step in range(40):
        end = step % 10 == 9
        buffer.add(
            buffer.observation_space.sample(), buffer.action_space.sample(), step,
            end and step < 20, end and step >= 20,
            buffer.observation_space.sample() if end else None,
            log_prob=-step / 3, belief=np.full((2, 2), step), greedy=step % 3 == 0,
        )  # fmt: skip
    dataset = to_minari(buffer, "nested-v3", data_format=data_format)
    assert dataset.observation_space == buffer.observation_space
    assert dataset.action_space == buffer.action_space
    assert dataset[1].observations["camera"].shape == (11, 40, 36)  # frames, and no stacks
    log_prob = dataset[1].infos["log_prob"]
    np.testing.assert_array_equal(log_prob, np.float32([0, *(-np.arange(10, 20) / 3)]))
    with from_minari("nested-v3", tmp_path / "back") as back:
        assert type(back) is kind
        assert (back.stack_size, back.update_horizon, back.gamma) == (3, 2, 0.9)
        assert back.observation_space == buffer.observation_space
        assert back.action_space == buffer.action_space
        assert_same_rows(buffer, back)
        ids = buffer.sampleable_ids()
        np.testing.assert_array_equal(ids, back.sampleable_ids())
        ours, theirs = buffer.gather(ids), back.gather(ids)
        for when in ("observation", "next_observation"):
            np.testing.assert_array_equal(ours[when]["camera"], theirs[when]["camera"])
        np.testing.assert_array_equal(ours.discount, theirs.discount)
    buffer.close()
    with diskreplay.open(tmp_path / "back") as again:
        assert len(again) == 40


def test_episodes_of_several_envs_are_not_mixed():
    with make(num_envs=3) as buffer:
        for step in range(12):
            observation = np.stack([seen(100 * env + step) for env in range(3)])
            ended = np.array([step == 11, step % 4 == 3, step % 6 == 5])
            actions, rewards, truncated = np.full(3, step), np.ones(3), np.zeros(3, bool)
            buffer.add(observation, actions, rewards, ended, truncated, observation + 0.5)
        dataset = to_minari(buffer, "several-v0")
    assert [len(episode) for episode in dataset] == [12, 4, 6, 4, 6, 4]
    for episode in dataset:
        env, numbers = episode.observations[0, 0] // 100, episode.observations[:, 0]
        np.testing.assert_array_equal(numbers // 100, env)
        np.testing.assert_array_equal(np.diff(numbers), [*[1] * (len(episode) - 1), 0.5])
        np.testing.assert_array_equal(episode.actions, numbers[:-1] % 100)


@pytest.mark.parametrize("data_format", FORMATS)
def test_seeds(data_format, tmp_path):
    extras = {"seed": ((), "int64")}
    with make(extras=extras) as buffer:
        for seed in (7, 7, 2**40, 2**40, -1, -1):
            end = buffer.add_count % 2 == 1
            buffer.add(seen(1), 0, 1.0, end, False, seen(2) if end else None, seed=seed)
        dataset = to_minari(buffer, "seeds-v0", data_format=data_format)
        found = [about.get("seed") for about in dataset.storage.get_episode_metadata(range(3))]
        assert found == [7, 2**40, None]
        with from_minari(dataset, tmp_path / "back") as back:
            assert_same_rows(buffer, back)


def test_frames_between_transitions_do_not_join_what_they_separate():
    with make() as buffer:
        buffer.add_frame(seen(1))
        buffer.add(seen(2), 2, 1.0, False, False)
        buffer.add(seen(3), 3, 1.0, False, False)
        buffer.add_frame(seen(4))
        buffer.add(seen(5), 5, 1.0, True, False, seen(6))
        first, second = to_minari(buffer, "frames-v0")
    np.testing.assert_array_equal(first.observations[:, 0], [2, 3, 4])
    assert first.truncations.tolist() == [False, True]
    np.testing.assert_array_equal(second.observations[:, 0], [5, 6])
    assert second.terminations.tolist() == [True]


def test_an_episode_whose_beginning_is_evicted():
    with make(capacity=20) as buffer:
        for step in range(50):
            buffer.add(seen(step), 0, 1.0, step == 45, False, seen(99) if step == 45 else None)
        first, second = to_minari(buffer, "evicted-v0")
    np.testing.assert_array_equal(first.observations[:, 0], [*range(31, 46), 99])
    np.testing.assert_array_equal(second.observations[:, 0], range(46, 50))


@pytest.mark.parametrize("data_format", FORMATS)
def test_stacks_of_an_evicted_beginning_are_not_made_up(data_format, tmp_path):
    with make(capacity=20, stack_size=4) as buffer:
        for step in range(50):
            buffer.add(seen(step), 0, 1.0, step == 45, False, seen(99) if step == 45 else None)
        dataset = to_minari(buffer, "evicted-v0", data_format=data_format)
        about = list(dataset.storage.get_episode_metadata(range(2)))
        assert [each.get("diskreplay_first_step") for each in about] == [31, None]
        with from_minari(dataset, tmp_path / "back") as back:
            ids, found = np.sort(buffer.sampleable_ids()), np.sort(back.sampleable_ids())
            np.testing.assert_array_equal(
                back.gather(found).observation, buffer.gather(ids).observation
            )
            assert back.take("step", np.arange(3)).tolist() == [31, 32, 33]
    # As versions before left it, and damaged.
    for told, fits in ((0, True), (-1, False), (2**31 - 15, False), ("x", False)):
        gc.collect()  # else the error before may have its file open, which h5py does not write to
        dataset.storage.update_episode_metadata([{"diskreplay_first_step": told}], [0])
        if fits:
            with from_minari(dataset, tmp_path / "old") as back:
                assert back.take("step", np.arange(3)).tolist() == [0, 1, 2]
        else:
            with pytest.raises(FormatError, match="first_step"):
                from_minari(dataset, tmp_path / "none")


def test_metadata_and_environment():
    with make(observation_space=Box(-10, 10, (4,), "float32"), action_space=Discrete(2)) as buffer:
        buffer.add(np.zeros(4), 0, 1.0, True, False, np.ones(4))
        to_minari(
            buffer, "cartpole/random-v1", environment="CartPole-v1", algorithm_name="none",
            author="A", author_email="a@example.org", description="one step",
        )  # fmt: skip
    dataset = minari.load_dataset("cartpole/random-v1")
    metadata = dataset.storage.metadata
    assert (metadata["algorithm_name"], metadata["author"]) == ("none", {"A"})
    assert dataset.observation_space == Box(-10, 10, (4,), "float32")
    with dataset.recover_environment() as env:
        assert env.spec.id == "CartPole-v1"
    assert "cartpole/random-v1" in minari.list_local_datasets()


def test_memory_is_that_of_one_episode():
    frame = np.zeros((64, 1024), "uint8")
    with make(observation_space=Box(0, 255, frame.shape, "uint8"), capacity=500) as buffer:
        for step in range(400):  # 26 MB in 40 episodes
            buffer.add(frame, 0, 1.0, step % 10 == 9, False, frame if step % 10 == 9 else None)
        buffer.flush()  # the maintenance thread packs no more: what it allocates would be counted
        tracemalloc.start()
        to_minari(buffer, "large-v0")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 6e6


def test_a_taken_id_is_left_alone_and_a_bad_one_refused(root):
    with make() as buffer:
        buffer.add(seen(1), 0, 1.0, True, False)
        to_minari(buffer, "mine-v0")
        for bad in ("mine-v0", "mine", "mi ne-v0", "a/mine-v0"):
            with pytest.raises(InvalidInputError, match="dataset_id"):
                to_minari(buffer, bad)
        with pytest.raises(ValueError, match="nonsense"):
            to_minari(buffer, "half-v0", data_format="nonsense")
    assert len(minari.load_dataset("mine-v0")) == 1
    assert [path.name for path in root.iterdir()] == ["mine-v0"]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("channels", [(), (3,), (1,), (4,)])
def test_pictures_as_jpeg(data_format, channels, root):
    shape = (32, 40, *channels)
    buffer = make(
        observation_space=Dict({"eye": Box(0, 255, shape, "uint8"), "x": Box(0, 1, (2,))})
    )
    for row in range(4):
        seen = {"eye": np.full(shape, 10 * row, np.uint8), "x": np.zeros(2, np.float32)}
        buffer.add(seen, row, 0.0, row == 3, False)
    write = partial(
        to_minari, buffer, "jpeg/pictures-v0", jpeg_encoding=True, data_format=data_format
    )
    if channels in [(1,), (4,)]:
        with pytest.raises(
            InvalidInputError, match=r"observation/eye: .* give jpeg_encoding=False"
        ):
            write()
        assert not list(root.glob("jpeg/*"))
    else:
        found = next(write().iterate_episodes()).observations["eye"]
        assert found[:4, 5, 5].reshape(4, -1)[:, 0].tolist() == [0, 10, 20, 30]


def test_where_minari_keeps_its_data_sets_must_be_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", "here")
    with make() as buffer, pytest.raises(InvalidInputError, match=r"absolute path, found 'here'"):
        to_minari(buffer, "any-v0")


def test_an_interrupted_export_leaves_nothing(root):
    def interrupt(_amount, _total):
        raise KeyboardInterrupt

    with make() as buffer:
        Recording(buffer).episode(5, "T")
        with pytest.raises(KeyboardInterrupt):
            to_minari(buffer, "half-v0", progress=interrupt)
        with pytest.raises(KeyboardInterrupt):
            to_minari(buffer, "deep/er/half-v0", progress=interrupt)
        (root / "mine").mkdir()
        with pytest.raises(KeyboardInterrupt):
            to_minari(buffer, "mine/half-v0", progress=interrupt)
    assert list(root.rglob("*")) == [root / "mine"]


def test_an_export_that_fails_as_it_ends_leaves_nothing(root, monkeypatch):
    """The namespace is there by then."""

    def failing(source, target):
        if target == root / "deep" / "er" / "half-v0":
            assert "deep/er" in list_local_namespaces()
            raise StorageError(5, "the disk says no", str(target))
        real(source, target)

    real = files.rename
    monkeypatch.setattr(files, "rename", failing)
    with make() as buffer:
        Recording(buffer).episode(5, "T")
        with pytest.raises(StorageError):
            to_minari(buffer, "deep/er/half-v0")
    assert not list(root.iterdir())


def test_a_killed_export_leaves_nothing_that_minari_sees(root, tmp_path):
    program = """
import os, signal, sys
import diskreplay
from diskreplay.convert.minari import to_minari
with diskreplay.open(sys.argv[1]) as buffer:
    to_minari(buffer, "deep/killed-v0",
              progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""
    with make(tmp_path / "store") as buffer:
        Recording(buffer).episode(5, "T")
        killed = processes.run(program, tmp_path / "store")
        assert killed.returncode == -signal.SIGKILL
        assert [path.name.split(".tmp-")[0] for path in root.iterdir()] == [".deep+killed-v0"]
        assert not minari.list_local_datasets()
        assert not list_local_namespaces()
        with pytest.raises(FileNotFoundError):
            minari.load_dataset("deep/killed-v0")
        assert len(to_minari(buffer, "deep/killed-v0")) == 1
    assert [path.name for path in root.iterdir()] == ["deep"]
    assert [*minari.list_local_datasets()] == ["deep/killed-v0"]
    assert list_local_namespaces() == ["deep"]


def test_a_disk_without_enough_space_is_refused_before(root, monkeypatch):
    with make() as buffer:
        Recording(buffer).episode(5, "T")  # 8 + 8 + 4 + 1 + 1 bytes a step
        for free, fits in ((109, False), (110, True)):
            usage = shutil.disk_usage("/")._replace(free=free)
            monkeypatch.setattr(shutil, "disk_usage", lambda _path, usage=usage: usage)
            if fits:
                assert len(to_minari(buffer, "small/disk-v0")) == 1
            else:
                with pytest.raises(DiskFullError, match="110 bytes or more, and 109 are free"):
                    to_minari(buffer, "small/disk-v0")
                assert not list(root.iterdir())


def test_a_live_store_goes_on_evicting(tmp_path):
    with make(tmp_path / "store", capacity=40) as buffer:
        recording = Recording(buffer)
        for _ in range(4):
            recording.episode(9, "T")

        def record_more(_amount, total):
            assert total == 4
            recording.episode(14, "T")

        with diskreplay.open(tmp_path / "store") as reader:
            dataset = to_minari(reader, "live-v0", progress=record_more)
    # After the first episode half the second leaves, and then all the rest.
    whole, half = dataset
    assert_written([whole], recording.episodes[:1])
    assert 0 < len(half) < 9
    np.testing.assert_array_equal(
        half.observations, recording.episodes[1]["observations"][-len(half) - 1 :]
    )


# -- data sets that others wrote


def foreign(**changes):
    """A data set as an environment's collector leaves it."""
    episode = {
        "seed": 5,
        "observations": np.arange(6.0).reshape(3, 2),
        "actions": np.arange(2),
        "rewards": [0.5, 1.5],
        "terminations": [False, False],
        "truncations": [False, False],
        "infos": {"energy": np.array([9.0, 1.0, 2.0]), "text": ["a", "b", "c"]},
    } | changes
    with pytest.warns(UserWarning, match=" None"):
        return minari.create_dataset_from_buffers(
            "foreign-v0", [EpisodeBuffer(**episode)], action_space=Discrete(9),
            observation_space=Box(-9, 9, (2,), "float32"),
        )  # fmt: skip


def without(data, name, instead=None):
    """Remove an array of the first episode."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(data / "main_data.hdf5", "r+") as file:
        del file["episode_0"][name]
        if instead is not None:
            file["episode_0"][name] = instead


def test_a_foreign_data_set(tmp_path):
    foreign()
    with from_minari(
        "foreign-v0", tmp_path / "store", infos=["energy"], update_horizon=2
    ) as buffer:
        assert buffer.extras == {
            "energy": ((), np.dtype(np.float64)), "seed": ((), np.dtype(np.int64)),
        }  # fmt: skip
        ids = np.arange(3)
        assert buffer.bounds.tolist() == [[0, 3]]
        expected = {
            "observation": np.arange(6.0).reshape(3, 2), "action": [0, 1, 0],
            "reward": [0.5, 1.5, 0], "terminated": [0, 0, 0], "truncated": [0, 1, 0],
            "step": [0, 1, 2], "is_final": [0, 0, 1], "energy": [1, 2, 0], "seed": [5, 5, 0],
        }  # fmt: skip
        for name, values in expected.items():
            np.testing.assert_array_equal(buffer.take(name, ids), values, name)
        batch = buffer.gather([0])
        np.testing.assert_array_equal(batch.next_observation, [[4, 5]])
        assert batch.discount == np.float32(0.99**2)


def test_part_of_a_data_set(tmp_path):
    with make() as buffer:
        for number in range(5):
            buffer.add(seen(number), number, 1.0, True, False, seen(-1))
        dataset = to_minari(buffer, "part-v0")
    chosen = dataset.filter_episodes(lambda episode: episode.actions[0] % 2 == 1)
    for source in (chosen, Path(dataset.spec.data_path)):
        with from_minari(source, tmp_path / "back", overwrite=True) as back:
            actions = back.take("action", back.sampleable_ids()).tolist()
        assert actions == ([1, 3] if source is chosen else [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("changes", "options", "match"),
    [
        ({"terminations": [True, False]}, {}, "episode 0: it ends with step 0 and has 2"),
        ({"observations": np.zeros((2, 2))}, {}, "observation: shape"),
        ({"actions": np.zeros(1, int)}, {}, "action: shape"),
        ({"rewards": [0.0, np.nan]}, {}, "reward: nan"),
        ({}, {"infos": ["power"]}, "'power' is no array of numbers"),
        ({}, {"infos": ["text"]}, "'text' is no array of numbers"),
        ({}, {"capacity": 1}, "capacity 1"),
    ],
)
def test_what_cannot_be_read_leaves_no_store(changes, options, match, tmp_path):
    dataset = foreign(**changes)
    with pytest.raises(InvalidInputError, match=match):
        from_minari(dataset, tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: (data / "main_data.hdf5").unlink(),
        lambda data: (data / "main_data.hdf5").write_bytes(
            (data / "main_data.hdf5").read_bytes()[:3000]
        ),
        lambda data: (data / "metadata.json").write_text("junk"),
        lambda data: (data / "metadata.json").write_text("{}"),
        *(partial(without, name=name) for name in ("rewards", "actions", "terminations")),
        partial(without, name="terminations", instead=np.zeros(3, bool)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_path", [True, False])
def test_a_damaged_data_set_is_refused(root, tmp_path, harm, by_path):
    data = Path(foreign().spec.data_path)
    harm(data)
    with pytest.raises(FormatError, match="foreign-v0"):
        from_minari(data if by_path else "foreign-v0", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_what_the_system_refuses_is_not_taken_for_damage(root, tmp_path, monkeypatch):
    import h5py

    foreign()

    def refuse(path, *_arguments, **_options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(h5py, "File", refuse)
    with pytest.raises(StorageError, match="foreign-v0: cannot read it"):
        from_minari("foreign-v0", tmp_path / "store")


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(FormatError, match="no Minari data set"):
        from_minari(tmp_path / "nope", tmp_path / "store")
    for wrong in (5, None, b"x"):
        with pytest.raises(InvalidInputError, match=r"^dataset: an id, a path"):
            from_minari(wrong, tmp_path / "store")


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    dataset = foreign()
    (tmp_path / "other").mkdir()
    from_minari(dataset, tmp_path / "store").close()
    for there in ("other", "store"):
        with pytest.raises(InvalidInputError, match="there already"):
            from_minari(dataset, tmp_path / there)
    told = []
    with from_minari(
        dataset, tmp_path / "store", overwrite=True, prioritized=True, alpha=0.3, capacity=50,
        progress=lambda *figures: told.append(figures),
    ) as buffer:  # fmt: skip
        assert isinstance(buffer, diskreplay.PrioritizedReplayBuffer)
        assert (buffer.alpha, buffer.capacity, len(buffer)) == (0.3, 50, 2)
    assert told == [(1, 1)]


def test_a_space_that_cannot_be_stored(tmp_path):
    with pytest.warns(UserWarning, match=" None"):
        dataset = minari.create_dataset_from_buffers(
            "text-v0", [], action_space=Discrete(2), observation_space=Text(5)
        )
    with pytest.raises(InvalidInputError, match="Text spaces cannot be stored"):
        from_minari(dataset, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_without_minari(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "diskreplay\[minari\]"'):
        from_minari("any-v0", "any")
    with make() as buffer, pytest.raises(ModuleNotFoundError, match=r"diskreplay\[minari\]"):
        to_minari(buffer, "any-v0")

"""DreamerV3's replay beside a model of lists, written from the original's behaviour."""

import collections
import contextlib
import itertools
import shutil
import threading

import numpy as np
import pytest

import diskreplay
from diskreplay import errors
from diskreplay.integrations.dreamerv3 import Replay
from tests.integrations.dreamer_steps import steps
from tests.test_interrupt import interrupted

LENGTH = 5


class Model:
    """All sequences that there are, oldest first, as lists of steps."""

    def __init__(self, length, capacity):
        self.length, self.capacity = length, capacity
        self.streams = collections.defaultdict(list)
        self.items = []

    def add(self, step, worker):
        stream = self.streams[worker]
        stream.append({k: v for k, v in step.items() if not k.startswith("log/")})
        if len(stream) >= self.length:
            self.items.append(stream[-self.length :])
        del self.items[: -self.capacity]

    def sequences(self):
        """By the reward of the first step: what `sample` returns of it."""
        found = {}
        for item in self.items:
            data = {key: np.stack([step[key] for step in item]) for key in item[0]}
            if "is_first" in data:
                data["is_first"][0] = True
                for t in range(self.length - 1):
                    data["is_last"][t] |= data["is_first"][t + 1]
            found[float(data["reward"][0])] = data
        return found


def filled(model, replay, pairs):
    for worker, step in pairs:
        replay.add(step, worker)
        if model is not None:
            model.add(step, worker)
            assert len(replay) == len(model.items)


def check(batch, expected):
    for i, first in enumerate(batch["reward"][:, 0].tolist()):
        wanted = expected[first]
        assert batch.keys() == {*wanted, "stepid"}
        for key, values in wanted.items():
            np.testing.assert_array_equal(batch[key][i], values, err_msg=key)
            assert batch[key].dtype == values.dtype, key


@pytest.mark.costly(2)
@pytest.mark.parametrize("compressor", ["auto", {"observation/image": "zstd"}])
@pytest.mark.parametrize("capacity", [7, 40, 500])
def test_sequences_are_those_of_the_model(tmp_path, capacity, compressor):
    model = Model(LENGTH, capacity)
    replay = Replay(LENGTH, capacity, tmp_path, workers=4, compressor=compressor)
    found = set()
    for part in range(4):
        filled(model, replay, steps(part, 60, start=60 * part))
        for mode in ("train", "report", "eval"):
            batch = replay.sample(40, mode)
            check(batch, model.sequences())
            found |= set(batch["reward"][:, 0].tolist())
    assert batch["stepid"].shape == (40, LENGTH, 20)
    assert batch["stepid"].dtype == np.uint8
    assert len(found) > min(capacity, 60)
    replay.close()


def test_draws_are_even(tmp_path):
    replay = Replay(LENGTH, 30, tmp_path, seed=3)
    filled(None, replay, steps(1, 200))
    drawn = np.concatenate([replay.sample(100)["reward"][:, 0] for _ in range(60)])
    counts = np.unique(drawn, return_counts=True)[1]
    assert len(counts) == 30
    assert (np.square(counts - 200) / 200).sum() < 58.3  # once in a thousand, 29 degrees
    assert set(np.unique(drawn)) == set(np.unique(replay._report.gather(
        replay._report.anchors()).reward[:, 0]))  # fmt: skip


def test_new_steps_are_handed_out_once(tmp_path):
    replay = Replay(LENGTH, 1000, tmp_path, online=True)
    seen = []
    for part in range(10):
        filled(None, replay, steps(part, 50, workers=2, start=50 * part))
        replay.sample(6, "report")
        batch = replay.sample(8)["reward"]
        assert len(batch) == 8
        seen += batch.ravel().tolist()
    later = collections.Counter(seen)
    assert all(later[number] for number in range(0, 300))
    fresh = Replay(LENGTH, 1000, online=True)
    filled(None, fresh, steps(1, 60, workers=1))
    first = np.concatenate([fresh.sample(4)["reward"] for _ in range(3)])
    assert first.ravel().tolist() == list(range(60))


def test_values_are_written_back(tmp_path):
    replay = Replay(LENGTH, 100, tmp_path, workers=3)
    filled(None, replay, steps(1, 120))
    batch = replay.sample(6)
    value = np.arange(6 * LENGTH * 4).reshape(6, LENGTH, 4).astype(np.float16)
    assert replay.update({"stepid": batch["stepid"], "dyn/deter": value}) == 0
    written = {
        step.tobytes(): value[i, t]
        for i, row in enumerate(batch["stepid"]) for t, step in enumerate(row)
    }  # fmt: skip
    hits = 0
    for _ in range(20):
        again = replay.sample(10)
        for i, row in enumerate(again["stepid"]):
            for t, step in enumerate(row):
                if step.tobytes() in written:
                    np.testing.assert_array_equal(again["dyn/deter"][i, t], written[step.tobytes()])
                    hits += 1
                else:
                    assert again["dyn/deter"][i, t, 0] == -again["reward"][i, t].astype(np.float16)
    assert hits > 50
    filled(None, replay, steps(2, 400, start=120))
    assert replay.update({"stepid": batch["stepid"], "dyn/deter": value}) == 30
    with pytest.raises(errors.InvalidInputError, match="'image' is not written"):
        replay.update({"stepid": batch["stepid"], "image": value})
    with pytest.raises(errors.ShapeError, match="stepid"):
        replay.update({"stepid": batch["stepid"][..., :8]})
    with pytest.raises(errors.UsageError, match="no priorities"):
        replay.update({"stepid": batch["stepid"], "priority": np.ones((6, LENGTH))})


@pytest.mark.parametrize("online", [False, True])
def test_a_run_goes_on_bit_for_bit(tmp_path, online):
    def run(replay, start):
        drawn = []
        for part in range(5):
            filled(None, replay, steps(part, 20, start=start + 20 * part))
            batch = replay.sample(4)
            drawn.append(batch["stepid"].tolist())
            replay.update({"stepid": batch["stepid"], "dyn/deter": batch["dyn/deter"] + 1})
            drawn.append(batch["dyn/deter"].tolist())
        return drawn

    replay = Replay(LENGTH, 90, tmp_path, online=online)
    assert replay.save() is None
    run(replay, 0)
    data = replay.save()
    items = len(replay)
    wanted = run(replay, 100)
    del replay
    again = Replay(LENGTH, 90, tmp_path, online=online)
    again.load(data)
    assert len(again) == items
    assert run(again, 100) == wanted
    again.save()
    other = Replay(LENGTH, 90, tmp_path / "other", online=online)
    other.load(data, directory=tmp_path, amount=17)
    assert len(other) == 17
    with pytest.raises(errors.CheckpointNotFoundError, match="no checkpoint 9; there are: "):
        again.load({"checkpoint": 9})


def test_steps_without_a_save_stay_and_a_restart_begins_an_episode(tmp_path):
    replay = Replay(LENGTH, 90, tmp_path, workers=1)
    pairs = list(steps(1, 40, workers=1))
    filled(None, replay, pairs[:20])
    del replay
    replay = Replay(LENGTH, 90, tmp_path, workers=1)
    step = {**pairs[20][1], "is_first": np.bool_(False)}
    replay.add(step, 0)
    assert len(replay) == 21 - LENGTH + 1
    batch = replay._layout.data(replay._report.gather(replay._report.anchors()[-1:]))
    assert batch["is_first"][0].tolist()[-1]
    assert batch["is_last"][0].tolist()[-2]
    with diskreplay.open(replay._buffer.path) as reader:
        lasts = [i for i, (_, step) in enumerate(pairs[:20]) if step["is_last"]]
        assert len(reader.episodes()) == len(lasts) + (lasts[-1] != 19) + 1


def test_a_directory_that_holds_steps_is_looked_at(tmp_path):
    """Before anything is added: to learn from what was recorded."""
    with contextlib.closing(Replay(LENGTH, 90, tmp_path, workers=2)) as replay:
        assert len(replay) == replay.stats()["items"] == 0
        with pytest.raises(errors.UsageError, match="nothing was recorded"):
            replay.update({"stepid": np.zeros((1, 1, 20), np.uint8)})
        filled(None, replay, list(steps(1, 40, workers=2)))
        items = len(replay)
        assert items > 10
    for look in (
        lambda replay: len(replay),
        lambda replay: replay.load(),
        lambda replay: len(replay.sample(3)["is_first"]),
        lambda replay: replay.stats(),
        lambda replay: replay.save(),
    ):
        with contextlib.closing(Replay(LENGTH, 90, tmp_path, workers=2)) as replay:
            look(replay)
            assert replay._items == items
    with contextlib.closing(Replay(LENGTH, 90, tmp_path, workers=2)) as replay:
        assert replay.stats()["items"] == items
        assert replay.sample(4)["is_first"].shape == (4, LENGTH)


def test_a_selector_of_theirs(tmp_path):
    class Last:
        """As their selectors: draws the newest item."""

        def __init__(self):
            self.items, self.priorities = {}, {}

        def __setitem__(self, key, stepids):
            assert key not in self.items
            self.items[key] = [step.tobytes() for step in stepids]

        def __delitem__(self, key):
            del self.items[key]

        def __call__(self):
            return list(self.items)[-1]

        def prioritize(self, stepids, priorities):
            for step, priority in zip(stepids, priorities, strict=True):
                self.priorities[step.tobytes()] = priority

    selector = Last()
    replay = Replay(LENGTH, 20, tmp_path, selector=selector, online=True)
    filled(None, replay, steps(1, 100, workers=1))
    assert len(selector.items) == 20
    assert replay.sample(1, "report")["reward"][0].tolist() == [95, 96, 97, 98, 99]
    assert replay.sample(1)["reward"][0, 0] % LENGTH == 0  # of the queue
    batch = replay.sample(3, "report")
    replay.update({"stepid": batch["stepid"], "priority": np.ones((3, LENGTH))})
    assert set(selector.priorities) == set(selector.items[replay._selector()])
    data = replay.save()
    replay.load(data)
    assert len(selector.items) == 20


@pytest.mark.parametrize("amid", ["the rows", "the rest"])
@pytest.mark.parametrize("then", ["it is another one", "it goes"])
def test_a_save_of_another_process_amid_a_load(tmp_path, monkeypatch, amid, then):
    """Of the same number, or one that retires it. What is loaded is of one checkpoint: the rows
    were there and their order was not, or was that of other rows."""
    with (
        contextlib.closing(Replay(LENGTH, 90, tmp_path / "a", workers=2)) as saving,
        contextlib.closing(Replay(LENGTH, 90, tmp_path / "b", workers=2)) as loading,
    ):
        filled(None, saving, list(steps(1, 40, workers=2)))
        data, before = saving.save(), list(saving._fifo)
        filled(None, loading, list(steps(2, 10, workers=2)))
        own, rows, load = list(loading._fifo), loading._buffer.add_count, loading._buffer.load

        def save_again():
            monkeypatch.undo()
            shutil.rmtree(tmp_path / "a" / "checkpoints")
            if then == "it is another one":
                # As many sequences of each worker, which came in another order.
                saving._fifo.reverse()
                assert saving.save() == data

        def amid_load(*arguments):
            if amid == "the rows":
                save_again()
                return load(*arguments)
            loaded = load(*arguments)
            save_again()
            return loaded

        monkeypatch.setattr(loading._buffer, "load", amid_load)
        if (amid, then) == ("the rows", "it goes"):
            with pytest.raises(errors.CheckpointNotFoundError, match="not there any more"):
                loading.load(data, tmp_path / "a")
            assert (list(loading._fifo), loading._buffer.add_count) == (own, rows)
            loading.load(None, tmp_path / "a")  # the newest, of none
            assert list(loading._fifo) == own
            return
        loading.load(data, tmp_path / "a")
        assert loading._buffer.add_count == saving._buffer.add_count
        assert list(loading._fifo) == (before if amid == "the rest" else before[::-1])
        assert before != before[::-1]


class Newest:
    """Draws the newest item, as the selectors of the original are called."""

    def __init__(self):
        self.items = []

    def __setitem__(self, key, _stepids):
        self.items.append(key)

    def __delitem__(self, key):
        self.items.remove(key)

    def __call__(self):
        return self.items[-1]


def chosen(path, count, capacity=None):
    """A replay with a selector, to which so many steps were added."""
    replay = Replay(LENGTH, capacity, path, selector=Newest(), online=True, workers=1)
    filled(None, replay, steps(1, count, workers=1))
    return replay


def first(batch):
    """The numbers of the steps with which the sequences begin."""
    return batch["reward"][:, 0].tolist()


def test_new_sequences_that_have_left_keep_no_others_from_coming(tmp_path):
    with contextlib.closing(chosen(tmp_path, 24, capacity=12)) as replay:
        assert first(replay.sample(3)) == [10, 15, 19]  # 0 and 5 have left, 19 is the newest


def test_new_sequences_come_where_one_of_their_batch_leaves(tmp_path, monkeypatch):
    """On another thread say, before the batch is read."""
    with contextlib.closing(chosen(tmp_path, 24, capacity=20)) as replay:
        gather = replay._train.gather

        def leaves(ids):
            monkeypatch.undo()
            filled(None, replay, steps(2, 6, workers=1, start=24))
            return gather(ids)

        monkeypatch.setattr(replay._train, "gather", leaves)
        assert first(replay.sample(3)) == [10, 15, 20]  # 0 and 5 have left
        assert first(replay.sample(2)) == [25, 25]  # which is the newest, too


def test_new_sequences_come_after_ctrl_c(tmp_path, monkeypatch):
    def cut(_ids):
        raise KeyboardInterrupt

    with contextlib.closing(chosen(tmp_path, 24)) as replay:
        with monkeypatch.context() as patch:
            patch.setattr(replay._train, "gather", cut)
            with pytest.raises(KeyboardInterrupt):
                replay.sample(2)
        assert first(replay.sample(4)) == [0, 5, 10, 15]


def test_the_queue_of_new_steps_is_saved_with_a_selector(tmp_path):
    replay = chosen(tmp_path, 34)
    assert first(replay.sample(2)) == [0, 5]
    data = replay.save()
    assert first(replay.sample(3)) == [10, 15, 20]
    replay.load(data)
    filled(None, replay, steps(2, 6, workers=1, start=34))
    expected = [10, 15, 20, 25, 30, 35]
    assert first(replay.sample(6)) == expected
    replay.close()
    for amount, wanted in ((None, expected), (16, expected[1:]), (7, expected[3:])):
        with contextlib.closing(chosen(tmp_path, 0)) as again:
            again.load(data, amount=amount)
            filled(None, again, steps(2, 6, workers=1, start=34))
            assert first(again.sample(len(wanted) + 1)) == [*wanted, 35]
    with contextlib.closing(
        Replay(LENGTH, directory=tmp_path, selector=Newest(), workers=1)
    ) as drawing:
        drawing.load(data)
        assert first(drawing.sample(2)) == [29, 29]  # no queue without `online`


def test_one_worker_may_have_all_of_a_small_capacity(tmp_path, monkeypatch):
    """Of a large one, twice its share: then its oldest sequences leave first."""
    monkeypatch.setattr("diskreplay.integrations.dreamerv3._EVEN_ROWS", 10)
    replay = Replay(LENGTH, 40, tmp_path, workers=4)
    filled(None, replay, steps(1, 30, workers=1))
    filled(None, replay, ((1, step) for _, step in steps(2, 20, workers=1, start=30)))
    assert len(replay) == 21 + 16  # 2 x 40 / 4 + 5 rows of the first
    filled(None, replay, ((2, step) for _, step in steps(3, 20, workers=1, start=50)))
    assert len(replay) == 40
    found = {float(r) for _ in range(60) for r in replay.sample(20, "report")["reward"][:, 0]}
    assert found == {*range(18, 26), *range(30, 46), *range(50, 66)}
    assert len(replay._report) == 40


def test_workers_add_beside_learners(tmp_path):
    replay = Replay(LENGTH, 64, tmp_path, workers=4)
    failed, done = [], threading.Event()

    def record(worker):
        try:
            for number in range(150):
                replay.add({"n": np.int64(number), "worker": np.int64(worker)}, worker)
        except BaseException as error:
            failed.append(error)

    def learn():
        try:
            while not done.is_set():
                batch = replay.sample(4)
                assert (batch["n"] - batch["n"][:, :1] == np.arange(LENGTH)).all()
                assert (batch["worker"] == batch["worker"][:, :1]).all()
        except BaseException as error:
            failed.append(error)

    recording = [threading.Thread(target=record, args=(i,)) for i in range(4)]
    learning = [threading.Thread(target=learn) for _ in range(2)]
    for thread in (*learning, *recording):  # the learners wait for the first sequence
        thread.start()
    for thread in recording:
        thread.join()
    done.set()
    for thread in learning:
        thread.join()
    assert not failed
    assert len(replay) == 64
    assert replay.stats()["inserts"] == 4 * (150 - LENGTH + 1)
    assert replay.stats()["inserts"] == 0


def test_what_is_refused(tmp_path):
    replay = Replay(LENGTH, 20, tmp_path, workers=2)
    step = {"n": np.int64(1), "x": np.zeros(3, np.float32)}
    replay.add(step)
    for wrong, error, words in (
        ({"n": np.int64(1)}, errors.InvalidInputError, "keys"),
        ({**step, "x": np.zeros(4, np.float32)}, errors.ShapeError, "x: shape"),
        ({**step, "n": np.float64(0.5)}, errors.DtypeError, "n: int64"),
    ):
        with pytest.raises(error, match=words):
            replay.add(wrong)
    replay.add(step, worker="other")
    with pytest.raises(errors.UsageError, match="workers=2"):
        replay.add(step, worker=7)
    with pytest.raises(errors.InvalidInputError, match="mode"):
        replay.sample(1, "test")
    with pytest.raises(errors.UsageError, match="nothing"):
        Replay(LENGTH).update({"stepid": np.zeros((1, 1, 20), np.uint8)})
    with pytest.raises(errors.DtypeError, match="numbers"):
        Replay(LENGTH).add({"text": np.array("a")})
    assert replay.stats()["streams"] == 2


class Handler:
    """Calls a replay: amid a call of it, or of its buffer, that has to be refused."""

    def __init__(self, replay, calls):
        self.replay, self.calls, self.number, self.refused, self.let_in = replay, calls, 0, 0, []

    def __call__(self):
        lock, buffer_lock = self.replay._lock, self.replay._buffer._lock
        amid = lock._is_owned() or buffer_lock._is_owned()
        self.number += 1
        try:
            self.calls[self.number % len(self.calls)]()
        except errors.ReentryError:
            self.refused += 1
        else:
            self.let_in += [self.number] * amid


@pytest.mark.parametrize("call", ["add", "sample", "chosen"])
def test_a_handler_that_calls_at_any_place(tmp_path, call):
    """Amid `sample` it waited for the lock of a worker that added, which waited for that of the
    buffer; and amid `add` it had sequences known that were not, or twice."""
    selector = Newest() if call == "chosen" else None
    replay = Replay(LENGTH, 30, str(tmp_path / "replay"), workers=3, selector=selector)
    number = itertools.count()

    def add(worker=0):
        replay.add({"x": np.float32(next(number)), "is_first": False}, worker)

    for worker in range(3):
        for _ in range(12):
            add(worker)
    handler = Handler(replay, [lambda: len(replay), lambda: add(1), replay.save])
    calls = {"add": lambda: add(2), "sample": lambda: replay.sample(2),
             "chosen": lambda: replay.sample(2)}  # fmt: skip
    place = 0
    while interrupted(calls[call], place, handler):
        assert handler.let_in == []
        rows, first = replay._rows, replay._first
        assert replay._buffer.bounds[:, 1].tolist() == rows.tolist()
        assert len(replay) == np.maximum(rows - first - LENGTH + 1, 0).sum()
        assert len(replay) == len(replay._fifo) - replay._gone.sum()
        place += 1
    assert handler.refused > 5
    replay.close()

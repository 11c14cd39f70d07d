"""`Slots` whose fields share frames, beside a list of dicts: all comes back as it was put."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import diskreplay
from diskreplay import Slots, errors
from diskreplay.check.verify import verify
from diskreplay.store.listing import checkpoints
from diskreplay.store.row_writer import RowWriter
from tests.effort import effort

FLAGS = {"act": ((), np.int64), "done": ((), np.bool_), "reward": ((), np.float32)}
SEEN = {"seen": ((6, 2), np.uint8)}
BOTH = {**SEEN, "led": ((6, 2), np.uint8)}
FAR = {"far": ((1,), np.float32), "far_led": ((1,), np.float32)}
# Raw files of four frames each: what is let go of is gone.
PAGES = {"seen": ((3, 64, 64), np.uint8), "led": ((3, 64, 64), np.uint8)}
LAYOUTS = {
    "next": (BOTH, {"led": "seen"}, {}),
    "stack": (SEEN, {}, {"seen": 3}),
    "stacks of all there is": (BOTH, {"led": "seen"}, {"seen": 6}),
    "next and stack": (BOTH, {"led": "seen"}, {"led": 3}),
    "several": ({**BOTH, **FAR}, {"led": "seen", "far_led": "far"}, {"seen": 3}),
    "pages": (PAGES, {"led": "seen"}, {"seen": 3}),
    "others": ({**BOTH, **FAR}, {"far_led": "far"}, {"seen": 2, "led": 3}),
}  # fmt: skip
PAIRS = {"seen": "led", "far": "far_led"}


class Game:
    """Steps of one environment: stacks that slide, resets, and what breaks the rules."""

    def __init__(self, fields, stack, rng):
        self.fields, self.stack, self.rng, self.seen = fields, stack, rng, {}

    def frames(self, name, count):
        (first, *rest), dtype = self.fields[name]
        shape = (count * (first // self.stack.get(name, 1)), *rest)
        if dtype == np.uint8:
            return self.rng.integers(0, 2, shape, np.uint8)  # often the same by chance
        return self.rng.choice(np.array([0.0, -0.0, np.nan], np.float32), shape)

    def step(self):
        rng, row = self.rng, {}
        for name in PAIRS.keys() & self.fields.keys():
            k = self.stack.get(name, 1)
            if name not in self.seen or rng.random() < 0.1:  # a reset, padded or not
                alike = np.concatenate([self.frames(name, 1)] * k)
                self.seen[name] = alike if rng.random() < 0.5 else self.frames(name, k)
            row[name] = self.seen[name]
            new = self.frames(name, k if rng.random() < 0.1 else 1)
            self.seen[name] = np.concatenate([row[name], new])[-len(row[name]) :]
            if PAIRS[name] in self.fields:
                row[PAIRS[name]] = self.seen[name]
        return {
            **row, "act": np.int64(rng.integers(1 << 40)), "done": np.bool_(rng.random() < 0.1),
            "reward": np.float32(rng.normal()),
        }  # fmt: skip


def alike(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


class FramesBesideDicts(RuleBasedStateMachine):
    @initialize(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3), seed=st.integers(0, 999),
        layout=st.sampled_from(list(LAYOUTS)), min_bytes=st.sampled_from([0, 9, 1024]),
        compressor=st.sampled_from(["auto", "raw", "zstd"]),
    )  # fmt: skip
    def begin(self, sizes, seed, layout, min_bytes, compressor):
        frames, next_of, stack = LAYOUTS[layout]
        self.fields, self.sizes = {**frames, **FLAGS}, sizes
        self.directory, self.rng = tempfile.TemporaryDirectory(), np.random.default_rng(seed)
        self.options = {
            "next_of": next_of, "stack": stack, "min_bytes": min_bytes, "compressor": compressor
        }  # fmt: skip
        if layout == "pages":
            self.options |= {"compressor": "raw", "segment_rows": 4}
        if "led" in next_of:
            stack = {name: max(stack.values(), default=1) for name in ("seen", "led")}
        self.games = [Game(self.fields, stack, self.rng) for _ in sizes]
        self.begins = [sum(sizes[:lane]) for lane in range(len(sizes))]
        self.rows, self.saved, self.turn = [None] * sum(sizes), None, [0] * len(sizes)
        self.slots = self.open()
        self.reader = Slots.reader(self.slots.path)

    def open(self):
        return Slots(f"{self.directory.name}/slots", self.fields, self.sizes, **self.options)

    def put(self, slots, steps):
        names = steps[0].keys()
        self.slots.put(slots, {name: np.stack([step[name] for step in steps]) for name in names})
        for slot, step in zip(slots, steps, strict=True):
            row = self.rows[slot] or {n: np.zeros(s, d) for n, (s, d) in self.fields.items()}
            self.rows[slot] = {**row, **{name: np.array(step[name]) for name in names}}

    def next_slot(self, lane):
        slot = self.begins[lane] + self.turn[lane] % self.sizes[lane]
        self.turn[lane] += 1
        return slot

    @rule(times=st.integers(1, 50), some=st.booleans())
    def put_in_turn(self, times, some):
        """As vector environments do, of which only some may be ready."""
        for _ in range(times):
            ready = [lane for lane in range(len(self.sizes)) if not some or self.rng.random() < 0.6]
            self.rng.shuffle(ready)
            if ready:
                self.put([self.next_slot(lane) for lane in ready],
                         [self.games[lane].step() for lane in ready])  # fmt: skip

    @rule(data=st.data(), count=st.integers(1, 150))
    def put_an_episode(self, data, count):
        lane = data.draw(st.integers(0, len(self.sizes) - 1))
        self.put([self.next_slot(lane) for _ in range(count)],
                 [self.games[lane].step() for _ in range(count)])  # fmt: skip

    @rule(count=st.integers(1, 120), one_by_one=st.booleans())
    def put_anywhere(self, count, one_by_one):
        slots = self.rng.integers(0, sum(self.sizes), count).tolist()
        lanes = [max(i for i, begin in enumerate(self.begins) if begin <= slot) for slot in slots]
        steps = [self.games[lane].step() for lane in lanes]
        if not one_by_one:
            self.put(slots, steps)
            return
        for slot, step in zip(slots, steps, strict=True):
            self.put([slot], [step])

    @rule(data=st.data(), count=st.integers(1, 4))
    def put_some_fields(self, data, count):
        names = data.draw(st.sets(st.sampled_from(list(self.fields)), min_size=1))
        slots = self.rng.integers(0, sum(self.sizes), count).tolist()
        self.put(slots, [{n: self.games[0].step()[n] for n in names} for _ in slots])

    @rule(data=st.data())
    def set_through_a_view(self, data):
        name = data.draw(st.sampled_from(sorted({"seen", "led"} & self.fields.keys())))
        slot = data.draw(st.integers(0, sum(self.sizes) - 1))
        value = self.games[0].step()[name]
        self.slots.view(name)[slot] = value
        row = self.rows[slot] or {n: np.zeros(s, d) for n, (s, d) in self.fields.items()}
        self.rows[slot] = {**row, name: value}

    @rule(data=st.data())
    def empty(self, data):
        lane = data.draw(st.integers(0, len(self.sizes) - 1))
        self.slots.empty(lane)
        begin, size = self.begins[lane], self.sizes[lane]
        self.rows[begin : begin + size] = [None] * size

    @rule()
    def reopen(self):
        self.slots.close()
        self.slots = self.open()

    @rule()
    def save_or_load(self):
        if self.saved is not None and self.rng.random() < 0.6:
            self.slots.load(f"{self.directory.name}/saved", 1)
            self.rows = list(self.saved)
            return
        self.slots.save(f"{self.directory.name}/saved", 1)
        self.saved = list(self.rows)
        (saved,) = checkpoints(f"{self.directory.name}/saved")
        with Slots.reader(saved.path) as reader:
            self.check(reader)

    def check(self, slots):
        used = [row is not None for row in self.rows]
        assert slots.used.tolist() == used
        everywhere = np.arange(len(self.rows))
        nothing = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.fields.items()}
        wanted = [row or nothing for row in self.rows]
        for name in self.fields:
            alike(slots.read(name, everywhere), np.stack([row[name] for row in wanted]))
        pairs = self.rng.integers(0, len(self.rows), (3, 2))
        for found, name in zip(slots.read(list(self.fields), pairs), self.fields, strict=True):
            alike(found, np.stack([[wanted[slot][name] for slot in pair] for pair in pairs]))
            alike(np.asarray(slots.view(name)[pairs[0]]), found[0])

    @invariant()
    def what_was_put_is_there(self):
        self.check(self.slots)

    @rule()
    def read_along(self):
        """Not after each step: a reader may be far behind."""
        self.check(self.reader)

    def teardown(self):
        if not hasattr(self, "slots"):
            return
        self.slots.close()
        assert verify(self.slots.path).findings == ()
        self.reader.close()
        with Slots.reader(self.slots.path) as reader:
            self.check(reader)
        with diskreplay.open(self.slots.path) as buffer:
            buffer.episodes()
        self.directory.cleanup()


FramesBesideDicts.TestCase.settings = settings(
    max_examples=effort(8, 20), stateful_step_count=15, deadline=None, phases=(Phase.generate,)
)
TestFramesBesideDicts = FramesBesideDicts.TestCase


def frames_of(numbers, *shape):
    """A frame for each number; zeros for 0."""
    numbers = np.asarray(numbers)
    frames = np.zeros((*numbers.shape, int(np.prod(shape))), np.uint8)
    for at in np.ndindex(numbers.shape):
        if numbers[at]:
            frames[at] = np.random.default_rng(numbers[at]).integers(1, 256, frames.shape[-1])
    return frames.reshape(*numbers.shape, *shape)


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
from test_slot_frames import KILLED_FIELDS, frames_of
from diskreplay import Slots

slots = Slots(sys.argv[1], KILLED_FIELDS[0], 60, lanes=3, **KILLED_FIELDS[1])
rng, number = np.random.default_rng(int(sys.argv[3])), 3
while True:
    order = rng.permutation(20) if rng.random() < 0.3 else np.arange(20)
    for at in order:
        number += 1 + 4 * (rng.random() < 0.1)  # an episode begins
        stacks = np.arange(number - 3, number + 1) + 10_000_000 * np.arange(1, 4)[:, None]
        frames = frames_of(stacks, 30, 40)
        slots.put(np.arange(3) * 20 + at, {
            "seen": frames[:, :3], "led": frames[:, 1:], "number": np.full(3, number)
        })
        print(at, number, flush=True)
"""
KILLED_FIELDS = (
    {"seen": ((3, 30, 40), np.uint8), "led": ((3, 30, 40), np.uint8), "number": ((), np.int64)},
    {"next_of": {"led": "seen"}, "stack": {"seen": 3}},
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.costly(1)
def test_what_was_put_outlives_a_kill(tmp_path, seed):
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "slots", str(Path(__file__).parent), str(seed)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    told = {}
    for line in writer.stdout:
        at, number = map(int, line.split())
        told[at] = number
        if number > 500 + 41 * seed:
            break
    writer.send_signal(signal.SIGKILL)
    with writer.stdout:
        told |= {
            int(a): int(b) for a, b in (line.split() for line in writer.stdout if "\n" in line)
        }
    assert writer.wait() == -signal.SIGKILL
    with Slots(tmp_path / "slots", KILLED_FIELDS[0], 60, lanes=3, **KILLED_FIELDS[1]) as slots:
        found = slots.columns["number"].reshape(3, 20)
        for at, number in told.items():
            # The last call may have been done, of some lanes, and not have said so.
            assert ((found[:, at] == number) | (found[:, at] > max(told.values()))).all()
        assert (found > 0).all()
        lanes = 10_000_000 * np.arange(1, 4)[:, None, None]
        wanted = frames_of(found[..., None] + lanes + np.arange(-3, 1), 30, 40)
        wanted = wanted.reshape(60, 4, 30, 40)
        alike(slots.read("seen", np.arange(60)), wanted[:, :3])
        alike(slots.read("led", np.arange(60)), wanted[:, 1:])
    assert verify(tmp_path / "slots").findings == ()


def episodes(count, length, stack):
    """The numbers of the frames of stacks, as environments give them: zeros before each first."""
    for episode in range(count):
        numbers = 1 + episode * (length + 1) + np.arange(length + 1)
        padded = np.concatenate([np.zeros(stack - 1, np.int64), numbers])
        for step in range(length):
            yield padded[step : step + stack], padded[step + 1 : step + 1 + stack]


@pytest.mark.costly(2)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("next_of", "stack"), [(True, 1), (False, 4), (True, 4)])
def test_each_frame_is_in_the_files_once(tmp_path, next_of, stack, lanes):
    """Though it is in up to eight places of what is put."""
    shape = (stack, 24, 24)
    fields = {"seen": (shape, np.uint8), "led": (shape, np.uint8)}
    options = {"next_of": {"led": "seen"}, "stack": {"led": stack}}
    if not next_of:
        del fields["led"], options["next_of"]
        options["stack"] = {"seen": stack}
    length, steps = 50, 0
    with Slots(
        tmp_path / "slots", fields, 400, lanes=lanes, compressor="raw", **options
    ) as slots:  # fmt: skip
        for seen, led in episodes(4, length, stack):
            here = np.array([seen, led])[:, None] + 1_000_000 * np.arange(lanes)[:, None]
            here = frames_of(np.where(np.array([seen, led])[:, None], here, 0), 24, 24)
            row = dict(zip(fields, here, strict=False))
            slots.put(steps + np.arange(lanes) * (400 // lanes), row)
            steps += 1
        slots.flush()
        files = b"".join(
            path.read_bytes() for path in Path(slots.path).rglob("*")
            if path.is_file() and "slot" not in path.parts[-2]
        )  # fmt: skip
        assert slots.bounds[:, 1].tolist() == [steps + 4 * (stack - 1 + next_of)] * lanes
    for number in range(1, 4 * (length + 1) + 1):
        if not next_of and number % (length + 1) == 0:
            continue  # nothing shows what the last step led to
        for lane in range(lanes):
            frame = frames_of(np.array(number + 1_000_000 * lane), 24, 24).tobytes()
            assert files.count(frame) == 1, number


def test_a_ring_that_comes_round_writes_each_row_once():
    fields = {"seen": ((2, 9), np.uint8), "led": ((2, 9), np.uint8)}
    with Slots(None, fields, 300, next_of={"led": "seen"}, stack={"seen": 2}) as slots:
        for step, (seen, led) in enumerate(episodes(20, 100, 2)):
            slots.put(step % 300, {"seen": frames_of(seen, 9), "led": frames_of(led, 9)})
        ((first, count),) = slots.bounds.tolist()
        assert count == 20 * (100 + 2)
        # What is shown, its leads, and what may be there that is not shown.
        assert count - first <= 300 + 3 * 2 + 64 + 3


@pytest.mark.costly
def test_frames_stay_for_as_long_as_a_row_needs_them():
    """Rows of slots that are not written over are added once more in pieces: each begins behind
    frames that it needs."""
    fields, next_of, stack = LAYOUTS["pages"]
    options = {"next_of": next_of, "stack": stack, "compressor": "raw", "segment_rows": 4}
    wanted, steps = [None] * 100, episodes(1, 400, 3)
    with Slots(None, fields, 100, **options) as slots:
        for slot in [*range(100), *list(range(40)) * 6]:
            seen, led = next(steps)
            slots.put(slot, {"seen": frames_of(seen, 64, 64), "led": frames_of(led, 64, 64)})
            wanted[slot] = seen, led
            if slot % 8 == 0 and wanted[99]:
                for name, numbers in zip(fields, np.swapaxes(wanted, 0, 1), strict=True):
                    alike(slots.read(name, np.arange(100)), frames_of(numbers, 64, 64))


def test_a_row_behind_one_that_emptied_the_lane_goes_on_from_nothing():
    fields, next_of, stack = LAYOUTS["next and stack"]
    with Slots(None, fields, 8, lanes=2, next_of=next_of, stack=stack) as slots:
        for step, (seen, led) in enumerate(episodes(1, 4, 3)):
            if step == 3:
                slots.empty(1)
            row = {"seen": frames_of(seen, 2, 2), "led": frames_of(led, 2, 2)}
            row = {name: np.stack([value.reshape(6, 2)] * 2) for name, value in row.items()}
            slots.put([step, step + 4], row)
            for name, value in row.items():
                alike(slots.read(name, [step, step + 4]), value)


def test_one_slot_has_what_was_put_last():
    fields, next_of, stack = LAYOUTS["next and stack"]
    game = Game(fields, {"seen": 3, "led": 3}, np.random.default_rng(0))
    with Slots(None, fields, 1, next_of=next_of, stack=stack) as slots:
        for _ in range(200):
            step = game.step()
            slots.put([0, 0], {name: np.stack([1 - step[name], step[name]]) for name in fields})
            for name in fields:
                alike(slots.read(name, 0), step[name])


def test_rows_of_frames_are_kept_for_as_long_as_a_slot_shows_what_they_are_for():
    fields, next_of, stack = LAYOUTS["next and stack"]
    rng = np.random.default_rng(0)
    game = Game(fields, {"seen": 3, "led": 3}, rng)
    with Slots(None, fields, 300, next_of=next_of, stack=stack) as slots:
        for slot in rng.permutation(300):
            game.seen = {}
            step = game.step()
            slots.put(slot, {name: step[name] for name in fields})
        ((_, there),) = slots.bounds.tolist()
        assert there >= 300 * (1 + 3)
        slots.empty()
        for step, (seen, led) in enumerate(episodes(1, 900, 3)):
            row = {"seen": frames_of(seen, 4), "led": frames_of(led, 4)}
            slots.put(step % 150, {name: value.reshape(6, 2) for name, value in row.items()})
        ((first, count),) = slots.bounds.tolist()
        assert count == there + 1 + 3 + 900
        assert count - first <= 300 + 64 + 3 + 5


def test_a_full_disk_leaves_whole_rows(monkeypatch):
    """It may be full between the rows of frames and the row that they are for."""
    fields, next_of, stack = LAYOUTS["next and stack"]
    game = Game(fields | FLAGS, {"seen": 3, "led": 3}, np.random.default_rng(0))
    monkeypatch.setattr(RowWriter, "most_at_once", 2)
    real, left = RowWriter.extend, [0]

    def extend(self, runs):
        left[0] -= 1
        if not left[0]:
            raise errors.DiskFullError(28, "No space left on device", "segment")
        return real(self, runs)

    monkeypatch.setattr(RowWriter, "extend", extend)
    wanted = [None] * 20
    with Slots(None, fields | FLAGS, 20, next_of=next_of, stack=stack) as slots:
        for pieces in [*range(1, 12), 1, 1, 2, 2, 3, 3]:
            at = [(pieces + i) % 20 for i in range(9)]
            steps, left[0] = [game.step() for _ in at], pieces
            values = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
            with contextlib.suppress(errors.DiskFullError):
                slots.put(at, values)
            acts = slots.columns["act"][at].tolist()
            there = [a == step["act"] for a, step in zip(acts, steps, strict=True)]
            assert there == sorted(there, reverse=True)  # the first ones
            for slot, step in zip(at[: sum(there)], steps, strict=False):
                wanted[slot] = step
            for slot, row in enumerate(wanted):
                assert slots.used[slot] == (row is not None)
                for name in row or {}:
                    alike(slots.read(name, slot), row[name])


def test_other_readers_take_rows_of_frames_for_final_ones(tmp_path):
    fields = {
        "observation": ((2, 8, 8), np.uint8), "next_observation": ((2, 8, 8), np.uint8),
        "action": ((), np.int64), "reward": ((), np.float32), "terminated": ((), np.bool_),
    }  # fmt: skip
    for next_of in ({}, {"next_observation": "observation"}):
        path = tmp_path / f"slots{len(next_of)}"
        some = {name: spec for name, spec in fields.items() if next_of or "next" not in name}
        with Slots(path, some, 100, next_of=next_of, stack={"observation": 2}) as slots:
            for step, (seen, led) in enumerate(episodes(3, 10, 2)):
                row = {
                    "observation": frames_of(seen, 8, 8), "action": step, "reward": step / 2,
                    "next_observation": frames_of(led, 8, 8), "terminated": step % 10 == 9,
                }  # fmt: skip
                slots.put(step, {name: row[name] for name in some})
        with diskreplay.open(path) as buffer:
            assert buffer.observation_space.shape == ((1,) if next_of else (8, 8))
            assert ("next_observation" in buffer.fields) is False
            found = buffer.episodes()
            transitions = found.rows > 0
            assert found.rows[transitions].tolist() == [10, 10, 10]
            assert found.returns[transitions].tolist() == [22.5, 72.5, 122.5]
            batch = buffer.sample(50)
            assert (batch.reward == batch.action / 2).all()
            if not next_of:
                wanted = frames_of(1 + batch.action + batch.action // 10, 8, 8)
                alike(batch.observation, wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"next_of": {"led": "nothing"}}, "next_of: no field 'nothing'"),
        ({"next_of": {"nothing": "led"}}, "next_of: no field 'nothing'"),
        ({"stack": {"nothing": 2}}, "stack: no field 'nothing'"),
        ({"next_of": {"led": "far"}}, "they have to be alike"),
        ({"next_of": {"led": "seen"}, "stack": {"seen": 2, "led": 3}}, "they have to be alike"),
        ({"next_of": {"led": "led"}}, "in no other pair"),
        ({"next_of": {"led": "seen", "seen": "led"}}, "in no other pair"),
        ({"next_of": {"led": "seen", "far": "seen"}}, "in no other pair"),
        ({"stack": {"seen": 4}}, "cannot be 4 frames"),
        ({"stack": {"act": 2}}, "cannot be 2 frames"),
        ({"stack": {"seen": 0}}, "stack"),
        ({"stack": {"seen": 101}}, "stack"),
        ({"stack": 4}, "stack: a dict by the names of fields, found 4"),
        ({"next_of": ["led"]}, "next_of: a dict by the names of fields"),
        ({"next_of": {"led": ["seen"]}}, "next_of: no field"),
        (
            {"next_of": {"led": "seen"}, "compressor": {"led": "zstd", "seen": "raw"}},
            "compressor: 'led' and 'seen' have their frames in common",
        ),
    ],
)
def test_fields_that_cannot_share_frames(options, message):
    with pytest.raises(errors.InvalidInputError, match=message):
        Slots(None, {**BOTH, **FAR, **FLAGS}, 10, **options)


def test_a_store_is_opened_with_what_shares_frames_in_it(tmp_path):
    options = {"next_of": {"led": "seen"}, "stack": {"seen": np.int64(2)}}
    with Slots(tmp_path / "slots", BOTH, 10, **options) as slots:
        assert (slots.next_of, slots.stack) == (options["next_of"], options["stack"])
        assert not slots.columns
    for other in ({}, {"next_of": {"led": "seen"}}, {**options, "stack": {"seen": 3}}):
        with pytest.raises(errors.SchemaError, match=r"made with next_of=\{'led': 'seen'"):
            Slots(tmp_path / "slots", BOTH, 10, **other)
    alike_in_rows = dict.fromkeys(BOTH, ((2, 3, 2), np.uint8))
    with pytest.raises(errors.SchemaError, match="fields are"):
        Slots(tmp_path / "slots", alike_in_rows, 10, **options)
    with Slots.reader(tmp_path / "slots") as reader:
        assert (reader.next_of, reader.stack) == (options["next_of"], options["stack"])

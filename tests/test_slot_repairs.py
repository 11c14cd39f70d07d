"""What `Slots` show after a repair: what was put last, or nothing. Beside a dict of slot to row."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from diskreplay import Slots
from diskreplay.check.repair import repair
from diskreplay.check.verify import verify
from diskreplay.errors import FormatError
from tests.check.damaged import LIVE, flip, segments
from tests.effort import effort

FRAME = (24, 48)  # packed: more than 1 KiB
PLAIN = {"seen": (FRAME, np.uint8), "led": (FRAME, np.uint8)}
STACKED = {"seen": ((3, *FRAME), np.uint8), "led": ((3, *FRAME), np.uint8)}
SMALL = {
    "act": ((), np.int64), "reward": ((), np.float32), "done": ((), np.bool_),
    "wide": ((64,), np.float64),
}  # fmt: skip
LAYOUTS = {
    "plain": (PLAIN, {}),
    "next": (PLAIN, {"next_of": {"led": "seen"}}),
    "stack": (STACKED, {"stack": {"seen": 3, "led": 3}}),
    "next and stack": (STACKED, {"next_of": {"led": "seen"}, "stack": {"seen": 3}}),
}
SIZE, LANES = 120, 2
ALL = np.arange(SIZE * LANES)


class Recorded:
    """Slots that were filled as environments fill them, and a dict of what was put last."""

    def __init__(self, path, layout, order="in turn"):
        frames, self.options = LAYOUTS[layout]
        self.fields = {**frames, **SMALL}
        self.options = {
            **self.options, "lanes": LANES, "weighted": True, "segment_rows": 64,
        }  # fmt: skip
        self.path, self.rows, self.rng = path, {}, np.random.default_rng(7)
        self.seen = [self.frame(2 * lane) for lane in range(LANES)]
        self.slots = self.open()
        for lane in range(LANES):
            turn = np.arange(SIZE * 3 // 2 + 17 * lane) % SIZE
            if order == "any":
                turn = self.rng.integers(0, SIZE, len(turn))
            for slot in lane * SIZE + turn:
                self.put(int(slot))
        if order == "rewritten":
            for slot in self.rng.integers(0, len(ALL), 25).tolist():
                self.put(slot)
        self.slots.weights[:], self.is_weighted = ALL + 0.5, True

    def open(self):
        return Slots(self.path, self.fields, SIZE * LANES, **self.options)

    def like(self, path, source=None):
        """The same rows in a copy of a store."""
        shutil.copytree(source or self.path, path)
        twin = Recorded.__new__(Recorded)
        twin.__dict__.update(self.__dict__)
        twin.path, twin.rows, twin.seen = path, dict(self.rows), list(self.seen)
        twin.rng = np.random.default_rng(11)
        return twin

    def frame(self, value):
        return self.rng.integers(value % 250, value % 250 + 3, self.fields["seen"][0], np.uint8)

    def put(self, slot):
        lane, rng = slot // SIZE, self.rng
        at = len(self.rows) + int(rng.integers(200))
        if rng.random() < 0.1:
            self.seen[lane] = self.frame(at)
        seen = self.seen[lane]
        led = self.frame(at)
        if seen.ndim == 3:
            led = np.concatenate([seen[1:], led[-1:]])
        self.seen[lane] = led
        row = {
            "seen": seen, "led": led, "act": np.int64(rng.integers(1, 1 << 40)),
            "reward": np.float32(rng.normal()), "done": np.bool_(rng.random() < 0.1),
            "wide": rng.normal(size=64),
        }  # fmt: skip
        self.slots.put(slot, row)
        self.rows[slot] = row

    def check(self, slots, least=0):
        """All that is shown was put last; all else is as if nothing had ever been put."""
        used = slots.used
        for name, (shape, dtype) in self.fields.items():
            nothing = np.zeros(shape, dtype)
            wanted = [self.rows[s][name] if used[s] else nothing for s in ALL.tolist()]
            for found in (slots.read(name, ALL), np.asarray(slots.view(name))):
                np.testing.assert_array_equal(found, np.stack(wanted), err_msg=name)
        there = np.concatenate([slots.order(lane) for lane in range(LANES)])
        assert np.array_equal(np.sort(there), np.flatnonzero(used))
        assert used.sum() >= least
        return used

    def check_all(self, least=0):
        """After a repair: sound, seen alike by a reader, and whole again once it is written."""
        assert verify(self.path).findings == ()
        with Slots.reader(self.path) as reader:
            seen = self.check(reader, least)
        with self.open() as slots:
            self.slots = slots
            used = self.check(slots, least)
            assert np.array_equal(used, seen)
            weighted = ~np.isnan(slots.weights)
            assert not (weighted & ~used).any()
            assert weighted[used].all() or not self.is_weighted
            assert (slots.weights[weighted] == ALL[weighted] + 0.5).all()
            for slot in [slot for slot in self.rows if not used[slot]]:
                self.put(slot)
            assert self.check(slots).sum() == len(self.rows)
        with self.open() as slots:
            assert self.check(slots).sum() == len(self.rows)
        assert verify(self.path).findings == ()
        return used


_MADE = {}


@pytest.fixture(scope="module", autouse=True)
def _made_once(tmp_path_factory):
    _MADE["root"] = tmp_path_factory.mktemp("made")
    yield
    _MADE.clear()


def recorded(path, layout, order, *, killed=False):
    """A copy of such a store, closed or as a kill leaves it, with a checkpoint beside it."""
    key = layout, order
    if key not in _MADE:
        root = _MADE["root"] / f"{len(_MADE)}"
        made = Recorded(root / "store", *key)
        with made.slots._rows.store.maintenance.lock:  # it renames and removes files
            shutil.copytree(root / "store", root / "killed")
        made.slots.save(root / "saved", 1)
        made.slots.close()
        shutil.copytree(root / "saved" / "replay_ckpt.1", root / "copy")  # of its own inodes
        _MADE[key] = root, made
    root, made = _MADE[key]
    twin = made.like(path / "store", root / ("killed" if killed else "store"))
    twin.is_weighted = not killed
    return twin, root / "copy"


@pytest.mark.parametrize("slots", [
    {"stack": {"seen": 10**12}}, {"stack": {"seen": -3}}, {"stack": {"seen": "4"}}, {"stack": [4]},
    {"stack": None}, {"next_of": ["seen"]}, [], None,
])  # fmt: skip
def test_damaged_stacks_are_refused(tmp_path, slots):
    """Frames of lost rows would be looked for in 10**12 others, or in none."""
    twin, _copy = recorded(tmp_path, "stack", "any")
    path = twin.path / "zarr.json"
    document = json.loads(path.read_text())
    attributes = document["attributes"]["diskreplay"]
    attributes["slots"] = {**attributes["slots"], **slots} if isinstance(slots, dict) else slots
    path.write_text(json.dumps(document))
    harmed(twin, "frames", "flipped", 0.6)
    before = path.read_bytes()
    for call in (verify, repair):
        with pytest.raises(FormatError, match="restore the file"):
            call(twin.path)
    assert path.read_bytes() == before


def stored(twin, name):
    names = [path.name for path in twin.path.iterdir()]
    if name == "frames":
        return next(each for each in names if each.startswith("seen"))
    return name


def harmed(twin, name, harm, at):
    """Damage a file of a field: of its segments, or its tail."""
    if name == "tail":
        fields = json.loads((twin.path / "zarr.json").read_text())["attributes"]["diskreplay"]
        names = [field["name"] for field in fields["fields"]]
        path = twin.path / LIVE / f"tail.{names.index(stored(twin, 'frames'))}"
    else:
        files = segments(twin.path, stored(twin, name))
        path = files[int(len(files) * at)]
    if harm == "flipped":
        flip(path, int(path.stat().st_size * at))
    elif harm == "cut":
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * at)])
    else:
        path.unlink()


MIXED = [("stack", "rewritten"), ("next and stack", "in turn"), ("next and stack", "any")]
MIXED += effort([], [("plain", "any"), ("next", "in turn")])


@pytest.mark.parametrize(("layout", "order"), MIXED)
@pytest.mark.parametrize(
    ("name", "harm"),
    [("slot", "flipped"), ("slot", "missing"), ("frames", "flipped"), ("frames", "missing"),
     ("wide", "flipped"), ("act", "missing"), ("reward", "flipped"), ("is_final", "missing")],
)  # fmt: skip
@pytest.mark.costly(2)
def test_what_is_lost_is_in_no_slot(tmp_path, name, harm, order, layout):
    twin, copy = recorded(tmp_path, layout, order)
    harmed(twin, name, harm, 0.6)
    assert verify(twin.path).findings
    again = twin.like(tmp_path / "again")
    assert repair(twin.path).aside is not None
    used = twin.check_all()
    assert used.sum() < len(twin.rows) or harm == "flipped"  # where no row is that counts
    if (name, harm) in [("frames", "flipped"), ("wide", "flipped")]:
        assert used.sum() > len(twin.rows) // 3
    repair(again.path, sources=[copy])
    assert again.check_all().sum() == len(again.rows)


@pytest.mark.costly(2)
@pytest.mark.parametrize(("layout", "order"), MIXED)
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_what_was_in_a_tail_is_in_no_slot(tmp_path, harm, order, layout):
    twin, _copy = recorded(tmp_path, layout, order, killed=True)
    harmed(twin, "tail", harm, 0.5)
    repair(twin.path)
    assert 0 < twin.check_all().sum() < len(twin.rows)


@pytest.mark.costly
def test_a_missing_back_is_in_no_slot(tmp_path):
    twin, _copy = recorded(tmp_path, "next and stack", "rewritten")
    harmed(twin, "back", "missing", 0.5)
    repair(twin.path)
    twin.check_all()


@pytest.mark.costly
@settings(max_examples=effort(6, 60), deadline=None, phases=[Phase.generate])
@given(
    mixed=st.sampled_from(MIXED), killed=st.booleans(), with_copy=st.booleans(),
    harms=st.lists(
        st.tuples(
            st.sampled_from(["slot", "frames", "wide", "act", "reward", "step", "tail"]),
            st.sampled_from(["flipped", "missing", "cut"]), st.floats(0, 0.99),
        ),
        min_size=1, max_size=3,
    ),
)  # fmt: skip
def test_whatever_is_lost(mixed, killed, with_copy, harms):
    with tempfile.TemporaryDirectory() as path:
        twin, copy = recorded(Path(path), *mixed, killed=killed)
        for name, harm, at in harms:
            # Of bytes that no checksum is there for yet, nothing tells that they are rotten.
            if killed and harm == "flipped" and name != "frames":
                harm = "missing"
            if killed or name != "tail":
                with contextlib.suppress(FileNotFoundError, IndexError):
                    harmed(twin, name, harm, at)
        repair(twin.path, sources=[copy] * with_copy)
        twin.check_all()


FEW = {"value": ((), np.int64), "wide": ((16,), np.float64)}


@pytest.mark.parametrize("lanes", [1, 2])
def test_rows_of_lost_slots_may_have_been_newer_ones(tmp_path, lanes):
    """What was put before them is not shown: it may have been put again."""
    total = 3000
    with Slots(tmp_path / "store", FEW, total * lanes, lanes=lanes, segment_rows=1024) as slots:
        for lane in range(lanes):
            for start in range(0, total + 500, 250):
                at = lane * total + np.arange(start, start + 250) % total
                slots.put(at, {"value": at + start, "wide": np.ones((250, 16)) * at[:, None]})
        whole = slots.read("value", np.arange(total * lanes))
    path = segments(tmp_path / "store", "slot")[1]  # rows 1024 up to 2048
    flip(path, 8 * 200 * lanes)
    lost = repair(tmp_path / "store").losses
    stop = max(high for loss in lost for _env, _low, high in loss.rows)
    assert 1024 < stop <= 1024 + 512
    with Slots(tmp_path / "store", FEW, total * lanes, lanes=lanes, segment_rows=1024) as slots:
        assert verify(tmp_path / "store").clean
        for lane in range(lanes):
            used = slots.used[lane * total : (lane + 1) * total]
            # Rows 500 to 2999 are in the slots of their numbers, later ones in 0 to 499.
            assert used[:500].all()
            assert not used[500:stop].any()
            assert used[stop:].all()
        kept = np.flatnonzero(slots.used)
        assert (slots.read("value", kept) == whole[kept]).all()


def test_a_lane_that_was_emptied_stays_empty(tmp_path):
    with Slots(tmp_path / "store", FEW, 4000) as slots:
        slots.put(np.arange(2000), {"value": np.arange(2000), "wide": np.ones((2000, 16))})
        slots.empty()
        slots.put(np.arange(30), {"value": np.arange(30), "wide": np.ones((30, 16))})
    flip(segments(tmp_path / "store", "slot")[-1], 8 * 2000)
    repair(tmp_path / "store")
    with Slots(tmp_path / "store", FEW, 4000) as slots:
        assert not slots.used[30:].any()


def test_an_older_repair_is_understood(tmp_path):
    """Rows of which the slot reads as 0: their lane, and what was put later."""
    with Slots(tmp_path / "store", FEW, 400, lanes=2) as slots:
        slots.put([0, 1, 2, 200, 201], {"value": [5, 6, 7, 8, 9], "wide": np.ones((5, 16))})
    path = segments(tmp_path / "store", "slot")[0]
    flip(path, 16)
    repair(tmp_path / "store")
    with Slots(tmp_path / "store", FEW, 400, lanes=2) as slots:
        assert not slots.used.any()
        slots.put([1, 200], {"value": [3, 4], "wide": np.zeros((2, 16))})
    with Slots(tmp_path / "store", FEW, 400, lanes=2) as slots:
        assert np.flatnonzero(slots.used).tolist() == [1, 200]
        assert slots.read("value", [0, 1, 200]).tolist() == [0, 3, 4]

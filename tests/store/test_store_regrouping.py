"""Groups of envs of several checkpoints linked into one, beside a table of what each env has."""

import json
import shutil

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.errors import CorruptCheckpointError, FormatError, StoreMovedError
from diskreplay.store import codec, manifest, priorities, regrouping
from diskreplay.store.format import read_attributes
from diskreplay.store.loading import check_bytes
from diskreplay.store.place import Place
from diskreplay.store.regrouping import Piece, SourceCheckpoint
from diskreplay.store.segment import Seal

GROUP = 2


def save(tmp_path, name, envs, rows, *, capacity=None, alpha=None, seed=0, attached=()):
    """A checkpoint whose rows say by their actions who they are."""
    kind = diskreplay.ReplayBuffer if alpha is None else diskreplay.PrioritizedReplayBuffer
    options = {} if alpha is None else {"alpha": alpha}
    rng = np.random.default_rng(seed)
    with kind(
        tmp_path / f"live-{name}", observation_space=Box(0, 255, (512,), "uint8"),
        action_space=Discrete(1_000_000), num_envs=envs, env_group=GROUP, segment_rows=8,
        capacity=None if capacity is None else capacity * envs, compressor="raw", name=name,
        **options,
    ) as buffer:  # fmt: skip
        no = np.zeros(envs, bool)
        for row in range(rows):
            mask = (rng.random(envs) < 0.7) | (row == 0)
            actions = seed * 100_000 + np.arange(envs) * 1000 + buffer.bounds[:, 1]
            frames = np.repeat((actions % 251).astype(np.uint8)[:, None], 512, 1)
            buffer.add(frames, actions, actions / 7, no, no, mask=mask)
        if alpha is not None:
            ids = buffer.sampleable_ids()
            buffer.update_priorities(ids, 1.0 + rng.random(len(ids)))
        files = {each: each.encode() for each in attached}
        return buffer.save(tmp_path / "saved", 1, attachments=files)


@pytest.fixture
def source(request):
    """Opens sources, which are closed at the end."""
    opened = []

    def open_(path):
        opened.append(SourceCheckpoint(path))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def contents(path):
    """Of each env: its bounds, its rows, and their leaves if there are any."""
    with diskreplay.open(path) as buffer:
        saved = priorities.read(path / "priority", buffer.num_envs)
        found = []
        for env, (first, stop) in enumerate(buffer.bounds.tolist()):
            ids = np.arange(first, stop) * buffer.num_envs + env
            rows = [buffer.take(name, ids) for name in ("observation", "action", "step")]
            rows[0] = rows[0].max(axis=1) + 1000 * rows[0].min(axis=1).astype(int)
            rows = [values.tolist() for values in rows]
            leaves = np.full(stop - first, np.nan)
            if saved is not None:
                leaves = saved.leaves[first - saved.start : stop - saved.start, env]
            found.append(((first, stop), rows, np.nan_to_num(leaves, nan=-1).tolist()))
        return found


def meta_of(source, **more):
    return {**source.meta, **more}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_groups_keep_all_that_they_have_wherever_they_come_to(tmp_path, source, order):
    paths = [
        save(tmp_path, "a", 4, 40, capacity=20, alpha=0.5, seed=1),
        save(tmp_path, "b", 3, 25, alpha=0.5, seed=2),  # the last group is half
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    a, b = map(source, paths)
    pieces = [Piece(a, 0, 2), Piece(a, 2, 4), Piece(b, 0, 2)]
    pieces = [*(pieces[at] for at in order), Piece(b, 2, 3)]
    expected = [
        env for piece in pieces for env in contents(piece.source.path)[piece.start : piece.stop]
    ]
    target = tmp_path / "new" / "r_ckpt.1"
    regrouping.write(target, pieces, meta_of(a), [])
    assert verify(target).findings == ()
    assert contents(target) == expected
    assert read_attributes(target)["capacity"] is None  # one of them keeps all
    linked = {p.stat().st_ino for path in paths for p in path.glob("*/c.*")}
    segments = [p for p in target.glob("*/c.*") if p.parent.name != "priority"]
    assert {p.stat().st_ino for p in segments} <= linked
    assert len(segments) >= 28 + 6
    assert before == {path: path.read_bytes() for path in before}
    assert [p.name for p in target.parent.iterdir()] == ["r_ckpt.1"]
    for key, seal in manifest.read_whole(target).files.items():
        check_bytes(target, key, manifest.read_whole(target))
        assert (target / key).stat().st_size == seal.size


def test_a_capacity_is_that_of_the_env_that_keeps_most(tmp_path, source):
    a = source(save(tmp_path, "a", 2, 40, capacity=16, seed=1))
    b = source(save(tmp_path, "b", 4, 40, capacity=30, seed=2))
    assert (a.rows_per_env, b.rows_per_env) == (16, 30)
    target = tmp_path / "r_ckpt.1"
    regrouping.write(target, [Piece(a, 0, 2), Piece(b, 2, 4)], meta_of(b), [])
    made = source(target)
    assert made.capacity == 4 * 30
    assert made.first.tolist() == a.first.tolist() + b.first[2:].tolist()
    assert made.count.tolist() == a.count.tolist() + b.count[2:].tolist()
    assert made.transitions.tolist() == a.transitions.tolist() + b.transitions[2:].tolist()
    assert (a.first > 0).all()
    assert regrouping.concatenated([Piece(b, 1, 3), Piece(a, 0, 2)], "count").tolist() == [
        *b.count[1:3].tolist(), *a.count.tolist()
    ]  # fmt: skip
    assert Piece(b, 1, 4).size == 3


def test_a_set_of_priorities_that_only_some_have_is_unknown_for_the_others(tmp_path, source):
    a = source(save(tmp_path, "a", 2, 20, alpha=0.5, seed=1))
    b = source(save(tmp_path, "b", 2, 30, seed=2))
    assert b.leaves("priority") is None
    target = tmp_path / "r_ckpt.1"
    regrouping.write(target, [Piece(b, 0, 2), Piece(a, 0, 2)], meta_of(a), [])
    saved, mine = source(target).leaves("priority"), a.leaves("priority")
    assert saved.alpha == mine.alpha == 0.5
    assert np.isnan(saved.leaves[:, :2]).all()
    np.testing.assert_array_equal(saved.leaves[: len(mine.leaves), 2:], mine.leaves)
    assert np.isnan(saved.leaves[len(mine.leaves) :, 2:]).all()


def test_leaves_that_begin_with_a_later_row_come_to_that_row(tmp_path, source, monkeypatch):
    a = source(save(tmp_path, "a", 2, 20, alpha=0.5, seed=1))
    b = source(save(tmp_path, "b", 2, 20, alpha=0.5, seed=2))
    whole = a.leaves("priority")
    late = whole._replace(start=6, leaves=whole.leaves[6:])
    monkeypatch.setattr(a, "leaves", lambda name: late)  # in files they begin at such a row later
    target = tmp_path / "r_ckpt.1"
    regrouping.write(target, [Piece(a, 0, 2), Piece(b, 0, 2)], meta_of(a), [])
    saved = source(target).leaves("priority").leaves
    assert np.isnan(saved[:6, :2]).all()
    np.testing.assert_array_equal(saved[6 : len(whole.leaves), :2], whole.leaves[6:])
    np.testing.assert_array_equal(saved[:6, 2:], b.leaves("priority").leaves[:6])


def test_leaves_with_several_alphas_are_refused_and_nothing_is_left(tmp_path, source):
    a = source(save(tmp_path, "a", 2, 10, alpha=0.5, seed=1))
    b = source(save(tmp_path, "b", 2, 10, alpha=0.75, seed=2))
    with pytest.raises(FormatError, match=r"powers of \['0.5', '0.75'\]"):
        regrouping.write(tmp_path / "t" / "r_ckpt.1", [Piece(a, 0, 2), Piece(b, 0, 2)], {}, [])
    assert list((tmp_path / "t").iterdir()) == []


def test_attachments_come_from_those_that_are_named(tmp_path, source):
    a = source(save(tmp_path, "a", 2, 10, seed=1, attached=["net.pt", "x/y"]))
    b = source(save(tmp_path, "b", 2, 10, seed=2, attached=["other.pt"]))
    for attached, names in (([a, b], {"net.pt", "x/y", "other.pt"}), ([b], {"other.pt"}), ([], ())):
        target = tmp_path / "r_ckpt.1"
        regrouping.write(target, [Piece(a, 0, 2), Piece(b, 0, 2)], meta_of(a), attached)
        contents = manifest.read_whole(target)
        assert contents.attachments.keys() == set(names)
        for name in names:
            assert (target / manifest.ATTACHMENTS / name).read_bytes() == name.encode()
        assert verify(target).findings == ()


def test_what_the_buffer_keeps_in_the_attributes_is_what_was_given(tmp_path, source):
    a = source(save(tmp_path, "a", 4, 10, seed=1))
    assert a.meta.keys().isdisjoint(["first", "count", "transitions", "fields", "num_envs"])
    target = tmp_path / "r_ckpt.1"
    regrouping.write(target, [Piece(a, 2, 4)], meta_of(a, mark=[1, 2]), [])
    assert source(target).meta == {**a.meta, "mark": [1, 2]}
    assert (source(target).num_envs, source(target).env_group) == (2, GROUP)


def test_a_source_that_another_took_the_place_of_amid_it(tmp_path, source, monkeypatch):
    path = save(tmp_path, "a", 4, 10, seed=1)
    a = source(path)
    shutil.copytree(path, tmp_path / "other")
    link_field = regrouping._Build._link_field

    def exchanged(self, field):
        if path.exists() and field.name == "reward":
            path.rename(tmp_path / "before")
            (tmp_path / "other").rename(path)
        link_field(self, field)

    monkeypatch.setattr(regrouping._Build, "_link_field", exchanged)
    with pytest.raises(StoreMovedError):
        regrouping.write(tmp_path / "t" / "r_ckpt.1", [Piece(a, 0, 4)], meta_of(a), [])
    assert list((tmp_path / "t").iterdir()) == []


def damage(path, change):
    """Write a file of a checkpoint anew, and its checksum in the list too."""
    key = path.relative_to(root := path.parents[1]).as_posix()
    document = json.loads(path.read_text())
    change(document)
    path.chmod(0o600)
    path.write_text(json.dumps(document))
    listing = manifest.read(root)
    data = path.read_bytes()
    files = {**listing.files, key: Seal(len(data), codec.crc32c(data))}
    (root / manifest.NAME).chmod(0o600)
    (root / manifest.NAME).write_bytes(manifest.encode(files, listing.saved_at))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["attributes"].pop("diskreplay"),
        lambda document: document["attributes"]["diskreplay"].pop("seals"),
        lambda document: document.update(data_type="int8"),
        lambda document: document.update(shape=[3, 2]),
        lambda document: document.update(attributes=[]),
        lambda document: document["attributes"]["diskreplay"].update(seals=5),
    ],
)
def test_metadata_of_a_field_that_cannot_be_so(tmp_path, source, change):
    path = save(tmp_path, "a", 2, 10, seed=1)
    damage(path / "action" / "zarr.json", change)
    a = source(path)
    with pytest.raises(FormatError, match=r"action/zarr\.json: damaged"):
        regrouping.write(tmp_path / "t" / "r_ckpt.1", [Piece(a, 0, 2)], meta_of(a), [])
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.parametrize("key", ["action/c.0.0", "action/zarr.json"])
def test_a_file_that_the_list_lacks(tmp_path, source, key):
    a = source(save(tmp_path, "a", 2, 10, seed=1))
    del a.contents.files[key]
    with pytest.raises(CorruptCheckpointError, match=f"{key} is not in its list"):
        regrouping.write(tmp_path / "t" / "r_ckpt.1", [Piece(a, 0, 2)], meta_of(a), [])
    assert list((tmp_path / "t").iterdir()) == []


def test_rotten_leaves_are_not_taken(tmp_path, source):
    path = save(tmp_path, "a", 2, 10, alpha=0.5, seed=1)
    a = source(path)
    (file,) = (path / "priority").glob("c*")
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="priority"):
        a.leaves("priority")


def test_a_source_that_cannot_be_read_is_let_go_of(tmp_path, monkeypatch):
    class Noted(Place):
        was_closed = False

        def close(self):
            self.was_closed = True
            super().close()

    path, made = save(tmp_path, "a", 2, 10, seed=1), []
    monkeypatch.setattr(regrouping, "Place", lambda path: made.append(Noted(path)) or made[-1])
    source = SourceCheckpoint(path)
    assert not made.pop().was_closed
    source.close()
    (path / "zarr.json").chmod(0o600)
    (path / "zarr.json").write_text("{}")
    with pytest.raises(CorruptCheckpointError, match=r"zarr\.json"):
        SourceCheckpoint(path)
    assert [place.was_closed for place in made] == [True]

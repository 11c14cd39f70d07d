"""What the older APIs note beside their rows comes back from a file: where it cannot be, a
reopening or a load is refused, and the rows are there all the same.
"""

import json
import shutil

import google_crc32c
import numpy as np
import pytest

from diskreplay.compat import cpprb, cs294, rainbow
from diskreplay.errors import DiskReplayError
from tests.effort import effort

EXTREMES = (
    -(2**70), -1, -0.5, 0, 2**31, 2**62, 2**63, 2**70, 1e-300, 1e39, 1e290, 1e308,
    True, "abc", None, [], {},
)  # fmt: skip
SIZE = 12


class Cpprb:
    notes = "size", "max_priority", "newest_weight", "alpha", "eps"

    @staticmethod
    def make(path, **changed):
        env = {"obs": {"shape": (40, 40, 2), "dtype": np.uint8}, "rew": {}}
        options = {"next_of": "obs", "stack_compress": "obs", "alpha": 0.5} | changed
        return cpprb.PrioritizedReplayBuffer(SIZE, env, path=path, **options)

    @staticmethod
    def add(buffer, i):
        stack = np.stack([np.full((40, 40), n % 256, np.uint8) for n in (i, i + 1, i + 2)], -1)
        buffer.add(obs=stack[..., :2], next_obs=stack[..., 1:], rew=i)

    @staticmethod
    def use(buffer):
        batch = buffer.sample(4)
        assert np.isfinite(batch["weights"]).all()
        buffer.update_priorities(batch["indexes"], np.ones(4))

    @staticmethod
    def rewards(buffer):
        return buffer.get_all_transitions()["rew"].ravel().tolist()


class Rainbow:
    notes = "max_priority", "newest_weight"

    @staticmethod
    def make(path, **changed):
        return rainbow.PrioritizedReplayBuffer(3, SIZE, 4, path=path, **changed)

    @staticmethod
    def add(buffer, i):
        buffer.store(np.full(3, i), i, i, np.full(3, i + 1), False)

    @staticmethod
    def use(buffer):
        batch = buffer.sample_batch()
        assert np.isfinite(batch["weights"]).all()
        buffer.update_priorities(batch["indices"], np.ones(4))

    @staticmethod
    def rewards(buffer):
        return buffer.rews_buf[: len(buffer)].tolist()


class Cs294:
    notes = ("closed_at",)

    @staticmethod
    def make(path):
        return cs294.ReplayBuffer(SIZE, 2, path=path)

    @staticmethod
    def add(buffer, i):
        buffer.store_effect(buffer.store_frame(np.full((4, 4, 1), i, np.uint8)), 1, i, False)

    @staticmethod
    def use(buffer):
        buffer.sample(2)

    @staticmethod
    def rewards(buffer):
        return buffer._rewards[: buffer.num_in_buffer].tolist()


def attributes(path):
    document = json.loads((path / "zarr.json").read_text())
    return document, document["attributes"]["diskreplay"]


def write(path, document):
    (path / "zarr.json").write_text(json.dumps(document))


def filled(kind, path, rows=9):
    buffer = kind.make(path)
    for i in range(rows):
        kind.add(buffer, i)
    kept = kind.rewards(buffer)
    buffer.close()
    return kept


@pytest.mark.parametrize("kind", [Cpprb, Rainbow, Cs294])
@pytest.mark.costly(1)
def test_a_note_that_cannot_be_is_refused_and_the_rows_stay(kind, tmp_path):
    kept = filled(kind, tmp_path / "made")
    refused = taken = 0
    for name in kind.notes:
        for value in EXTREMES[kind.notes.index(name) % effort(2, 1) :: effort(2, 1)]:
            path = tmp_path / "store"
            shutil.copytree(tmp_path / "made", path)
            document, found = attributes(path)
            assert name in found["notes"]
            right, found["notes"][name] = found["notes"][name], value
            write(path, document)
            try:
                buffer = kind.make(path)
            except DiskReplayError as error:
                if str(path) not in str(error) or name not in str(error):
                    raise
                refused += 1
                found["notes"][name] = right
                write(path, document)
                buffer = kind.make(path)
                assert kind.rewards(buffer) == kept
            else:
                taken += 1
            with buffer:
                for i in range(9, 30):
                    kind.add(buffer, i)
                kind.use(buffer)
            kind.make(path).close()
            shutil.rmtree(path)
    assert refused >= effort(2, 5) * len(kind.notes)
    assert taken


@pytest.mark.parametrize("kind", [Cpprb, Rainbow])
def test_a_note_beside_the_leaves_that_cannot_be_is_refused(kind, tmp_path):
    kept = filled(kind, tmp_path / "store")
    metadata = tmp_path / "store" / "priority" / "zarr.json"
    right = metadata.read_text()
    for name in json.loads(right)["attributes"]["diskreplay"]["notes"]:
        for value in (-(2**70), -0.5, 10**400, True, "abc", None, [], {}):
            document = json.loads(right)
            document["attributes"]["diskreplay"]["notes"][name] = value
            metadata.write_text(json.dumps(document))
            with pytest.raises(DiskReplayError, match=f"{metadata}: .*damaged"):
                kind.make(tmp_path / "store")
    metadata.write_text(right)
    with kind.make(tmp_path / "store") as buffer:
        assert kind.rewards(buffer) == kept


@pytest.mark.parametrize("kind", [Cpprb, Rainbow, Cs294])
def test_a_number_of_the_first_row_beyond_all_numbers(kind, tmp_path):
    filled(kind, tmp_path / "store")
    document, found = attributes(tmp_path / "store")
    for base in (-1, 2**62, 2**63 - 1, 2**64):
        found["base"] = base
        write(tmp_path / "store", document)
        with pytest.raises(DiskReplayError, match="base"):
            kind.make(tmp_path / "store")


@pytest.mark.parametrize("kind", [Cpprb, Rainbow])
def test_the_largest_priority_under_another_exponent(kind, tmp_path):
    """One that it makes too large a leaf of becomes the largest there can be."""
    filled(kind, tmp_path / "store")
    document, found = attributes(tmp_path / "store")
    found["notes"]["max_priority"] = 1e38
    write(tmp_path / "store", document)
    for alpha in (20.0, 0.0, 0.5, 3.0):
        with kind.make(tmp_path / "store", alpha=alpha) as buffer:
            kind.add(buffer, 9)
            kind.use(buffer)


def test_links_that_lead_nowhere(tmp_path):
    """Which of the frames before are part of a stack: cpprb's."""
    kept = filled(Cpprb, tmp_path / "made")
    fields = [field["name"] for field in attributes(tmp_path / "made")[1]["fields"]]
    links = [name for name in fields if "_run" in name or "_follows" in name]
    assert len(links) == 2
    for name in links:
        for value in (-(2**31), -2, 3, 2**31 - 1):
            path = tmp_path / "store"
            shutil.copytree(tmp_path / "made", path)
            chunk = next((path / name).glob("c*0.0"))
            data = np.frombuffer(chunk.read_bytes(), "<i4").copy()
            data[5] = value
            chunk.chmod(0o644)
            chunk.write_bytes(data.tobytes())
            with pytest.raises(DiskReplayError, match=rf"{name}: damaged: row 5"):
                Cpprb.make(path)
            chunk.write_bytes((tmp_path / "made" / name / chunk.name).read_bytes())
            with Cpprb.make(path) as buffer:
                assert Cpprb.rewards(buffer) == kept
            shutil.rmtree(path)


# -- ReAgent's, which has checkpoints


def agree(checkpoint):
    """Write the manifest anew."""
    document = json.loads((checkpoint / "is_final/saved/manifest.json").read_text())
    for key in document["files"]:
        data = (checkpoint / key).read_bytes()
        document["files"][key] = [len(data), google_crc32c.value(data)]
    (checkpoint / "is_final/saved/manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize("name", ["max_recorded_priority", "weighed", "newest_weight", "column"])
@pytest.mark.costly(1)
def test_reagent_refuses_what_cannot_be(name, tmp_path):
    reagent = pytest.importorskip("diskreplay.compat.reagent", reason="needs torch")

    def make(path):
        return reagent.PrioritizedReplayBuffer(
            (2,), 3, SIZE, 4, path=path, checkpoint_format="native"
        )

    def add(buffer, i):
        buffer.add(np.full(2, i % 256, np.uint8), i % 3, float(i), i % 5 == 4, float(1 + i % 4))

    with make(tmp_path / "store") as buffer:
        for i in range(8):
            add(buffer, i)
        (tmp_path / "saved").mkdir()
        buffer.save(tmp_path / "saved", 1)
        add(buffer, 8)
        ids = np.arange(SIZE, dtype=np.int32)
        before = buffer.get_priority(ids).tolist(), int(buffer.add_count)
        checkpoint, refused = tmp_path / "saved" / "replay_ckpt.1", 0
        whole = (checkpoint / "zarr.json").read_bytes()
        for value in EXTREMES:
            document, found = attributes(checkpoint)
            if name != "column":
                found["notes"][name] = value
            elif (
                type(value) in (int, float) and not 1e38 < value < 1e297
            ):  # of rows whose weights were not written any more
                found["notes"]["weighed"] = 0
                chunk = next((checkpoint / "priority_").glob("c*0.0"))
                data = np.frombuffer(chunk.read_bytes(), "<f8").copy()
                data[5] = value
                chunk.chmod(0o644)
                chunk.write_bytes(data.tobytes())
            write(checkpoint, document)
            agree(checkpoint)
            try:
                buffer.load(tmp_path / "saved", 1)
            except DiskReplayError as error:
                if str(checkpoint) not in str(error):
                    raise
                refused += 1
                assert (buffer.get_priority(ids).tolist(), int(buffer.add_count)) == before
            else:
                buffer.sample_transition_batch()
                buffer.save(tmp_path / "saved", 2)
                buffer.load(tmp_path / "saved", 2)
                before = buffer.get_priority(ids).tolist(), int(buffer.add_count)
            (checkpoint / "zarr.json").write_bytes(whole)
        assert refused >= 4
    # The same, of a store that is reopened.
    document, found = attributes(tmp_path / "store")
    if name != "column":
        found["notes"][name] = "abc"
    else:
        found["notes"]["weighed"] = 0
        chunk = next((tmp_path / "store" / "priority_").glob("c*0.0"))
        data = np.frombuffer(chunk.read_bytes(), "<f8").copy()
        data[:] = np.nan
        chunk.write_bytes(data.tobytes())
    write(tmp_path / "store", document)
    with pytest.raises(DiskReplayError, match="damaged"):
        make(tmp_path / "store")

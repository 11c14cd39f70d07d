"""Stores, checkpoints and exports made to hurt: what they once broke, each as small as it gets."""

import contextlib
import gzip
import io
import json
import multiprocessing
import os
import shutil
import struct
import zipfile

import google_crc32c
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay import errors
from diskreplay.check.verify import verify

OPTIONS = {
    "observation_space": Box(0, 255, (64, 64), "uint8"), "action_space": Discrete(4),
    "capacity": 64, "segment_rows": 16, "extras": {"n": ((), "int64")},
}  # fmt: skip

LIVE = "is_final/live"
MANIFEST = "is_final/saved/manifest.json"


def make_store(directory):
    with diskreplay.PrioritizedReplayBuffer(
        directory / "store", **OPTIONS, compressor="lz4"
    ) as buffer:
        for i in range(100):
            buffer.add(np.full((64, 64), i, np.uint8), 1, 0.0, False, False, n=i)
        buffer.save(directory / "checkpoints", 1)


@pytest.fixture
def store(filled, tmp_path):
    filled(make_store)
    return tmp_path / "store"


def make_killed(directory):
    with diskreplay.PrioritizedReplayBuffer(
        directory / "live", **OPTIONS, compressor="lz4"
    ) as buffer:
        for i in range(107):
            buffer.add(np.full((64, 64), i, np.uint8), 1, 0.0, False, False, n=i)
        buffer._rows.store.maintenance.run()  # blocks are compressed that nobody waits for yet
        with buffer._rows.store.maintenance.lock:  # no file is renamed meanwhile
            shutil.copytree(directory / "live", directory / "store")


@pytest.fixture
def killed(filled, tmp_path):
    """A store as a kill leaves it, with a tail and open shards."""
    filled(make_killed)
    return tmp_path / "store"


def change(path, *keys, value):
    document = holder = json.loads(path.read_bytes())
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    path.write_text(json.dumps(document))


def refused(call, seconds=400):
    """In a process of its own: some of these hung."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_attempt, args=(call,))
    process.start()
    process.join(seconds)
    alive = process.is_alive()
    process.kill()
    process.join()
    assert not alive, "it hangs"
    assert process.exitcode == 0


def _attempt(call):
    try:
        call()
    except errors.DiskReplayError:
        os._exit(0)
    except BaseException as error:
        print(repr(error))
        os._exit(2)
    os._exit(3)


def test_spares_of_a_store_that_was_marked_closed_and_killed(store):
    """Killed between `mark_closed` and the removal of the spares."""
    (store / LIVE / "spare.0.23").write_bytes(bytes(65536))
    (store / LIVE / "unsealed.0.0").write_bytes(bytes(65536))
    assert verify(store).clean
    diskreplay.open(store, mode="a").close()
    assert not list((store / LIVE).glob("*.23"))
    assert not (store / LIVE / "unsealed.0.0").exists()


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("num_envs",), 0), (("fields",), []), (("capacity",), 2**45),
        (("fields", 0, "shape"), [2**31, 2**31]), (("action_space", "n"), 2**64),
    ],
)  # fmt: skip
def test_attributes(store, keys, value):
    change(store / "zarr.json", "attributes", "diskreplay", *keys, value=value)
    refused(lambda: diskreplay.open(store))
    refused(lambda: diskreplay.open(store, mode="a"))
    with contextlib.suppress(errors.DiskReplayError):  # it does not look at options and spaces
        verify(store)


def test_deep_spaces(store):
    space = '{"type": "Tuple", "spaces": [' * 900 + '{"type": "Discrete"}' + "]}" * 900
    change(store / "zarr.json", "attributes", "diskreplay", "observation_space", value="%")
    text = (store / "zarr.json").read_text().replace('"%"', space)
    (store / "zarr.json").write_text(text)
    refused(lambda: diskreplay.open(store))


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("at", ["zarr.json", "reward/zarr.json"])
def test_numbers_that_json_does_not_have(store, tmp_path, at, text):
    """A checkpoint with one was loaded up to where it could not be written again."""
    checkpoint = tmp_path / "checkpoints" / "replay_ckpt.1"
    path = checkpoint / at
    change(path, "attributes", "diskreplay", "stack_size", value="%")
    path.write_text(path.read_text().replace('"%"', text))
    listed = [path.stat().st_size, google_crc32c.value(path.read_bytes())]
    change(checkpoint / MANIFEST, "files", at, value=listed)
    with diskreplay.open(store, mode="a") as buffer:
        with pytest.raises(errors.DiskReplayError, match=f"not valid JSON.*{text}"):
            buffer.load(tmp_path / "checkpoints", 1)
        assert buffer.add_count == 100


@pytest.mark.parametrize("name", ["reward", "observation"])
def test_seals_beyond_64_bits(store, name):
    change(
        store / name / "zarr.json", "attributes", "diskreplay", "seals", value={"0/0": [2**70, 1]}
    )
    refused(lambda: diskreplay.open(store, mode="a"))


def test_an_empty_shape_is_found(store):
    change(store / "reward" / "zarr.json", "shape", value="")
    assert not verify(store).clean


def test_priorities_with_a_list_for_a_shape(store):
    change(store / "priority" / "zarr.json", "shape", 0, value=[[]])
    assert not verify(store).clean


@pytest.mark.parametrize(
    "name",
    ["observation/c.4.0.0.0", "priority/c.0.0", "reward/zarr.json", "priority/zarr.json",
     f"{LIVE}/lock", f"{LIVE}/state"],
)  # fmt: skip
def test_pipes(store, name):
    (store / name).unlink()
    os.mkfifo(store / name)
    refused(lambda: len(diskreplay.open(store, mode="a")))


@pytest.mark.parametrize(
    "name",
    ["reward/c.0.0", f"{LIVE}/lock", f"{LIVE}/tail.0", f"{LIVE}/open.0/6.0", f"{LIVE}/state"],
)
def test_links_are_not_written_through(killed, tmp_path, name):
    """The tail, the newest shard, the segments that rows go to, the lock."""
    store = killed
    outside = tmp_path / "secret"
    outside.write_bytes(os.urandom((store / name).stat().st_size))
    before = outside.read_bytes()
    (store / name).unlink()
    (store / name).symlink_to(outside)
    refused(lambda: diskreplay.open(store, mode="a"))
    assert outside.read_bytes() == before


@pytest.mark.parametrize("name", ["observation", "reward", "is_final", LIVE, f"{LIVE}/open.0"])
def test_directories_that_are_links(killed, tmp_path, name):
    store = killed
    outside = tmp_path / "outside"
    (store / name).rename(outside)
    (outside / "spare.theirs").write_bytes(b"x")
    (store / name).symlink_to(outside)
    change(store / "zarr.json", "attributes", "diskreplay", "first", value=[40])
    refused(lambda: diskreplay.open(store, mode="a"))
    assert (outside / "spare.theirs").exists()


def test_a_link_in_a_checkpoint(store, tmp_path):
    at = tmp_path / "checkpoints" / "replay_ckpt.1"
    name = at / "observation/c.4.0.0.0"
    other = tmp_path / "other"
    name.rename(other)
    os.symlink(other, name)
    change(at / MANIFEST, "files", "observation/c.4.0.0.0", 0, value=os.lstat(name).st_size)
    refused(lambda: diskreplay.open(at))
    with diskreplay.PrioritizedReplayBuffer(tmp_path / "live", **OPTIONS) as buffer:
        with pytest.raises(errors.DiskReplayError):
            buffer.load(tmp_path / "checkpoints", 1)


def npy_header(text):
    data = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(data)) + data


@pytest.fixture
def exported(store, tmp_path):
    with diskreplay.open(store) as buffer:
        buffer.export_gz(tmp_path / "gz", 1)
    return tmp_path / "gz"


def load_gz(exported, tmp_path):
    with diskreplay.PrioritizedReplayBuffer(tmp_path / "live", **OPTIONS) as buffer:
        buffer.load(exported, 1)


@pytest.mark.parametrize("text", ["(" * 90, "{'descr': '|u1', 'shape"])
def test_gz_headers_that_do_not_parse(exported, tmp_path, text):
    with gzip.open(exported / "$store$_observation_ckpt.1.gz", "wb") as file:
        file.write(npy_header(text))
    refused(lambda: load_gz(exported, tmp_path))


def test_a_hole_behind_a_gz_stream(exported, tmp_path):
    os.truncate(exported / "$store$_reward_ckpt.1.gz", 8 << 30)
    refused(lambda: load_gz(exported, tmp_path))


@pytest.mark.costly(1)
@pytest.mark.parametrize(
    ("key", "value"),
    [("compressor", 7), ("extras", -1), ("compressor", []), ("path", "elsewhere"), ("extras", [])],
)
def test_npz_options(store, tmp_path, key, value):
    from diskreplay.convert import npz

    def damage(document):
        document["buffer"][key] = value

    path = archive(store, tmp_path, damage)
    refused(lambda: npz.from_npz(path, tmp_path / "made"))


@pytest.mark.costly(1)
@pytest.mark.parametrize("value", [7, float("nan"), "1", {"reward": 7}])
def test_npz_members(store, tmp_path, value):
    from diskreplay.convert import npz

    path = archive(store, tmp_path, lambda document: document.__setitem__("members", value))
    refused(lambda: npz.from_npz(path, tmp_path / "made"))


@pytest.mark.parametrize("name", ["diskreplay", "reward"])
def test_npz_headers_that_do_not_parse(store, tmp_path, name):
    from diskreplay.convert import npz

    path = archive(store, tmp_path, lambda document: None, **{name: npy_header("(" * 90)})
    refused(lambda: npz.from_npz(path, tmp_path / "made"))


def test_npz_members_before_the_beginning(store, tmp_path):
    from diskreplay.convert import npz

    path = archive(store, tmp_path, lambda document: None)
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x05\x06") + 16
    data[directory : directory + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(data)
    refused(lambda: npz.from_npz(path, tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def archive(store, tmp_path, damage, **others):
    from diskreplay.convert import npz

    path = tmp_path / "rows.npz"
    with diskreplay.open(store) as buffer:
        npz.to_npz(buffer, path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    document = json.loads(str(np.load(io.BytesIO(members["diskreplay.npy"]))))
    damage(document)
    packed = io.BytesIO()
    np.save(packed, np.array(json.dumps(document)))
    members["diskreplay.npy"] = packed.getvalue()
    members |= {f"{name}.npy": data for name, data in others.items()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


@pytest.mark.costly
def test_a_flipped_bit_in_parquet_is_refused(store, tmp_path):
    pytest.importorskip("pyarrow")
    from diskreplay.convert import parquet

    path = tmp_path / "rows.parquet"
    with diskreplay.open(store) as buffer:
        parquet.to_parquet(buffer, path)
    whole = path.read_bytes()
    for at in range(8, len(whole) - 8, len(whole) // 60):
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        try:
            with parquet.from_parquet(path, tmp_path / "made", overwrite=True) as made:
                ids = made.sampleable_ids()
                frames, numbers = made.take(["observation", "n"], ids)
                assert (frames == numbers[:, None, None]).all(), at
                assert (np.diff(numbers) == 1).all(), at
        except errors.DiskReplayError:
            continue


@pytest.mark.parametrize("value", [-5, 2**40])
def test_npz_envs(store, tmp_path, value):
    from diskreplay.convert import npz

    packed = io.BytesIO()
    np.save(packed, np.full(64, value))
    path = archive(store, tmp_path, lambda document: None, env=packed.getvalue())
    refused(lambda: npz.from_npz(path, tmp_path / "made"))


@pytest.mark.parametrize("key", ["/etc/passwd", "../../store/state"])
def test_verify_reads_nothing_outside_of_a_checkpoint(store, tmp_path, key):
    at = tmp_path / "checkpoints" / "replay_ckpt.1"
    change(at / MANIFEST, "files", key, value=[1, 1])
    assert [finding.kind for finding in verify(at).findings][:1] == ["manifest"]


@pytest.mark.costly(1)
@pytest.mark.parametrize("count", [20_000, 150_000])
def test_more_envs_or_fields_than_anybody_has(store, count):
    path = store / "zarr.json"
    if count == 150_000:
        for key, value in (("num_envs", count), ("capacity", 2**40)):
            change(path, "attributes", "diskreplay", key, value=value)
        for key in ("count", "first", "transitions"):
            change(path, "attributes", "diskreplay", key, value=[0] * count)
    else:
        field = {"shape": [], "dtype": "uint8", "compressor": "raw", "segment_rows": 8}
        fields = [{"name": f"f{i}", **field} for i in range(count)]
        change(path, "attributes", "diskreplay", "fields", value=fields)
    refused(lambda: diskreplay.open(store))
    refused(lambda: verify(store))


def test_a_capacity_beyond_64_bits(store):
    change(store / "zarr.json", "attributes", "diskreplay", "capacity", value=2**70)
    refused(lambda: diskreplay.open(store))
    refused(lambda: verify(store))


def test_a_name_longer_than_a_file_system_takes(store):
    change(store / "zarr.json", "attributes", "diskreplay", "fields", 0, "name", value="c" * 300)
    refused(lambda: diskreplay.open(store))
    refused(lambda: verify(store))


@pytest.mark.parametrize("mode", ["r", "a"])
def test_negative_steps_do_not_crash(store, mode):
    """Rot in a raw column; the windows' kernel wrote as far behind its array as the step said."""
    (store / "step" / "c.0.0").chmod(0o644)
    with open(store / "step" / "c.0.0", "r+b") as file:
        file.write((np.arange(100) - 2**30).astype("<i4").tobytes())
    change(store / "zarr.json", "attributes", "diskreplay", "stack_size", value=3)

    def sample():
        with diskreplay.open(store, mode=mode) as buffer:
            buffer.sample(64)

    refused(sample)


def test_a_suffix_longer_than_a_file_system_takes(store, tmp_path):
    with diskreplay.open(store, mode="a") as buffer:
        for call in (buffer.save, buffer.load):
            with pytest.raises(errors.SuffixError):
                call(tmp_path / "checkpoints", "7" * 300)

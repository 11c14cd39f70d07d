"""What is exported or copied never lies inside a store: what is there is the store's own."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
import diskreplay.convert.lerobot
import diskreplay.convert.parquet
from diskreplay.check.verify import verify
from diskreplay.convert.copying import convert
from diskreplay.convert.npz import from_npz, to_npz
from diskreplay.convert.table import to_csv


def made(path):
    buffer = diskreplay.ReplayBuffer(
        path, observation_space=Box(0, 1, (2,), "float32"), action_space=Discrete(2), capacity=20
    )
    for step in range(9):
        buffer.add(np.zeros(2, np.float32), step % 2, 1.0, False, False)
    return buffer


def to_parquet(buffer, path, **options):
    pytest.importorskip("pyarrow")
    return diskreplay.convert.parquet.to_parquet(buffer, path, **options)


def to_lerobot(buffer, path, **options):
    pytest.importorskip("pyarrow")
    return diskreplay.convert.lerobot.to_lerobot(buffer, path, **options)


def parts(buffer, path, **options):
    return to_parquet(buffer, path, partition="env", **options)


@pytest.mark.parametrize("write", [to_npz, to_csv, to_parquet, parts, convert, to_lerobot])
@pytest.mark.parametrize("inside", ["x.npz", "new/x.npz", "reward/x.npz", "is_final/live/x.npz"])
def test_nothing_is_written_inside(tmp_path, write, inside):
    with made(tmp_path / "store") as buffer:
        before = sorted(buffer.path.rglob("*"))
        with pytest.raises(diskreplay.InvalidInputError, match=r"inside the store .*/store, "):
            write(buffer, buffer.path / inside, overwrite=True)
        assert sorted(buffer.path.rglob("*")) == before


@pytest.mark.parametrize("name", ["zarr.json", "reward/zarr.json", "is_final/live/state"])
def test_no_file_of_a_store_is_replaced(tmp_path, name):
    """With `overwrite` the metadata of the store were."""
    with made(tmp_path / "store") as buffer:
        with pytest.raises(diskreplay.InvalidInputError, match="inside the store"):
            to_npz(buffer, buffer.path / name, overwrite=True)
        saved = buffer.save(tmp_path / "checkpoints", 1)
        with pytest.raises(diskreplay.InvalidInputError, match="inside the checkpoint"):
            to_npz(buffer, saved / name, overwrite=True)
    assert verify(tmp_path / "store").clean
    assert verify(saved).clean


def test_a_link_leads_inside(tmp_path):
    with made(tmp_path / "store") as buffer:
        (tmp_path / "link").symlink_to(buffer.path)
        with pytest.raises(diskreplay.InvalidInputError, match="inside the store"):
            to_npz(buffer, tmp_path / "link" / "x.npz")
        to_npz(buffer, tmp_path / "x.npz")
    with pytest.raises(diskreplay.InvalidInputError, match="inside the store"):
        from_npz(tmp_path / "x.npz", tmp_path / "link" / "new")
    with from_npz(tmp_path / "x.npz", tmp_path / "beside") as copy:
        assert copy.add_count == 9


def test_no_directory_with_a_store_in_it_is_replaced(tmp_path):
    """The one that is copied, say: it went with what was replaced."""
    set_path, outer, named = tmp_path / "set", tmp_path / "outer", tmp_path / "parts/run.parquet"
    with made(tmp_path / "store") as buffer:
        to_lerobot(buffer, set_path)
    made(outer).close()
    for write, source, out in (
        (to_lerobot, set_path / "replay", set_path), (convert, outer / "inner", outer),
        (parts, named, named.parent),
    ):  # fmt: skip
        made(tmp_path / "inner").close()
        source.parent.mkdir(exist_ok=True)
        (tmp_path / "inner").rename(source)  # into a store, none would be made
        before = sorted(out.rglob("*"))
        for copied in (source, tmp_path / "store"):
            with diskreplay.open(copied) as buffer:
                with pytest.raises(diskreplay.InvalidInputError, match="not replaced"):
                    write(buffer, out, overwrite=True)
        assert sorted(out.rglob("*")) == before
        assert verify(source).clean


def test_a_directory_called_like_a_file_is_not_replaced(tmp_path):
    notes = tmp_path / "out" / "old.parquet" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    with made(tmp_path / "store") as buffer:
        with pytest.raises(
            diskreplay.InvalidInputError, match=r"other things than \.parquet files"
        ):
            parts(buffer, tmp_path / "out", overwrite=True)
    assert notes.read_text() == "mine"

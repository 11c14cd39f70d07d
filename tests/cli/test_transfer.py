"""The commands that take a store elsewhere, against what was recorded into it."""

import os

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.convert import copying
from tests.cli.conftest import record

ROWS = 115  # of the fixture's store: 105 transitions and 10 final rows


def rows_of(path):
    """Every field of the only env's retained rows."""
    with diskreplay.open(path) as buffer:
        ids = np.arange(*buffer.bounds[0])
        return {field: buffer.take(field, ids) for field in buffer.fields}


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for field in found:
        np.testing.assert_array_equal(found[field], expected[field], err_msg=field)


@pytest.fixture
def vectors(tmp_path):
    """A closed store of vector observations."""
    path = tmp_path / "vectors"
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(-9, 9, (2,), np.float32), action_space=Discrete(3),
        capacity=50,
    ) as buffer:  # fmt: skip
        for t in range(20):
            seen = np.array([t / 3, -t], np.float32)
            buffer.add(seen, t % 3, t / 4, t % 7 == 6, False, seen + 1)
    return path


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_there_and_back(cli_json, store, tmp_path, ending):
    pytest.importorskip("pyarrow" if ending == "parquet" else "numpy")
    out = tmp_path / f"all.{ending}"
    found = cli_json("export", store, "--out", out)
    assert found == {"out": str(out), "format": ending, "bytes": out.stat().st_size}
    found = cli_json("import", out, "--out", tmp_path / "back")
    assert (found["format"], found["rows"]) == ("diskreplay", ROWS)
    check_equal(rows_of(tmp_path / "back"), rows_of(store))


def test_csv_there_and_back(cli_json, vectors, tmp_path):
    pytest.importorskip("pandas")
    cli_json("export", vectors, "--out", tmp_path / "all.csv")
    cli_json("import", tmp_path / "all.csv", "--out", tmp_path / "back")
    check_equal(rows_of(tmp_path / "back"), rows_of(vectors))


def test_partitions(cli, cli_json, store, tmp_path):
    pytest.importorskip("pyarrow")
    cli("export", store, "--out", tmp_path / "d", "-f", "parquet", "--partition", "episodes",
        "--episodes-per-file", 4, "--compression", "lz4")  # fmt: skip
    assert len(list((tmp_path / "d").glob("*.parquet"))) == 3
    cli("import", tmp_path / "d", "--out", tmp_path / "back", "--capacity", 40,
        "--compressor", "observation=zstd")  # fmt: skip
    expected = {field: values[-40:] for field, values in rows_of(store).items()}
    check_equal(rows_of(tmp_path / "back"), expected)


def test_minari_there_and_back(cli, store, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    arguments = ("export", store, "--out", "pong/random-v0", "--format", "minari")
    assert f"wrote {tmp_path / 'minari/pong/random-v0'} (" in cli(*arguments).stdout
    assert "not replaced" in cli(*arguments, "--force", code=2).stderr
    cli("import", "pong/random-v0", "--format", "minari", "--out", tmp_path / "back")
    found, expected = rows_of(tmp_path / "back"), rows_of(store)
    np.testing.assert_array_equal(found["observation"][:110], expected["observation"][:110])


def test_lerobot_there_and_back(cli, store, tmp_path):
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    arguments = ("export", store, "--out", tmp_path / "set", "--format", "lerobot")
    cli(*arguments, "--pictures", "png", "--fps", 10, "--task", "win")
    assert "--force" in cli(*arguments, "--pictures", "png", code=2).stderr
    cli(*arguments, "--pictures", "png", "--force")
    cli("import", tmp_path / "set", "--out", tmp_path / "back")  # told from what is in it
    check_equal(rows_of(tmp_path / "back"), rows_of(store))


def test_videos_are_not_faster_than_their_codec(cli, tmp_path):
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    pictures = Box(0, 255, (64, 64), np.uint8)
    with diskreplay.ReplayBuffer(
        tmp_path / "replay", observation_space=pictures, action_space=Discrete(2), capacity=None
    ) as made:
        made.add(np.zeros((64, 64), np.uint8), 1, 0.0, True, False)
    arguments = ("export", tmp_path / "replay", "--out", tmp_path / "set", "--format", "lerobot")
    assert "fps: av1 videos have at most 240" in cli(*arguments, "--fps", 500, code=2).stderr
    cli(*arguments, "--fps", 500, "--pictures", "h264")


def test_dopamine_there_and_back(cli, store, tmp_path):
    arguments = ("export", store, "--out", tmp_path / "old", "--format", "dopamine")
    assert "--suffix" in cli(*arguments, code=2).stderr
    cli(*arguments, "--suffix", 7)
    assert (tmp_path / "old" / "add_count_ckpt.7.gz").is_file()
    assert "--force" in cli(*arguments, "--suffix", 7, code=2).stderr
    cli(*arguments, "--suffix", 7, "--force")
    cli("import", tmp_path / "old", "--suffix", 7, "--out", tmp_path / "back")
    cli("import", tmp_path / "old", "--suffix", 7, "--out", tmp_path / "back", code=2)
    cli("import", tmp_path / "old", "--suffix", 7, "--out", tmp_path / "back", "--force")
    found, expected = rows_of(tmp_path / "back"), rows_of(store)
    transitions = ~expected["is_final"]
    np.testing.assert_array_equal(
        found["reward"][~found["is_final"]], expected["reward"][transitions]
    )
    whole = tmp_path / "killed" / ".ckpt.7.whole"  # as a kill may leave it
    whole.parent.mkdir()
    (tmp_path / "old").rename(whole)
    cli("import", whole.parent, "--suffix", 7, "--out", tmp_path / "again")
    check_equal(rows_of(tmp_path / "again"), found)


def test_convert(cli_json, store, tmp_path):
    found = cli_json("convert", store, "--compressor", "raw", "--out", tmp_path / "raw")
    assert found["rows"] == ROWS
    check_equal(rows_of(tmp_path / "raw"), rows_of(store))
    sizes = cli_json("info", tmp_path / "raw")["fields"]
    assert sizes["observation"]["compressor"] == "raw"


def test_merge_and_trim(cli, cli_json, store, make, tmp_path):
    with make(tmp_path / "other") as other:
        record(other, 15)
    found = cli_json("merge", store, tmp_path / "other", "--out", tmp_path / "both")
    assert found["rows"] == ROWS + 16
    parts = rows_of(store), rows_of(tmp_path / "other")
    both = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
    check_equal(rows_of(tmp_path / "both"), both)
    cli("trim", tmp_path / "both", "--capacity", 30, "--out", tmp_path / "small")
    check_equal(rows_of(tmp_path / "small"), {f: values[-30:] for f, values in both.items()})


def test_a_live_store_and_a_checkpoint(cli, make, store, tmp_path):
    with make(tmp_path / "live") as live:
        record(live, 15)
        cli("export", tmp_path / "live", "--out", tmp_path / "live.npz")
    checkpoint = store.parent / "checkpoints" / "replay_ckpt.7"
    cli("export", checkpoint, "--out", tmp_path / "saved.npz")
    for name, rows in (("live", 16), ("saved", ROWS)):
        with np.load(tmp_path / f"{name}.npz") as found:
            assert len(found["reward"]) == rows


def test_a_copy_of_a_live_store_is_of_one_moment(cli, make, tmp_path, monkeypatch):
    live = make(tmp_path / "live", capacity=60)
    record(live, 50)
    live.flush()  # what is in the tail may leave before it is read, if all rows are replaced
    before = rows_of(tmp_path / "live")
    real = copying.convert

    def convert(*arguments, **options):
        record(live, 50, 50)
        live.flush()  # the files of rows that have left are deleted
        return real(*arguments, **options)

    monkeypatch.setattr(copying, "convert", convert)
    done = cli("convert", tmp_path / "live", "--out", tmp_path / "copy")
    assert done.stderr.strip() == ""  # rich before 14.3 ends a bar that is not shown
    check_equal(rows_of(tmp_path / "copy"), before)


def test_rows_that_cannot_be_kept_are_counted(cli, make, tmp_path, monkeypatch):
    """As many rows came as the store keeps, and files of those before are deleted."""
    live = make(tmp_path / "live", capacity=60)
    record(live, 50)
    real = copying.convert

    def convert(*arguments, **options):
        record(live, 300, 50)
        live.flush()
        return real(*arguments, **options)

    monkeypatch.setattr(copying, "convert", convert)
    said = cli("convert", tmp_path / "live", "--out", tmp_path / "copy").stderr
    assert said.lstrip().startswith("55 rows left the store meanwhile")


def test_other_fields_cannot_be_merged(cli, store, vectors, tmp_path):
    assert "space" in cli("merge", store, vectors, "--out", tmp_path / "x", code=2).stderr


def test_nothing_is_overwritten_unasked(cli, store, tmp_path):
    out = tmp_path / "all.npz"
    out.write_text("mine")
    assert "--force" in cli("export", store, "--out", out, code=2).stderr
    assert out.read_text() == "mine"
    cli("export", store, "--out", out, "--force")
    assert out.read_bytes()[:2] == b"PK"
    for command in (("convert", store), ("trim", store, "--capacity", 50), ("import", out)):
        assert "--force" in cli(*command, "--out", store, code=2).stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.npz", "run"]


def test_in_place(cli, store):
    expected = rows_of(store)
    cli("convert", store, "--compressor", "zstd", "--out", store, "--force")
    check_equal(rows_of(store), expected)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("export", "STORE", "--out", "OUT/x.docx"), 2, "--format"),
        (("export", "OUT/missing", "--out", "OUT/x.npz"), 3, "not a diskreplay store"),
        (("export", "STORE", "--out", "OUT/x", "--format", "word"), 2, "word"),
        (("import", "OUT/missing.npz", "--out", "OUT/x"), 3, "no such file"),
        (("convert", "STORE", "--compressor", "rar", "--out", "OUT/x"), 2, "rar"),
        (("convert", "STORE", "--compressor", "observation=", "--out", "OUT/x"), 2, "field=name"),
        (("trim", "STORE", "--capacity", "2", "--out", "OUT/x"), 2, "capacity"),
        (("merge", "STORE", "STORE", "--out", "OUT/x"), 2, "twice"),
        (("export", "STORE", "--out", "OUT/x.parquet", "--partition", "env"), 2, "directory"),
        (("export", "STORE", "--out", "OUT/x.csv", "--partition", "env"), 2, "goes with"),
        (("export", "STORE", "--out", "OUT/x.npz", "--suffix", "7"), 2, "goes with"),
        (("export", "STORE", "--out", "OUT/x.npz", "--fps", "7"), 2, "goes with"),
        (("export", "STORE", "--out", "OUT/x.csv", "--compression", "gzip"), 2, "goes with"),
        (("export", "STORE", "--out", "OUT/x.npz", "--episodes-per-file", "7"), 2, "goes with"),
        (
            ("export", "STORE", "--out", "OUT/x.parquet", "--episodes-per-file", "7"),
            2,
            "--partition episodes",
        ),
        (("import", "OUT/missing", "--format", "parquet", "--out", "OUT/x"), 3, "no such file"),
        (("import", "OUT/missing.csv", "--out", "OUT/x"), 3, "no such file"),
        (
            ("import", "OUT", "--format", "dopamine", "--suffix", "7", "--out", "OUT/x"),
            3,
            "missing",
        ),
        (("trim", "OUT/missing", "--capacity", "9", "--out", "OUT/x"), 3, "no such directory"),
        (("convert", "OUT/missing", "--out", "OUT/x"), 3, "no such directory"),
        (("merge", "STORE", "OUT/missing", "--out", "OUT/x"), 3, "no such directory"),
    ],
)
def test_what_is_refused(cli, store, tmp_path, arguments, code, says):
    arguments = [a.replace("STORE", str(store)).replace("OUT", str(tmp_path)) for a in arguments]
    result = cli(*arguments, code=code)
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_minari_data_set_that_is_not_there(cli, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    result = cli("import", "pong/none-v0", "--format", "minari", "--out", tmp_path / "back", code=3)
    assert "pong/none-v0: no such Minari data set" in result.stderr
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("command", ["export", "import", "convert", "merge", "trim"])
def test_help_has_an_example(cli, command):
    assert f"diskreplay {command}" in cli(command, "--help").stdout.replace("\n", " ")


def test_errors_speak_of_flags_and_of_the_path_that_was_given(cli, store, tmp_path, monkeypatch):
    (tmp_path / "all.npz").write_bytes(b"")
    said = cli("export", store, "--out", tmp_path / "all.npz", code=2).stderr
    assert said.rstrip().endswith("(--force)")
    assert "overwrite" not in said
    real = os.mkdir

    def refused(path, *how):
        if ".tmp-" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path, *how)

    monkeypatch.setattr(os, "mkdir", refused)
    said = cli("export", store, "--out", tmp_path / "o.csv", code=4).stderr
    assert ".tmp-" not in said
    assert f"nothing can be made in {tmp_path}: Permission denied" in said

"""What commands that write share: compressors as text, and what they say at the end."""

import json

import pytest
from gymnasium.spaces import Discrete

import diskreplay
from diskreplay.cli import output_options
from diskreplay.cli.output_options import compressors, oldest, say_written
from diskreplay.errors import InvalidInputError


def test_one_compressor_or_one_for_each_of_some_fields():
    assert compressors(None) is None
    assert compressors("zstd") == "zstd"
    assert compressors("observation=zstd, mask = raw") == {"observation": "zstd", "mask": "raw"}
    assert compressors("a=b=c") == {"a": "b=c"}
    for wrong in ("a=", "=raw", "a=raw,", "a=raw,b"):
        with pytest.raises(InvalidInputError, match="--compressor: a name, or"):
            compressors(wrong)


@pytest.fixture
def said(monkeypatch):
    """What is printed."""
    found = {"out": [], "err": []}
    monkeypatch.setattr(
        output_options.console, "print", lambda text, **_: found["out"].append(text)
    )
    monkeypatch.setattr(
        output_options.error_console, "print", lambda text, **_: found["err"].append(text)
    )
    monkeypatch.setattr(output_options, "say_json", lambda value: found["out"].append(value))
    return found


def test_a_store_is_said_with_its_rows_and_what_left_meanwhile(tmp_path, said):
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Discrete(3), action_space=Discrete(3), capacity=20,
        num_envs=2,
    ) as buffer:  # fmt: skip
        for _ in range(13):
            buffer.add([0, 1], [0, 1], [0, 1], [False] * 2, [False] * 2)
        assert oldest(buffer) == 2 * 3
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    say_written(tmp_path / "store", None, True, 1234)
    assert said["out"].pop() == {
        "out": tmp_path / "store", "format": "diskreplay", "bytes": size, "rows": 20,
        "left_meanwhile": 1234,
    }  # fmt: skip
    assert said["err"].pop().startswith("1,234 rows left the store meanwhile")
    for left in (0, -3):
        say_written(tmp_path / "store", None, False, left)
        assert said["err"] == []
    assert said["out"][-1].startswith(f"wrote {tmp_path / 'store'} (20 rows, ")


def test_a_file_is_said_with_its_size(tmp_path, said):
    path = tmp_path / "a.csv"
    path.write_bytes(bytes(77))
    say_written(path, "csv", True)
    found = said["out"].pop()
    assert found == {"out": path, "format": "csv", "bytes": 77}
    assert json.loads(json.dumps(found, default=str))["bytes"] == 77
    say_written(path, "csv", False)
    assert "rows" not in said["out"][0]

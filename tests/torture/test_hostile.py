"""A choice of what tools/torture/hostile tries; all is `tools/torture/run hostile`."""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

TORTURE = Path(__file__).resolve().parent.parent.parent / "tools" / "torture"
sys.path.insert(0, str(TORTURE))

import crew  # noqa: E402 - of the tools
import fuzz  # noqa: E402
import hostile  # noqa: E402
import trials  # noqa: E402

INPUTS = 24
PATIENCE_S = 400.0  # for one input, on a machine however busy
# Those that got through once, and one of each kind beside.
CASES = (
    "num_envs 0", "num_envs 9223372036854775807", "capacity 4611686018427387904", "no fields",
    "a shape of 2147483648", "seals 18446744073709551616", "Discrete n 18446744073709551616",
    "the same field twice", "spaces 900 deep", "lists 100000 deep",
    "a generator that is a function",
    "a field called '../../outside'", "a document of a gigabyte",
    "fifo as observation/c.5.0.0.0", "fifo as priority/c.0.0", "device as priority/zarr.json",
    "link as reward/c.0.0", "link as is_final/live/tail.0", "link as is_final/live/open.0/8.0",
    "dangling as is_final/live/lock", "fifo as is_final/live/lock",
    "is_final/live is a link to a directory", "is_final/live/open.0 is a link to a directory",
    "observation is a link to a directory",
    "a block of 4294967295 bytes", "a stream of 4294967295 bytes", "a block at 9223372036854775808",
    "the file '../../outside/secret' [8600, 0]",
    "a pickle as sum_tree", "objects as $store$_observation", "a bomb of 2 GB for a count",
    "a hole of 8 GB behind", "a memo of 2 GB", "the header ((((((((((((((((((((((((((((((",
    "diskreplay.npy with brackets", "compressor -1", "extras -1", "members -1",
    "an option nobody knows", "a name with ..", "env.npy with 10**15 rows", "envs beyond",
)  # fmt: skip


@pytest.mark.costly
def test_made_to_hurt():
    found = hostile.run_cases(names=CASES, limit_s=PATIENCE_S)
    assert found["failures"] == []
    assert found["cases"] >= len(CASES)
    assert found["refused"] + len(found["harmless"]) == found["cases"]
    assert found["refused"] > 0.9 * found["cases"]


def test_every_case_has_a_name_of_its_own():
    names = {name for _kind, name in hostile.CASES}
    assert set(CASES) <= names
    assert len(hostile.CASES) > 1000


def test_suffixes(tmp_path):
    refused = Counter(hostile.refused_suffixes(tmp_path))
    for suffix in ("'..'", "'a/b'", "'/etc/passwd'", "''", "'.hidden'", "'a\\x00b'", "'a\\nb'"):
        assert refused[suffix] == 2


@pytest.mark.costly
def test_damage():
    pytest.importorskip("pyarrow")
    found = fuzz.run(inputs=INPUTS, seed=11, limit_s=PATIENCE_S)
    assert found["failures"] == []
    outcomes = sum((Counter(counts) for counts in found["outcomes"].values()), Counter())
    assert sum(outcomes.values()) == INPUTS
    assert outcomes[trials.REFUSED] > INPUTS // 2


def test_damage_is_the_same_each_time(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(200)))
    results = set()
    for _ in range(3):
        damage, text = fuzz.mutation(7, "npz", ["a"])
        assert text.endswith(" a")
        (tmp_path / "a").write_bytes(bytes(range(200)))
        damage(tmp_path)
        results.add((tmp_path / "a").read_bytes() if (tmp_path / "a").exists() else None)
    assert len(results) == 1


def misbehave(job):
    """What a damaged file could make a process do."""
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while job == "hang":
        pass
    if job == "raise":
        raise KeyError(job)
    return job


def test_a_process_that_dies_is_seen():
    jobs = ["fine", "die", "raise", "well"]
    outcomes = {o.job: o for o in crew.run(misbehave, jobs, workers=2, limit_s=PATIENCE_S)}
    assert {job: outcomes[job].value for job in ("fine", "well")} == {
        "fine": "fine",
        "well": "well",
    }
    assert "exit code -9" in outcomes["die"].trouble
    assert "KeyError" in outcomes["raise"].trouble


def test_a_process_that_hangs_is_seen_and_another_goes_on():
    outcomes = list(crew.run(misbehave, ["hang", "hang"], workers=1, limit_s=0.2))
    assert ["not done after" in outcome.trouble for outcome in outcomes] == [True, True]

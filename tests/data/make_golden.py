"""Write the golden stores of format version 2 that every later version must open.

    PYTHONPATH=. python tests/data/make_golden.py [directory]

Run it only to add a store: those that are there stay as the version that wrote them left them.
Each is one ``.tar.gz``; `tests/test_golden.py` recomputes every value from the formulas below.
"""

import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import diskreplay

HERE = Path(__file__).resolve().parent / "golden"
EXTRAS = {"log_prob": ((), "float32"), "hidden": ((3,), "float16")}

CASES = {
    "raw": {"compressor": "raw"},
    "lz4": {"compressor": "lz4"},
    "zstd": {"compressor": "zstd"},
    "two_envs": {"compressor": "lz4", "num_envs": 2},
    "two_envs_raw": {"compressor": "raw", "num_envs": 2},
    "dict": {
        "compressor": {"observation/camera": "zstd"},
        "observation_space": Dict(
            {
                "camera": Box(0, 255, (16, 16, 3), "uint8"),
                "body": Tuple((Box(-1, 1, (4,), "float64"), Discrete(5))),
            }
        ),
        "action_space": MultiDiscrete([3, 4]),
    },
    "prioritized": {"compressor": "lz4", "prioritized": True},
    "evicted": {"compressor": "lz4", "capacity": 40},
}
STEPS = 75


def make(path, case):
    """A buffer as the store of that name was made with."""
    options = {
        "observation_space": Box(0, 255, (32, 32), "uint8"),
        "action_space": Discrete(6),
        "capacity": None,
        "num_envs": 1,
        "stack_size": 3,
        "update_horizon": 2,
        "gamma": 0.5,
        "batch_size": 8,
        "extras": EXTRAS,
        "segment_rows": 32,
        "seed": 42,
        **CASES[case],
    }
    kind = diskreplay.ReplayBuffer
    if options.pop("prioritized", False):
        kind, options["alpha"], options["beta"] = diskreplay.PrioritizedReplayBuffer, 0.5, 0.25
    return kind(path, **options)


# -- the formulas: everything follows from the env and the row's number


def schedule(num_envs, steps=STEPS):
    """For each env its rows as (row number, step, how): how is "", "terminated", "truncated", or
    "final" for a final row. Each 11th step is an end, of either kind by turns; each third has no
    final row.
    """
    envs = []
    for env in range(num_envs):
        rows, step, ends = [], 0, 0
        for i in range(steps):
            how = ""
            if (i + 3 * env) % 11 == 10:
                how = "terminated" if ends % 2 else "truncated"
            rows.append((len(rows), step, how))
            step += 1
            if how:
                if ends % 3 != 2:
                    rows.append((len(rows), step, "final"))
                ends, step = ends + 1, 0
        envs.append(rows)
    return envs


def leaf(shape, dtype, row, env, salt):
    """One value: small integers, exact in every dtype."""
    count = int(np.prod(shape, dtype=int))
    values = (row * 7 + env * 3 + salt + np.arange(count) // 5) % 100
    if np.dtype(dtype).kind == "f":
        values = values / 128
    return values.reshape(shape).astype(dtype)


def observation(case, row, env):
    if case == "dict":
        return {
            "camera": leaf((16, 16, 3), "uint8", row, env, 1),
            "body": (leaf((4,), "float64", row, env, 2), np.int64((row + env) % 5)),
        }
    return leaf((32, 32), "uint8", row, env, 1)


def action(case, row, env):
    if case == "dict":
        return np.array([(row + env) % 3, row % 4])
    return np.int64((row + env) % 6)


def reward(row, env):
    return np.float32((row % 16) - 4 + env / 4)


def log_prob(row, env):
    return np.float32(-row / 64 - env)


def hidden(row, env):
    return leaf((3,), "float16", row, env, 5)


def priority(ids):
    return (np.asarray(ids) % 5 + 1.0) ** 2


def record(buffer, case, start=0, stop=STEPS):
    """The steps `start` to `stop` of every env."""
    envs = schedule(buffer.num_envs)
    transitions = [[r for r in rows if r[2] != "final"] for rows in envs]
    finals = [{r[0] for r in rows if r[2] == "final"} for rows in envs]
    for i in range(start, stop):
        rows = [of_env[i] for of_env in transitions]
        numbers = [row for row, _step, _how in rows]
        has = np.array([row + 1 in finals[env] for env, row in enumerate(numbers)])

        def all_of(function, *arguments, numbers=numbers, ahead=0):
            parts = [function(*arguments, n + ahead, env) for env, n in enumerate(numbers)]
            return np.stack(parts) if len(parts) > 1 else parts[0]

        ends = {how: np.array([r[2] == how for r in rows]) for how in ("terminated", "truncated")}
        if buffer.num_envs == 1:
            ends = {how: bool(values[0]) for how, values in ends.items()}
        buffer.add(
            all_of(observation, case), all_of(action, case), all_of(reward), **ends,
            next_observation=all_of(observation, case, ahead=1),
            next_observation_mask=has, log_prob=all_of(log_prob), hidden=all_of(hidden),
        )  # fmt: skip
    if isinstance(buffer, diskreplay.PrioritizedReplayBuffer):
        ids = np.arange(int(buffer.add_count))
        buffer.update_priorities(ids, priority(ids))


def pack(directory, target):
    """A reproducible tar.gz: sorted, without times and owners."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            info = tar.gettarinfo(path, path.relative_to(directory).as_posix())
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if path.is_file():
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    target.write_bytes(gzip.compress(data.getvalue(), 9, mtime=0))


def main(directory):
    """One archive a case: the closed store, a checkpoint taken at step 50, the next batch there."""
    directory.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        target = directory / f"format2_{case}.tar.gz"
        if target.exists():
            print(f"{target.name} is there and stays")
            continue
        with tempfile.TemporaryDirectory() as work:
            with make(Path(work, "store"), case) as buffer:
                record(buffer, case, 0, 50)
                buffer.save(Path(work, "checkpoints"), 50)
                np.save(Path(work, "next_ids.npy"), np.stack([buffer.sample().id for _ in "1234"]))
                record(buffer, case, 50)
            pack(Path(work), target)
        print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

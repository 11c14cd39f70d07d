"""The power goes out amid a load of all shards: each of them has what it had before or what was
loaded, and all of them the same. On a model of a disk; without a cluster."""

import asyncio
import random
import shutil
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from tests.effort import effort

pytest.importorskip("ray")

from diskreplay.ray.coordinator import Coordinator
from diskreplay.ray.messages import KnownLargest, Updates
from diskreplay.ray.resharding import PartPiece
from diskreplay.ray.shard import Shard

pytestmark = pytest.mark.usefixtures("tools")
ENVS, SHARDS = 2, 2
SAVED, DURABLE, ADDED = 10, 15, 20
OPTIONS = {
    "observation_space": Box(0, 255, (8,), "uint8"), "action_space": Discrete(4), "capacity": None,
    "num_envs": ENVS, "segment_rows": 16, "env_group": 1, "compressor": "raw",
}  # fmt: skip
COUNTS, COUNTS_OF_THE_CHECKPOINT = (900, 800), (70, 60)


class Machine:
    """The coordinator and the shards of one buffer, without Ray."""

    def __init__(self, root):
        identity = {"shard": 0, "num_shards": SHARDS, "num_envs": ENVS}
        self.coordinator = Coordinator({}, None, root / "counts")
        self.shards = [
            Shard(number, root / f"shard-{number}", identity, OPTIONS | {"name": f"r-{number}"})
            for number in range(SHARDS)
        ]

    def ask(self, method, *arguments):
        return asyncio.run(getattr(self.coordinator, method)(*arguments))

    def add(self, start, stop):
        for shard in self.shards:
            for row in range(start, stop):
                shard._buffer.add(
                    np.full((ENVS, 8), row, np.uint8), np.full(ENVS, row % 4), np.full(ENVS, row),
                    np.zeros(ENVS, bool), np.zeros(ENVS, bool),
                )  # fmt: skip

    def finish_load(self):
        """As the next client does it."""
        load = self.ask("load_under_way")
        if load is not None:
            for shard in self.shards:
                shard.load(load)
            self.ask("end_load", load)

    def rows(self):
        """How many each shard has; those that it has are the first ones."""
        found = []
        for shard in self.shards:
            buffer = shard._checked()
            (count,) = set(buffer.bounds[:, 1].tolist())
            rewards = buffer.take("reward", np.arange(count * ENVS))
            np.testing.assert_array_equal(rewards, np.repeat(np.arange(count), ENVS))
            found.append(count)
        return found

    def close(self):
        for shard in self.shards:
            shard.close()


def loaded(root, recorder, regrouped):
    """A load, step by step, with what is promised after each of them."""
    machine = Machine(root / "replay")
    machine.add(0, SAVED)
    destination, nothing = str(root / "checkpoints"), Updates.none("client")
    parts = [
        shard.save(destination, "1", nothing, KnownLargest(1.0, 1), None)[0]
        for shard in machine.shards
    ]  # fmt: skip
    machine.add(SAVED, DURABLE)
    for shard in machine.shards:
        shard._buffer.flush()
    machine.add(DURABLE, ADDED)  # which a power cut drops
    machine.coordinator._counts[:] = COUNTS
    machine.coordinator._counts.flush()
    with recorder:
        recorder.mark("nothing has changed")
        for number, shard in enumerate(machine.shards):
            pieces = [PartPiece(parts[number], 0, ENVS)]
            if regrouped:  # one env of each, as by another number of shards
                pieces = [PartPiece(part, number, number + 1) for part in parts]
            shard.prepare(pieces, None, "one")
        recorder.mark("it may have begun")
        machine.ask("begin_load", "one", *COUNTS_OF_THE_CHECKPOINT)
        recorder.mark("it is to be made")
        for shard in machine.shards:
            shard.load("one")
        machine.ask("end_load", "one")
        recorder.mark("it is made")
    machine.close()
    return recorder.events


def outcome(root, state, boot):
    """What a client finds that comes after the power cut."""
    from examiner import another_boot

    shutil.rmtree(root)
    root.mkdir()
    state.write_to(root)
    with another_boot(boot), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows that were not durable are dropped
        machine = Machine(root / "replay")
        try:
            machine.finish_load()
            return machine.rows(), machine.ask("counts")
        finally:
            machine.close()


@pytest.mark.parametrize("regrouped", [False, True], ids=["as they were", "divided anew"])
def test_cuts_amid_a_load_of_all_shards(tmp_path, regrouped):
    from power import cuts
    from recording import Recorder
    from workload import Setting

    root = tmp_path / "node"
    root.mkdir()
    with Setting("load").maintenance_in_line():
        events = loaded(root, Recorder(root), regrouped)
        chance, known, seen = random.Random(3), set(), set()
        every = effort(40, 20, 2)
        for number, last, disk, promise in cuts(events):
            if last and number % every:  # all marks, and some of the rest
                continue
            for how, state in disk.states(chance, 1, singly=False):
                digest = state.digest(), promise
                if digest in known:
                    continue
                known.add(digest)
                rows, counts = outcome(root, state, len(known))
                where = f"event {number} {last}, {promise}, {how}: {rows} rows"
                made = rows == [SAVED] * SHARDS
                assert made or all(DURABLE <= count <= ADDED for count in rows), where
                if promise == "nothing has changed":
                    assert not made, where
                elif promise != "it may have begun":
                    assert made, where
                    assert counts == COUNTS_OF_THE_CHECKPOINT, where
                seen.add((promise, made))
    assert len(known) > 10
    assert {made for _promise, made in seen} == {False, True}
    assert ("it is made", True) in seen

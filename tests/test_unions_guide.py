"""The code of docs/unions.md runs."""

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay
from tests.blocks import blocks, paste


def record(path, start):
    buffer = diskreplay.PrioritizedReplayBuffer(
        path, observation_space=Box(0, 255, (3,), np.uint8), action_space=Discrete(4), capacity=500
    )
    for i in range(start, start + 200):
        buffer.add(np.full(3, i % 256, np.uint8), 0, i, i % 50 == 49, False)
    return buffer


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record("runs/expert/replay", 1000).close()
    with record("runs/b/replay", 2000) as other:
        other.save("runs/b/checkpoints", 7)
    with record("runs/a/replay", 0) as buffer:
        names = {"buffer": buffer, "np": np, "diskreplay": diskreplay}
        code = [text for language, text in blocks("docs/unions.md") if language == "python"]
        for text in code[:4]:
            paste(text, "docs/unions.md", names)
        counts = np.bincount(names["members"])
        assert counts[0] == 128
        assert counts[1] in (76, 77)
        assert counts.sum() == 256
        first, second = code[4].split("...\n")
        paste(first, "docs/unions.md", names)
        wanted = names["union"].sample(64)
        paste(second, "docs/unions.md", names)
        again = names["union"].sample(64)
        np.testing.assert_array_equal(again.id, wanted.id)
        np.testing.assert_array_equal(again.weight, wanted.weight)
        names["union"].close()

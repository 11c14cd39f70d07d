"""The code of docs/ray.md runs, on one machine."""

import pytest

from tests.blocks import blocks, paste


def test_the_page(tmp_path, monkeypatch, cluster):
    monkeypatch.chdir(tmp_path)
    names = {"PATH": tmp_path / "pong", "CHECKPOINTS": tmp_path / "checkpoints"}
    for language, text in blocks("docs/ray.md"):
        if language == "python":
            paste(text, "docs/ray.md", names)
    assert len(names["batch"]) == 64
    assert names["batch"].observation.shape == (64, 4, 8, 8)
    with pytest.raises(Exception, match="closed"):
        names["replay"].sample()
    published = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.json"))
    assert published == ["pong_shards.100.json", "pong_shards.50.json"]

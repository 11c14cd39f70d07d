"""The code of docs/remote.md runs."""

import pytest

from tests.blocks import blocks, paste


def test_the_page(tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, text in blocks("docs/remote.md"):
        if language == "python":
            paste(text, "docs/remote.md", names)
    assert names["loaded"].number == 2000
    assert [one.suffix for one in names["RemoteCheckpoints"](names["URL"]).list()] == [
        "1000", "1500", "2000", "2500",
    ]  # fmt: skip
    assert (names["start"], names["extras"]) == (None, {})
    assert names["path"] == tmp_path / "pulled" / "replay_ckpt.2000"

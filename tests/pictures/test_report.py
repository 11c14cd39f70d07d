"""The page: whole, self-contained, and true."""

import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay
from diskreplay.errors import InvalidInputError
from diskreplay.pictures.report import described, save_report
from tests.pictures.making import record, record_vectors

pytest.importorskip("PIL")

VOID = {"meta", "input"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and gathers what tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words, self.data = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script" and data.startswith("{"):
            self.data = data
        elif self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data.strip())

    @property
    def reels(self):
        return json.loads(self.data)["reels"]

    def chart(self, title):
        charts = [c for s in json.loads(self.data)["sections"] for c in s["charts"]]
        return next(chart for chart in charts if chart["title"] == title)


def page(path, out, **options):
    with diskreplay.open(path) as buffer:
        return Page(save_report(buffer, out, **options).read_text("utf-8"))


def test_everything_is_on_it(tmp_path):
    episodes = record(tmp_path / "store", (5, 9, 7, 8, 6))
    found = page(tmp_path / "store", tmp_path / "r.html")
    text = " ".join([*found.words, found.data])
    for words in (
        "Return of each episode", "Length of each episode", "Reward of each transition",
        "Actions chosen", "Priority of each transition", "Priority by age", "Bytes of each field",
        "prioritized (alpha 0.6), stack 1, 1-step returns, gamma 0.99", "5 of them whole",
        "12 x 16", diskreplay.__version__,
    ):  # fmt: skip
        assert words in text, words
    returns = [sum(e.rewards) for e in episodes]
    assert f"Best return {max(returns):g} worst {min(returns):g}" in " ".join(text.split())
    assert len(found.reels) == 4
    assert found.reels[0]["steps"]["rewards"] in [e.rewards for e in episodes]
    assert found.reels[0]["title"].startswith("Best: episode ")


def test_it_asks_for_nothing_else(tmp_path):
    record(tmp_path / "store")
    out = tmp_path / "r.html"
    found = page(tmp_path / "store", out)
    for _tag, attributes in found.elements:
        assert not attributes.keys() & {"src", "href", "xlink:href", "srcset", "action"}
    text = out.read_text()
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a["content"] for t, a in found.elements if "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_names_are_text_and_never_markup(tmp_path):
    path = tmp_path / "<script>alert(1)</script>&amp;\"'"
    path.parent.mkdir(parents=True)
    record(path)
    out = tmp_path / "r.html"
    found = page(path, out)
    assert "<script>alert" not in out.read_text()
    assert any(word.endswith(f"/{path.name}") for word in found.words)
    assert [t for t, _a in found.elements].count("script") == 2


def test_without_pictures_all_the_rest_is_there(tmp_path):
    record_vectors(tmp_path / "store")
    found = page(tmp_path / "store", tmp_path / "r.html")
    assert found.chart("Values of action[0]")
    assert "uniform, 2 envs" in " ".join(found.words)
    assert [reel["cameras"] for reel in found.reels] == [[]] * 4
    vectors = {field["name"]: field for field in json.loads(found.data)["vectors"]}
    assert len(vectors["observation/position"]["components"]) == 3


def test_an_empty_store(tmp_path):
    record(tmp_path / "store", ())
    found = page(tmp_path / "store", tmp_path / "r.html")
    assert found.reels == []
    assert "nan" not in " ".join(found.words)


def test_a_checkpoint(tmp_path):
    record(tmp_path / "store")
    with diskreplay.open(tmp_path / "store", mode="a") as buffer:
        saved = buffer.save(tmp_path / "saved", 3)
        found = page(saved, tmp_path / "r.html")
    assert f"{tmp_path.name}/saved/replay_ckpt.3" in found.words
    assert len(found.reels) == 3


def test_while_training_writes(tmp_path):
    record(tmp_path / "store")
    with diskreplay.open(tmp_path / "store", mode="a") as writer:
        for _step in range(5):
            writer.add(np.zeros((12, 16), np.uint8), 0, 1.0, False, False)
        found = page(tmp_path / "store", tmp_path / "r.html")
        text = " ".join([*found.words, found.data])
        assert "3 whole episodes; 1 cut, unfinished or half evicted, left out" in text
        assert described(writer) in text


@pytest.mark.costly
def test_its_size_is_bounded(tmp_path):
    rng = np.random.default_rng(0)
    with diskreplay.ReplayBuffer(
        tmp_path / "store", observation_space=Box(0, 255, (100, 100), "uint8"), capacity=None,
        action_space=Discrete(1),
    ) as buffer:  # fmt: skip
        for step in range(1500):  # 15 MB of noise, which nothing compresses
            frame = rng.integers(0, 256, (100, 100), np.uint8)
            buffer.add(frame, 0, 0.0, step == 1499, False)
    out = tmp_path / "r.html"
    found = page(tmp_path / "store", out)
    assert out.stat().st_size < 9 << 20
    (reel,) = found.reels
    assert reel["stride"] > 1


def test_another_field_and_number_of_players(tmp_path):
    record(tmp_path / "store", (5, 9, 7, 8, 6, 4))
    out = tmp_path / "r.html"
    for players, count in ((1, 1), (0, 0), (5, 5), (None, 6)):
        assert len(page(tmp_path / "store", out, players=players).reels) == count
    with pytest.raises(InvalidInputError, match="no_field"):
        page(tmp_path / "store", out, field="no_field")
    with pytest.raises(InvalidInputError, match="501 episodes are too many for one page"):
        page(tmp_path / "store", out, players=501)


def test_a_path_that_is_no_utf8(tmp_path):
    store = tmp_path / os.fsdecode(b"st\xffre")
    try:
        record(store, (5, 5))
    except OSError:
        pytest.skip("this file system wants UTF-8")
    with diskreplay.open(store) as buffer:
        page = save_report(buffer, tmp_path / "report.html").read_text("utf-8")
    assert f"{tmp_path}/st?re" in page

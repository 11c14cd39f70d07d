"""How the page and the report look in Chromium: on a phone, in the dark, with long names."""

import os
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay

pytest.importorskip("starlette")
pytest.importorskip("selenium")

from diskreplay.pictures.report import save_report
from diskreplay.view.shown_stores import key_of
from tests.view.browsing import complaints, resize, until
from tests.view.served import at, go, served


@pytest.mark.costly
def test_every_page_on_a_phone_and_in_the_dark(store, driver):
    path, url = store
    key = key_of(path)
    pages = ("live", "episodes", "episodes/0", "rows/20", "vectors")
    every = [*(f"{key}/{page}" for page in pages), f"compare/{key}"]
    for dark, places in ((False, every), (True, every[:1])):
        resize(driver, 375, 740, phone=True, dark=dark)
        for place in places:
            go(driver, url, f"#/{place}")
            until(driver, "document.querySelector('#page h1')")
            until(driver, "document.querySelectorAll('#page .card, #page select').length")
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 375, place
            assert complaints(driver) == [], place
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 20, 22)" if dark else "rgb(247, 247, 245)")
    assert complaints(driver) == []
    resize(driver, 1280, 900)


@pytest.mark.costly
def test_what_is_long_stands_in_one_line(tmp_path, driver):
    """Names, ages and counts: in a narrow tile and beside a line, each component with its own."""
    space, names = Box(-1, 1, (14,)), [f"joint {at % 3}" for at in range(14)]  # some are alike
    path, seen = tmp_path / "store", np.zeros(14, np.float32)
    with diskreplay.ReplayBuffer(
        path, observation_space=space, action_space=Discrete(2), capacity=None,
        metadata={"names": {"observation": names}},
    ) as buffer:  # fmt: skip
        for step in range(20):
            buffer.add(seen + step / 20, 0, 1.0, step == 19, False)
        saved = buffer.save(tmp_path / "checkpoints-of-a-run-with-a-long-name", 20)
    long_ago = time.time() - 15
    for file in (path, *path.rglob("*")):
        os.utime(file, (long_ago, long_ago))
    key = key_of(path)
    tall = (
        "(() => { const tile = [...document.querySelectorAll('.tile')].find((t) =>"
        " t.querySelector('dt').textContent === arguments[0])?.querySelector('dd span');"
        " return tile && [tile.textContent, tile.getClientRects().length] })()"
    )
    with served(tmp_path) as url:
        for width, phone in ((1280, False), (375, True)):
            resize(driver, width, 900, phone=phone)
            go(driver, url, f"#/{key}/live")
            until(driver, f"({tall})?.[0].match(/^\\d+\\s(s|min)\\sago$/)", "Last write")
            assert driver.execute_script(f"return {tall}", "Last write")[1] == 1
            go(driver, url, f"#/{key}/episodes/0?step=10")
            at(driver, 10)
            names = "[...document.querySelectorAll('.channel .name')]"
            tallest = f"Math.max(...{names}.map((name) => name.clientHeight))"
            assert 0 < driver.execute_script(f"return {tallest}") < 70  # three lines
            go(driver, url, f"#/compare/{key}/{key_of(saved)}")
            until(driver, "document.querySelectorAll('.compared tr').length > 5")
            card = "document.querySelector('.compared .scroll')"
            assert driver.execute_script(f"return {card}.scrollWidth <= {card}.clientWidth")
            assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        resize(driver, 1280, 900)
        go(driver, url, f"#/{key}/episodes/0?step=10")
        at(driver, 10)
        line = "[...document.querySelectorAll('.channel')].find((c) => c.querySelector('.name')"
        line += ".textContent === 'observation 12 of 14')"
        until(
            driver, f"{line}.querySelector('output').textContent.startsWith('joint 0 0.5joint 1')"
        )
        go(driver, url, f"#/{key}/vectors")
        charts = "[...document.querySelectorAll('figure h3')].map((h) => h.textContent)"
        until(driver, f"{charts}.filter((t) => t === 'joint 0').length === 5")
        for seconds in (3, 20, 150, 299, 900):  # no two marks of an axis are called the same
            ticks = f"makeScale(-{seconds}, 0, 0, 400, {{ integers: true, most: 5 }}).ticks"
            marks = driver.execute_script(f"return {ticks}.map(secondsText)")
            assert len(set(marks)) == len(marks) > 1
        assert complaints(driver) == []
    resize(driver, 1280, 900)


def test_numbers_of_any_size_are_drawn(tmp_path, driver):
    """Ticks are counted: one number and the next may be further apart than ticks are, or all
    numbers too close to zero or too far from it."""
    path, large = tmp_path / "store", 1.7e308
    seen = np.array([0, 1e20, -5e-324])
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(-np.inf, np.inf, (3,), "float64"), action_space=Discrete(2),
        capacity=None, extras={"seed": ((), "int64")},
    ) as buffer:  # fmt: skip
        for step in range(40):
            seen[0] = 1e20 if step % 20 < 10 else np.nextafter(1e20, np.inf)
            buffer.add(seen, 0, 1.0, step % 20 == 19, False, seed=2**62 + step)
    html = tmp_path / "report.html"
    with diskreplay.open(path) as buffer:
        save_report(buffer, html)
    with served(path) as url:
        for address, place in ((url, f"#/{key_of(path)}/vectors"), (html.as_uri(), "")):
            go(driver, address, place)
            until(driver, "document.querySelectorAll('svg.chart line.axis').length > 4")
            assert complaints(driver) == []
        ticks = driver.execute_script(
            "return arguments[0].flatMap(([low, high]) => [true, false].map((integers) => {"
            " const scale = makeScale(low, high, 0, 100, { integers, most: 5 });"
            " return [scale.ticks, scale.ticks.map(scale), scale.invert(50)]; }))",
            [
                [0, 10], [0.9999999999999999e20, 1.0000000000000001e20], [2**62, 2**62 + 1024],
                [-large, large], [large, large], [0, 5e-324], [0, 0], [1e20, 1e20],
            ],
        )  # fmt: skip
        assert ticks[0][0] == [0, 2, 4, 6, 8, 10]
        for found, places, middle in ticks:
            assert 1 <= len(found) <= 6
            assert len(set(found)) == len(found)
            assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
            assert middle is not None
    complaints(driver)


@pytest.mark.costly
def test_the_report(store, tmp_path, driver):
    """The same player and charts, in one file."""
    path, _url = store
    out = tmp_path / "report.html"
    with diskreplay.open(path) as buffer:
        save_report(buffer, out, players=3)
    resize(driver, 375, 740, phone=True)
    driver.get(f"file://{out}")
    complaints(driver)
    driver.refresh()
    until(driver, "document.querySelectorAll('.player').length === 3")
    assert until(driver, "document.querySelectorAll('svg.chart text').length > 30")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 375
    letters = driver.execute_script(
        "return [...document.querySelectorAll('svg.chart text')].map((t) => {"
        "const m = t.getScreenCTM();"
        "return parseFloat(getComputedStyle(t).fontSize) * Math.hypot(m.a, m.b) })"
    )
    assert min(letters) >= 11.5  # pixels, as they are seen
    plays = driver.find_elements("css selector", "button[aria-label=Play]")
    slow = "document.querySelectorAll('.player select').forEach((s) => { s.value = '1';"
    driver.execute_script(slow + " s.dispatchEvent(new Event('change')); })")
    for number in (0, 2):
        driver.execute_script("arguments[0].click()", plays[number])
        playing = driver.execute_script(
            "return [...document.querySelectorAll('.player')].map((p) => p.dataset.playing)"
        )
        assert playing == ["true" if at == number else "false" for at in range(3)]
    widths = driver.execute_script(
        "const p = document.querySelector('.player');"
        "return [p.clientWidth, p.querySelector('input[type=range]').clientWidth]"
    )
    assert widths[0] == widths[1]
    resize(driver, 1280, 900)
    assert complaints(driver) == []

"""The page in Chromium: it moves, plays, finds, and runs no script of a store."""

import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay

pytest.importorskip("starlette")
pytest.importorskip("selenium")

from selenium.webdriver import ActionChains, Keys

from diskreplay.view import shown_stores
from diskreplay.view.shown_stores import key_of
from tests.view.browsing import complaints, resize, until
from tests.view.served import OPTIONS, add, at, go, served

TURNED = "\x1b[31m\u202egnp.elif\u2066\x00\x9b"  # colours and turns round what follows
EVIL = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>" + TURNED


def text(driver, selector):
    return driver.execute_script(
        "return document.querySelector(arguments[0])?.textContent ?? null", selector
    )


def press(driver, key, shift=False):
    """A key of the keyboard, for whatever has the focus."""
    keys = ActionChains(driver)
    if shift:
        keys.key_down(Keys.SHIFT)
    keys.send_keys(key)
    if shift:
        keys.key_up(Keys.SHIFT)
    keys.perform()


def type_into(driver, name, text):
    """Into a field of a form, and Enter."""
    driver.find_element("css selector", f"[name={name}]").send_keys(text, Keys.ENTER)


def is_playing(driver):
    return driver.execute_script(
        "return document.querySelector('.player').dataset.playing === 'true'"
    )


def tone(driver, camera, x=5):
    """The colour of a canvas, once it has the frame that it should have."""
    return driver.execute_script(
        "const c = document.querySelectorAll('canvas')[arguments[0]];"
        "return [...c.getContext('2d').getImageData(arguments[1], 5, 1, 1).data].slice(0, 3)",
        camera, x,
    )  # fmt: skip


def shows(driver, camera, wanted, x=5):
    deadline = time.monotonic() + 120
    while tone(driver, camera, x) != wanted:
        assert time.monotonic() < deadline, (tone(driver, camera, x), wanted)
        time.sleep(0.02)


@pytest.mark.costly
def test_it_moves_while_training_writes(tmp_path, driver):
    path = tmp_path / "store"
    with diskreplay.PrioritizedReplayBuffer(path, **OPTIONS) as buffer, served(tmp_path) as url:
        add(buffer, 0, 30)
        go(driver, url)
        tile = (
            "[...document.querySelectorAll('.tile')].find((t) => t.querySelector('dt')"
            ".textContent === arguments[0])?.querySelector('dd span').textContent"
        )
        until(driver, f"{tile} === '30'", "Transitions ever")
        until(driver, "document.querySelector('.state').textContent === 'open'")
        buffer.save(tmp_path / "saved", 1)
        add(buffer, 1, 50)
        until(driver, f"{tile} === '80'", "Transitions ever")
        until(driver, f"{tile} === '2'", "Episodes")
        until(driver, "document.querySelector('.state').textContent === 'writing'")
        assert until(driver, "document.querySelectorAll('svg.chart').length > 6")
        buffer.load(tmp_path / "saved", 1)
        until(driver, f"{tile} === '30'", "Transitions ever")
        until(driver, "document.body.textContent.includes('another store is in its place')")
        until(driver, f"{tile} === '1'", "Episodes")
        buffer.close()
        until(driver, "document.querySelector('.state').dataset.state === 'closed'")
        path.rename(tmp_path.parent / f"{tmp_path.name}-gone")
        until(driver, "document.querySelector('.state').dataset.state === 'gone'")
        until(driver, "!document.querySelector('.message').hidden")
        (tmp_path.parent / f"{tmp_path.name}-gone").rename(path)
        until(driver, "document.querySelector('.state').dataset.state === 'closed'")
    assert complaints(driver) == []


@pytest.mark.costly
def test_an_episode_plays_and_can_be_sought(store, driver):
    path, url = store
    resize(driver, 1280, 900)
    start = sum(10 + e + 1 for e in range(40))
    go(driver, url, f"#/{key_of(path)}/episodes/{start}?step=7")
    until(driver, "document.querySelector('.player')")
    at(driver, 7)
    shows(driver, 0, [34, 34, 34])
    shows(driver, 1, [236, 236, 236])
    for key, shift, step in ((Keys.ARROW_RIGHT, False, 8), (Keys.ARROW_RIGHT, True, 18),
                             (Keys.ARROW_LEFT, False, 17), (Keys.HOME, False, 0)):  # fmt: skip
        press(driver, key, shift)
        at(driver, step)
        shows(driver, 0, [20 + 2 * step] * 3)
    press(driver, Keys.END)
    at(driver, "the end")
    driver.execute_script(
        "const s = document.querySelector('.player input[type=range]'); s.value = 29;"
        "s.dispatchEvent(new Event('input'))"
    )
    at(driver, 29)
    until(driver, "document.querySelectorAll('.now dd')[2].textContent === '1'")
    until(driver, "location.hash.endsWith('?step=29')")  # its own link
    press(driver, "s")  # three frames beside each other
    for place, step in ((5, 27), (37, 28), (69, 29)):
        shows(driver, 0, [20 + 2 * step] * 3, place)
    stacks = driver.find_element("css selector", ".tick input")
    assert stacks.is_selected()
    driver.execute_script("arguments[0].focus()", stacks)
    press(driver, " ")  # of the box that has the focus: nothing plays
    assert not stacks.is_selected()
    assert not is_playing(driver)
    driver.execute_script("document.querySelector('.player').focus()")
    press(driver, Keys.HOME)
    at(driver, 0)
    for key in "-----":
        press(driver, key)
    press(driver, " ")
    assert is_playing(driver)  # a frame a second
    for key in "++++++++":
        press(driver, key)
    at(driver, "the end")
    assert not is_playing(driver)
    trace = driver.find_element("css selector", "svg.trace")
    across = trace.rect["width"] * (10 / 49 - 1 / 2)  # from its middle
    ActionChains(driver).move_to_element_with_offset(trace, across, 0).click().perform()
    at(driver, 10)
    driver.execute_script("document.querySelector('.player').focus()")
    for key, is_large in (("f", True), ("f", False), ("f", True), (Keys.ESCAPE, False)):
        press(driver, key)
        until(
            driver, "(document.querySelector('.player.large') !== null) === arguments[0]", is_large
        )
    assert complaints(driver) == []


@pytest.mark.costly
def test_episodes_are_found_by_their_figures(store, driver):
    path, url = store
    go(driver, url, f"#/{key_of(path)}/episodes")
    until(driver, "document.querySelectorAll('tbody tr').length === 50")
    for words, start, rows in (
        ("next →", "start=50", 10), ("⇤ first", "", 50), ("last ⇥", "start=50", 10),
        ("← before", "", 50), ("last ⇥", "start=50", 10),
    ):  # fmt: skip
        is_there = "[...document.querySelectorAll('.pages button')].some((b) => !b.disabled && "
        until(driver, is_there + "b.textContent === arguments[0])", words)
        driver.find_element("xpath", f"//button[text()='{words}']").click()
        until(driver, f"document.querySelectorAll('tbody tr').length === {rows}")
        until(driver, "location.hash.includes('start=') === (arguments[0] !== '')", start)
        until(driver, "location.hash.includes(arguments[0])", start)
    driver.find_element("xpath", "//button[text()='return']").click()
    until(driver, "document.querySelector('tbody td:nth-child(3)')?.textContent === '6'")
    type_into(driver, "most_length", "20")
    until(driver, "document.querySelector('[role=status].note')?.textContent.includes('of 11')")
    assert "of 60 in all" in text(driver, ".note")
    assert text(driver, "tbody td:nth-child(6)").startswith("by ")  # all are in one file
    time_field = (
        "const f = document.querySelector('[name=after]'); f.value = arguments[0];"
        "f.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    for time_of_day, found in (("2100-01-01T00:00", "No episode"), ("2020-01-01T00:00", "of 11")):
        driver.execute_script(time_field, time_of_day)
        until(driver, "document.querySelector('[role=status].note')?.textContent.includes"
              "(arguments[0])", found)  # fmt: skip
    driver.find_element("css selector", "tbody a").click()
    until(driver, "document.querySelector('.player')")
    assert complaints(driver) == []


def test_a_hostile_store_runs_no_script(tmp_path, driver):
    path = tmp_path / "<script>document.title='run'<" / "x"
    path.parent.mkdir(parents=True)
    with diskreplay.ReplayBuffer(
        path, observation_space=Dict({"joints": Box(-1, 1, (2,))}), action_space=Discrete(2),
        capacity=100, extras={"value": ((), "float32")},
        metadata={"name": EVIL, "note": EVIL, EVIL: EVIL, "action_meanings": [EVIL, EVIL],
                  "names": {"observation/joints": [EVIL, EVIL]}},
    ) as buffer:  # fmt: skip
        for step in range(20):
            buffer.add({"joints": np.zeros(2, np.float32)}, 0, 1.0, step == 19, False, value=0.0)
    key = key_of(path)
    with served(tmp_path) as url:
        for place, seen in (
            ("all", ".card h3"), (f"{key}/live", "h1"), (f"{key}/episodes/0", ".now dd"),
            (f"{key}/rows/3", ".numbers"), (f"{key}/vectors", "h3"), (f"compare/{key}", "select"),
        ):  # fmt: skip
            go(driver, url, f"#/{place}")
            until(driver, "document.querySelector(arguments[0])", seen)
            until(driver, "document.body.textContent.includes('onerror=')")  # as text
            inside = driver.execute_script(
                "return document.querySelectorAll('#page script, #page img[onerror]').length"
            )
            assert inside == 0, place
            text = driver.execute_script("return document.body.textContent")
            assert not set(TURNED) & set(text) - set("[31mgnp.elif"), place
            assert "run" not in driver.title.split(" ")
            assert complaints(driver) == []
        # What would become markup is refused by the browser itself.
        refused = driver.execute_script(
            "try { document.body.innerHTML = '<b>'; return false } catch (e) { return e.name }"
        )
        assert refused == "TypeError"
    complaints(driver)


def test_what_is_not_shown_is_said(tmp_path, driver, monkeypatch):
    monkeypatch.setattr(shown_stores, "_MOST_STORES", 2)
    monkeypatch.setattr(shown_stores, "_FRESH", 0.0)
    with diskreplay.ReplayBuffer(tmp_path / "live", **OPTIONS) as buffer:
        add(buffer, 0, 5)
        buffer.save(tmp_path / "checkpoints", 1)
        cards = "[...document.querySelectorAll('a.store')].map((card) => card.textContent)"
        with served(tmp_path) as url:
            go(driver, url, "#/all")
            until(driver, f"{cards}.length === 2 && {cards}[1].includes('_ckpt.1')")
            assert text(driver, "header p") == ""
            buffer.save(tmp_path / "checkpoints", 2, keep=None)  # it stands where the older one did
            until(driver, f"{cards}.length === 2 && {cards}[1].includes('_ckpt.2')")
            until(driver, "document.querySelector('header p').textContent === arguments[0]",
                  "Not shown: 1 checkpoint. A store that is named on the command line is always"
                  " shown.")  # fmt: skip
    complaints(driver)


def test_a_row_whose_numbers_are_not_finite(tmp_path, driver):
    path = tmp_path / "store"
    with diskreplay.ReplayBuffer(
        path, observation_space=Box(-np.inf, np.inf, (3,)), action_space=Discrete(2), capacity=10
    ) as buffer:
        for _ in range(3):
            buffer.add(np.array([np.nan, np.inf, -np.inf], np.float32), 1, 1.0, False, False)
    with served(path) as url:
        go(driver, url, f"#/{key_of(path)}/rows/1")
        wanted = "observation[0]: NaN   observation[1]: Infinity   observation[2]: -Infinity"
        until(driver, "document.querySelector('.numbers')?.textContent === arguments[0]", wanted)
        assert complaints(driver) == []


@pytest.mark.costly
def test_a_hundred_thousand_episodes_on_a_phone(tmp_path, driver):
    """Of 100 envs: each step is an episode, whose return is its step."""
    path, envs, steps = tmp_path / "store", 100, 1000
    space = Box(-1, 1, (1,))
    with diskreplay.ReplayBuffer(
        path, observation_space=space, action_space=Discrete(2), capacity=None, num_envs=envs
    ) as buffer:
        seen, ends = np.zeros((envs, 1), np.float32), np.ones(envs, bool)
        for step in range(steps):
            buffer.add(seen, np.zeros(envs, int), np.full(envs, step), ends, ~ends)
    key = key_of(path)
    said = "document.querySelector('#page [role=status]')?.textContent"
    rows = "[...document.querySelectorAll('#page tbody tr')]"
    with served(path) as url:
        resize(driver, 375, 740, phone=True)
        go(driver, url, f"#/{key}/episodes")
        until(driver, f"{said} === '1 to 50 of 100,000 episodes'")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 375
        go(driver, url, f"#/{key}/episodes?start=99950&order=return")
        until(driver, f"{said} === '99,951 to 100,000 of 100,000 episodes'")
        assert driver.execute_script(f"return {rows}.length") == 50
        lowest = f"{rows}.every((row) => row.children[2].textContent === '0')"
        assert driver.execute_script(f"return {lowest}")
        go(driver, url, f"#/{key}/episodes?least_return=500&since=70000&until=70099")
        until(driver, f"{said} === '1 to 50 of 100 episodes, of 100,000 in all'")
        go(driver, url, f"#/{key}/episodes/99999")
        until(driver, "document.querySelector('.now dd')")
        assert complaints(driver) == []
    resize(driver, 1280, 900)


@pytest.mark.costly
def test_a_server_that_ends_is_said_to_have(tmp_path, driver):
    with diskreplay.ReplayBuffer(tmp_path / "s", **OPTIONS) as buffer:
        add(buffer, 0, 5)
    with served(tmp_path) as url:
        go(driver, url)
        until(driver, "document.querySelectorAll('.tile').length > 3")
    until(driver, "!document.getElementById('banner').hidden")
    complaints(driver)

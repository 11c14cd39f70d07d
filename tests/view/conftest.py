"""For tests of the page."""

import pytest

import diskreplay
from diskreplay.view.readers import Readers
from diskreplay.view.shown_stores import ShownStores
from tests.view.browsing import CHROMIUM, DRIVER, chromium
from tests.view.served import OPTIONS, add, served


@pytest.fixture
def readers(tmp_path):
    """The readers of all stores below `tmp_path`."""
    made = Readers(ShownStores([tmp_path]))
    yield made
    made.close()


@pytest.fixture(scope="module")
def driver():
    """A browser."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver, packages of Debian")
    pytest.importorskip("selenium")
    pytest.importorskip("starlette")
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of sixty episodes, and the address of its page."""
    path = tmp_path_factory.mktemp("view") / "store"
    with diskreplay.PrioritizedReplayBuffer(path, **OPTIONS, metadata={"env_id": "Tone-v0"}) as b:
        for episode in range(60):
            add(b, episode, 10 + episode)
    with served(path) as url:
        yield path, url

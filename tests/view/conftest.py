"""For tests of the page."""

import pytest

from diskreplay.view.readers import Readers
from diskreplay.view.shown_stores import ShownStores


@pytest.fixture
def readers(tmp_path):
    """The readers of all stores below `tmp_path`."""
    made = Readers(ShownStores([tmp_path]))
    yield made
    made.close()

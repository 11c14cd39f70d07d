"""What the tests of several facades share."""

import pytest

from diskreplay.compat import base


@pytest.fixture(scope="module", params=["in memory", "on disk"])
def small_columns(request):
    """Small columns, which all are in these tests, are read from memory, or from the disk as large
    ones are."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "on disk":
            patch.setattr(base, "_LARGEST_IN_MEMORY", 0)
        yield

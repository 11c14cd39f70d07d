"""A few rows, recorded as the test's module says."""

import pytest

from tests.convert.recorded import Recorded


@pytest.fixture
def recorded(request, tmp_path):
    made = Recorded(tmp_path / "store", **request.module.FEW)
    yield made
    made.buffer.close()

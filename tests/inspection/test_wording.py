"""Figures as people read them."""

import numpy as np
import pytest

from diskreplay.inspection.wording import number_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1.5 * 2**20, "1.5 MiB"),
     (2**30, "1.0 GiB"), (3 * 2**40, "3.0 TiB"), (2**51, "2048.0 TiB")],
)  # fmt: skip
def test_size_text(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (np.float64("inf"), "-"), (3, "3"), (12345.0, "12,345"),
     (-0.123456, "-0.1235"), (1e20, "1e+20"), (True, "1")],
)  # fmt: skip
def test_number_text(value, text):
    assert number_text(value) == text

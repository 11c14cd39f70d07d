"""Figures as people read them."""

import numpy as np
import pytest

from diskreplay.inspection.humanize import (
    ago_text,
    count_text,
    number_text,
    size_text,
    when_text,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1.5 * 2**20, "1.5 MiB"),
     (2**30, "1.0 GiB"), (3 * 2**40, "3.0 TiB"), (2**51, "2,048.0 TiB"),
     (2**20 - 1, "1.0 MiB"), (1023.9 * 2**20, "1,023.9 MiB")],
)  # fmt: skip
def test_size_text(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (np.float64("inf"), "-"), (3, "3"), (12345.0, "12,345"),
     (-0.123456, "-0.1235"), (1e20, "1e+20"), (True, "1"),
     (1002.25, "1,002"), (999.97, "1,000"), (-1234567.8, "-1,234,568")],
)  # fmt: skip
def test_number_text(value, text):
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "just now"), (0.9, "just now"), (1, "1 second ago"), (59.9, "59 seconds ago"),
     (60, "1 minute ago"), (3 * 60 + 59, "3 minutes ago"), (3600, "1 hour ago"),
     (86399, "23 hours ago"), (86400, "1 day ago"), (1234 * 86400, "1,234 days ago")],
)  # fmt: skip
def test_ago_text(seconds, text):
    assert ago_text(seconds) == text


def test_when_text():
    assert when_text(None) == "unknown"
    assert when_text(1e9, now=1e9 + 120).endswith(" (2 minutes ago)")


@pytest.mark.parametrize(("count", "text"), [(0, "0 envs"), (1, "1 env"), (4096, "4,096 envs")])
def test_count_text(count, text):
    assert count_text(count, "env") == text

"""Warnings about what is done, where warnings are errors."""

import warnings

import pytest

from diskreplay.late_warning import no_error


def test_it_is_shown_and_raises_nothing():
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        with no_error():
            warnings.warn("done, but", RuntimeWarning, stacklevel=1)
    assert [(str(each.message), each.filename) for each in shown] == [("done, but", __file__)]


def test_other_errors_are_raised():
    with pytest.raises(RuntimeError, match="not done"), no_error():
        raise RuntimeError("not done")
    with pytest.warns(RuntimeWarning, match="as ever"), no_error():
        warnings.warn("as ever", RuntimeWarning, stacklevel=1)

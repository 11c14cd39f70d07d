"""Warnings about what is done, and cannot be undone."""

import contextlib
import traceback
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def no_error() -> Iterator[None]:
    """Where warnings are errors, a ``RuntimeWarning`` of the block is shown, and is none: an error
    would say that nothing was done, and what is done behind the block would not be."""
    try:
        yield
    except RuntimeWarning as warning:
        *_, (frame, line) = traceback.walk_tb(warning.__traceback__)
        warnings.showwarning(warning, RuntimeWarning, frame.f_code.co_filename, line)

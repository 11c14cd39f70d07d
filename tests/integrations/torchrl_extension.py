"""Loads torchrl's trees beside more versions of torch than the one that they were built for."""

import importlib
import os
import sys


def load():
    """A symbol that is missing there is never called: lazy binding lets the rest be used."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        importlib.import_module("torch")
        importlib.import_module("torchrl._torchrl")
    finally:
        sys.setdlopenflags(flags)

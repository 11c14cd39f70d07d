"""For all tests."""

import os

# Set for the workers of a parallel run: texts would be broken to the width of somebody's terminal.
os.environ.pop("COLUMNS", None)

"""How much a test tries where there is more than it can: ``HYPOTHESIS_PROFILE`` says it.

``same``
    What everybody runs: enough to find what the test is there for, the same each time.
``whole``
    As `.ci/run` does: the same each time, two or three times as much.
``long``
    Others each time, and many more.
"""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
LONG = PROFILE == "long"


def effort(same, whole, long=None):
    """Which of these numbers is meant; the second also for ``long``, if there is no third."""
    if PROFILE == "same":
        return same
    return long if LONG and long is not None else whole

"""How much a test tries where there is more than it can: ``HYPOTHESIS_PROFILE`` says it.

``same``
    What everybody runs: enough to find what the test is there for, the same each time.
``whole``
    As `.ci/run` does: the same each time, two or three times as much.
``long``
    Others each time, and many more.

With ``same`` a test that is marked ``costly(cases)`` has only so many of its cases run, evenly
spread over all of them; without a number none. All are run where a test is named
(``tests/x.py::test_y``).
"""

import itertools
import os
from collections import defaultdict

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
LONG = PROFILE == "long"


def effort(same, whole, long=None):
    """Which of these numbers is meant; the second also for ``long``, if there is no third."""
    if PROFILE == "same":
        return same
    return long if LONG and long is not None else whole


def too_many(items):
    """The tests among these that are not run with ``same``: cases of those that are marked so."""
    if PROFILE != "same":
        return []
    families = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("costly"):
            families[item.nodeid.partition("[")[0], *marker.args].append(item)
    return [
        item
        for (_name, *cases), family in families.items()
        for item in itertools.compress(family, left_out(len(family), *cases))
    ]


def left_out(number, cases=0):
    """Which of so many cases are left out, that so many remain."""
    return [at * cases // number == (at - 1) * cases // number for at in range(number)]

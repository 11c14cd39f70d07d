"""How much a test tries where there is more than it can: ``HYPOTHESIS_PROFILE`` says it.

``same``
    What everybody runs: enough to find what the test is there for, the same each time.
``whole``
    As `.ci/run` does: the same each time, two or three times as much.
``long``
    Others each time, and many more.

With ``same`` a test that is marked ``costly(cases)`` has only so many of its cases run, evenly
spread over all of them; without a number none. With ``whole`` it has those run in which each value
of a parameter meets each value of each other one: all pairs, and not all triples. All are run with
``long``, and where a test is named (``tests/x.py::test_y``).
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
    """The tests among these that are not run: cases of those that are marked so."""
    if LONG:
        return []
    families = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("costly"):
            families[item.nodeid.partition("[")[0], *marker.args].append(item)
    return [
        item
        for (_name, *cases), family in families.items()
        for item in itertools.compress(
            family,
            left_out(len(family), *cases)
            if PROFILE == "same"
            else without_new_pairs([values_of(item) for item in family]),
        )
    ]


def left_out(number, cases=0):
    """Which of so many cases are left out, that so many remain."""
    return [at * cases // number == (at - 1) * cases // number for at in range(number)]


def values_of(item):
    """The parameters of a test, by name."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def without_new_pairs(cases):
    """Which of these cases are left out, that each pair of values of two parameters remains."""
    pairs = []
    for case in cases:
        values = [(name, id(value)) for name, value in sorted(case.items())]
        pairs.append(set(itertools.combinations(values, min(len(values), 2))))
    missing, kept = set().union(*pairs), set()
    while missing:
        most = max(range(len(pairs)), key=lambda at: len(pairs[at] & missing))
        kept.add(most)
        missing -= pairs[most]
    return [at not in kept for at in range(len(pairs))]


def has_clusters(path):
    """Whether there are tests below this path that start a cluster: what is no module may have
    some, and a module says so, or its folder."""
    if path.suffix != ".py" or path.parent.name == "on_ray":
        return True
    return "mark.cluster" in path.read_text()

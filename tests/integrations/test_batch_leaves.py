"""Which paths and which fields the leaves of a Tianshou batch have, whatever they are called."""

import numpy as np
import pytest

pytest.importorskip("tianshou")
from hypothesis import given
from hypothesis import strategies as st
from tianshou.data import Batch

from diskreplay.integrations.batch_leaves import field_names, fields_of, keys_of, leaves, path_of
from diskreplay.store.field import Field

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda key: key not in ("items", "keys", "get_keys")  # Tianshou calls these methods of a batch
)
TREES = st.recursive(
    st.just(np.zeros(1)), lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=4),
    max_leaves=12,
)  # fmt: skip


def batch_of(tree):
    """A batch of any keys, as attributes."""
    made = Batch()
    for key, value in tree.items():
        made.__dict__[key] = batch_of(value) if isinstance(value, dict) else value
    return made


def of_tree(tree, *before):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from of_tree(value, *before, key)
        else:
            yield [*before, key]


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_a_path_says_which_keys_lead_to_a_leaf(tree):
    paths = [path for path, _ in leaves(batch_of(tree))]
    assert [keys_of(path) for path in paths] == list(of_tree(tree))
    assert len(set(paths)) == len(paths)


@given(st.dictionaries(KEYS, TREES, max_size=4), st.randoms())
def test_each_leaf_has_a_field_of_its_own_whatever_the_order(tree, random):
    tree |= {"rew": np.zeros(1), "obs": np.zeros((1, 3)), "act": np.zeros(1)}
    names = field_names(batch_of(tree))
    assert sorted(map(keys_of, names)) == sorted(of_tree(tree))
    fields = fields_of(batch_of(tree), names)
    for name, (shape, dtype) in fields.items():
        Field(name, shape, dtype)  # or it raises
    assert len({name.lower() for name in fields}) == len(fields) == len(names) + 2
    assert (names["rew"], names["obs"], names["act"]) == ("rew", "observation", "action")
    shuffled = list(tree.items())
    random.shuffle(shuffled)
    assert field_names(batch_of(dict(shuffled))) == names


def test_slashes_and_tildes_are_written_as_in_a_json_pointer():
    assert path_of("a/b~c~1") == "a~1b~0c~01"
    assert keys_of("info/a~1b~0c~01") == ["info", "a/b~c~1"]


def test_long_names_are_no_paths_too_long():
    tree = np.zeros(1)
    for _ in range(6):
        tree = {"k" * 190: tree}
    ((_, name),) = field_names(batch_of(tree)).items()
    assert len(name) < 200

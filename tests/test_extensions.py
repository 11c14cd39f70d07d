"""What a buffer asks of layers above it is there, and is loaded no sooner than it is asked for."""

import importlib.util
import subprocess
import sys

import pytest

import diskreplay  # noqa: F401 - registers them
from diskreplay import extensions

NEEDS = {"handovers_to": "torch", "to_jax": "jax", "to_torch": "torch"}


@pytest.mark.parametrize("name", sorted(extensions._PLACES))
def test_every_extension_can_be_called(name):
    if importlib.util.find_spec(NEEDS.get(name, "sys")) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    assert callable(extensions.find(name))


def test_a_name_that_nobody_registered_is_an_error():
    with pytest.raises(KeyError, match="nothing"):
        extensions.find("nothing")


def test_buffers_load_no_layer_above_them():
    code = """
import sys
import diskreplay
diskreplay.ReplayBuffer, diskreplay.PrioritizedReplayBuffer, diskreplay.open
above = ("cli", "view", "compat", "convert", "integrations", "pictures", "inspection")
print(*(name for name in sys.modules if name.split(".")[1:2] and name.split(".")[1] in above
        and name.startswith("diskreplay.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_package_that_is_missing_is_said_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError) as caught, extensions.needed("tables", "some,more"):
        import pandas  # noqa: F401
    assert str(caught.value) == 'tables: pip install "diskreplay[some,more]"'
    assert caught.value.name == "pandas"


def test_a_package_that_is_there_and_broken_says_so_itself():
    broken = ImportError("libsome.so: undefined symbol")
    with pytest.raises(ImportError) as caught, extensions.needed("tables", "some"):
        raise broken
    assert caught.value is broken

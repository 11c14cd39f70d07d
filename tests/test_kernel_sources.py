"""When the machine code of a kernel is out of date: modules that are written over."""

import itertools
import sys
import types

import pytest

from diskreplay import kernel_sources

OF_KERNELS = "from diskreplay.jit import kernel\n"
_names = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package of its own, and gives the digest of one."""
    name = f"kernels_of_a_test_{next(_names)}"

    def write(module, text):
        path = tmp_path / f"{module}.py"
        path.write_text(text.replace("HERE", name))
        made = types.ModuleType(f"{name}.{module}")
        made.__file__ = str(path)
        monkeypatch.setitem(sys.modules, f"{name}.{module}", made)

    def digest(module):
        kernel_sources.digest.cache_clear()
        kernel_sources._source.cache_clear()
        return kernel_sources.digest(f"{name}.{module}")

    yield write, digest
    kernel_sources.digest.cache_clear()
    kernel_sources._source.cache_clear()


def test_it_changes_with_what_a_kernel_takes_in_and_with_nothing_else(package):
    write, digest = package
    write("top", OF_KERNELS + "from HERE.part import f\nimport HERE.other\n")
    write("part", OF_KERNELS + "from HERE.deep import g\nfrom HERE.numbers import N\n")
    write("deep", OF_KERNELS)
    write("numbers", "from HERE.beyond import anything\nN = 1\n")
    write("beyond", "one = 1\n")  # of a module with numbers alone: not looked at
    write("other", OF_KERNELS)
    before = digest("top")
    assert digest("top") == before
    for module in ("deep", "numbers", "part", "top"):
        write_more(write, module, package)
        now = digest("top")
        assert now != before, module
        before = now
    for module in ("beyond", "other"):
        write_more(write, module, package)
        assert digest("top") == before, module


def write_more(write, module, package):
    (made,) = (m for name, m in sys.modules.items() if name.endswith(f".{module}")
               and name.startswith("kernels_of_a_test"))  # fmt: skip
    with open(made.__file__, "a") as file:
        file.write("# more\n")


def test_circles_and_modules_without_a_file_end(package):
    write, digest = package
    write("one", OF_KERNELS + "from HERE.two import a\nfrom HERE.gone import b\n")
    write("two", OF_KERNELS + "from HERE.one import c\n")
    assert digest("one") == digest("two")  # the same sources, in whatever order
    assert isinstance(digest("one"), int)
    assert kernel_sources._source("no_such_module") == b""


def test_modules_of_other_packages_do_not_count(package, monkeypatch):
    write, digest = package
    write("top", OF_KERNELS + "from numpy import array\n")
    before = digest("top")
    monkeypatch.setattr(sys.modules["numpy"], "__file__", __file__)
    assert digest("top") == before


def test_our_own_kernels_depend_on_what_they_take_in(monkeypatch):
    import diskreplay.sampling.episode_kernels

    name = diskreplay.sampling.episode_kernels.__name__
    before = kernel_sources.digest(name)
    try:
        for module in ("diskreplay.sampling.row_index_kernels", "diskreplay.cache_line"):
            with monkeypatch.context() as patched:
                patched.setattr(sys.modules[module], "__file__", __file__)
                kernel_sources.digest.cache_clear()
                kernel_sources._source.cache_clear()
                assert kernel_sources.digest(name) != before
    finally:
        kernel_sources.digest.cache_clear()
        kernel_sources._source.cache_clear()
    assert kernel_sources.digest(name) == before

"""Which processors need a fence between two stores."""

import importlib
import platform

import pytest

from diskreplay.store import ordering


@pytest.mark.parametrize(
    ("machine", "fenced"),
    [("x86_64", False), ("AMD64", False), ("i686", False), ("aarch64", True), ("riscv64", True)],
)
def test_only_those_that_reorder_stores_have_one(monkeypatch, machine, fenced):
    with monkeypatch.context() as patched:
        patched.setattr(platform, "machine", lambda: machine)
        importlib.reload(ordering)
        assert (ordering.barrier is ordering._fence) == fenced
        assert ordering.barrier() is None
    importlib.reload(ordering)


def test_the_fence_is_one_call_of_a_kernel():
    from diskreplay.store import ordering_kernels

    assert ordering_kernels.full(0) == 0
    assert ordering._fence() is None

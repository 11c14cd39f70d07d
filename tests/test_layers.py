"""Each layer of the package uses only those below it, and importing it stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskreplay"

# From the top down; modules of one level may use each other. As the package's docstring says.
LEVELS = [
    ["cli", "__main__"],
    ["compat"],
    ["convert", "integrations", "pictures"],
    ["inspection"],
    ["prefetch", "shared_buffer"],
    ["prioritized"],
    ["buffer"],
    ["indexed_store"],
    ["batch_reader", "validation"],
    ["schema"],
    ["spaces"],
    ["naming"],
    ["batch", "statistics", "metadata"],
    ["sampling"],
    ["store"],
    ["errors", "process", "caches", "jit"],
]
HEAVY = ["numba", "zarr", "pandas", "matplotlib", "torch"]
# What reaches up, and only inside a function: methods that are a shorter name for a layer above.
DEFERRED = {
    ("buffer", "prefetch"),  # prefetch()
    ("buffer", "inspection"),  # episodes()
    ("buffer", "prioritized"),  # open
    ("buffer", "convert"),  # to_pandas(), and load() of the files of ReAgent and Dopamine
    ("batch", "integrations"),  # to_torch()
}


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def layer_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def level(layer):
    found = [i for i, names in enumerate(LEVELS) if layer in names]
    assert found, f"{layer} has no place among the layers: add it here and to the layer map"
    return found[0]


def imports(path):
    """(imported layer, whether at the top of the module) for each import of our own."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "diskreplay" and len(parts) > 1 and not parts[1].startswith("__"):
                yield parts[1], node in tree.body


def test_the_parser_sees_imports():
    found = dict.fromkeys(imports(PACKAGE / "buffer.py"))
    assert ("store", True) in found
    assert ("prefetch", False) in found


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_layer_reaches_up(path):
    layer = layer_of(path)
    if layer == "__init__":
        return
    for imported, at_top in imports(path):
        if imported == layer or ((layer, imported) in DEFERRED and not at_top):
            continue
        assert level(imported) >= level(layer), f"{path}: {layer} imports {imported}"


def test_sampling_and_store_know_nothing_of_each_other():
    for layer, other in (("sampling", "store"), ("store", "sampling")):
        for path in (PACKAGE / layer).glob("*.py"):
            assert other not in {imported for imported, _at_top in imports(path)}, path


def test_every_module_is_on_the_layer_map():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    layer_map = ast.get_docstring(tree)
    for path in modules():
        layer = layer_of(path)
        if layer == "__init__":
            continue
        shown = f"{layer}/" if (PACKAGE / layer).is_dir() else f"{layer}.py"
        assert shown in layer_map, f"{shown} is not on the layer map of diskreplay/__init__.py"
        level(layer)


def test_every_module_says_what_it_is():
    for path in modules():
        if path.stat().st_size:
            assert ast.get_docstring(ast.parse(path.read_text())), path


def test_import_loads_nothing_heavy():
    code = f"""
import sys
import diskreplay
print(*(name for name in {[*HEAVY, "numpy", "gymnasium"]} if name in sys.modules))
diskreplay.SumTree, diskreplay.ReplayBuffer, diskreplay.open
print(*(name for name in {HEAVY} if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == []


def test_all_that_is_exported_can_be_had():
    import diskreplay

    assert set(diskreplay.__all__) <= set(dir(diskreplay))
    for name in diskreplay.__all__:
        value = getattr(diskreplay, name)
        assert getattr(value, "__module__", "diskreplay").startswith("diskreplay"), name
    with pytest.raises(AttributeError, match="'diskreplay' has no attribute 'nothing'"):
        diskreplay.nothing  # noqa: B018

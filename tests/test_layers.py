"""Each layer of the package uses only those below it, and importing it stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.elsewhere import THIN, TOGETHER

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "diskreplay"

# From the top down; modules of one level may use each other. As docs/design/layers.md says.
LEVELS = [
    ["cli", "__main__"],
    ["view"],
    ["compat"],
    ["convert", "integrations", "pictures", "ray", "remote"],
    ["inspection"],
    ["union"],
    ["union_calls", "union_state"],
    ["union_members"],
    ["joint_draw", "union_member"],
    ["opening", "shared_buffer"],
    ["prioritized"],
    ["buffer"],
    ["sequence_source"],
    ["hindsight", "relabelling", "sequence_hindsight", "sequences"],
    ["transition_source"],
    ["actor_rows"],
    ["row_buffer"],
    ["slots"],
    ["row_reader"],
    ["session"],
    ["actor_rings", "call_guard"],
    ["checkpoint_loader", "checkpoint_saver"],
    ["one_checkpoint"],
    ["slot_frames", "slot_table", "slot_table_kind"],
    ["owned_store_kind"],
    ["sequence_view", "store_kind"],
    ["prefetchers"],
    ["distribution", "indexed_store", "prefetch", "prefetch_job", "statistics"],
    ["drawable_rows", "followed_rows", "handover"],
    ["sequence_reader"],
    ["env_writer"],
    ["batch_reader", "open_episodes", "options", "runs", "sequence_options", "small_columns"],
    ["packed_batch", "stack_reader"],
    ["slot_fields"],
    ["validation"],
    ["schema"],
    ["stored_space"],
    ["spaces"],
    ["naming"],
    ["sequence_batch", "sequence_state", "slot_view"],
    ["batch", "episodes", "metadata"],
    ["check"],
    ["episode_parts", "frame_chains", "letting_go"],
    ["sampling"],
    ["store"],
    ["given_numbers"],
    [
        "brief",
        "closing",
        "compile_lock",
        "errors",
        "extensions",
        "fork",
        "late_warning",
        "locks",
        "member_group",
        "signals",
        "thread_start",
        "cache_line",
        "row_commit",
        "jit",
        "kernel_sources",
    ],
]
HEAVY = ["numba", "zarr", "pandas", "matplotlib", "torch", "obstore", "ray", "starlette"]


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def layer_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def level(layer):
    found = [i for i, names in enumerate(LEVELS) if layer in names]
    assert found, f"{layer} has no place among the layers: add it here and to the layer map"
    return found[0]


def imports(path):
    """All that a module imports of the package, by full names; deferred imports too, and what only
    type checkers see."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "diskreplay" and len(parts) > 1 and not parts[1].startswith("__"):
                yield name


def layers(path):
    return {name.split(".")[1] for name in imports(path)}


def imported_modules():
    """The modules that each module imports."""
    named = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in modules()}
    named = {name.removesuffix(".__init__"): path for name, path in named.items()}
    found = {}
    for module, path in named.items():
        found[module] = set()
        for name in imports(path):
            while name not in named:
                name = name.rpartition(".")[0]
            if name not in (module, "diskreplay"):
                found[module].add(name)
    return found


def circles(imported):
    """Sets of modules each of which imports every other, perhaps through others."""
    reached = {}
    for module in imported:
        seen, waiting = set(), [module]
        while waiting:
            new = imported[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[module] = seen
    found = []
    for module, seen in reached.items():
        circle = {other for other in seen if module in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_the_parser_sees_imports():
    found = set(imports(PACKAGE / "convert" / "pandas.py"))
    assert "diskreplay.stored_space.StoredSpace" in found
    assert "diskreplay.extensions" in set(imports(PACKAGE / "batch.py"))
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_layer_reaches_up(path):
    layer = layer_of(path)
    if layer == "__init__":
        return
    for imported in layers(path) - {layer}:
        assert level(imported) >= level(layer), f"{path}: {layer} imports {imported}"


def test_no_modules_import_each_other_in_a_circle():
    assert circles(imported_modules()) == []


def test_only_the_package_says_where_extensions_are():
    """Else a lower layer could reach a higher one by the name of its module."""
    for path in modules():
        if layer_of(path) not in ("__init__", "extensions", "cli"):  # the highest two, and it
            assert not re.search(r"extensions\.register|import_module|__import__", path.read_text())


def test_sampling_and_store_know_nothing_of_each_other():
    for layer, other in (("sampling", "store"), ("store", "sampling")):
        for path in (PACKAGE / layer).glob("*.py"):
            assert other not in layers(path), path


def test_every_module_is_on_the_layer_map():
    layer_map = (ROOT / "docs" / "design" / "layers.md").read_text()
    for path in modules():
        layer = layer_of(path)
        if layer == "__init__":
            continue
        shown = f"{layer}/" if (PACKAGE / layer).is_dir() else f"{layer}.py"
        assert shown in layer_map, f"{shown} is not in docs/design/layers.md"
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


def test_ray_is_called_by_way_of_a_connection_only():
    """Each other call would start a cluster by itself once Ray is shut down."""
    calls = re.compile(r"\bray\.(get|put|wait|kill|get_actor|nodes|remote|init)\(|\.remote\(")
    for path in sorted((PACKAGE / "ray").glob("*.py")):
        if path.name != "actors.py":
            found = [line for line in path.read_text().splitlines() if calls.search(line)]
            assert not found, f"{path.name}: by diskreplay.ray.actors: {found}"


LARGEST_FILE, LARGEST_CLASS = 450, 25


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_file_and_no_class_is_too_large(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LARGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            assert len(names) <= LARGEST_CLASS, node.name


def folder_of_tests(path):
    """Where the test of a module is: as the module itself, but for two folders. With one of the
    name `ray`, tests would import that in place of Ray."""
    folder, *below = path.relative_to(PACKAGE).parts
    if not below:
        return "sequences" if path.stem.startswith("sequence") else "."
    return {"ray": "on_ray"}.get(folder, folder)


def test_a_test_of_the_name_of_a_module_is_where_the_module_is():
    """`store/files.py` has `store/test_files.py`. Two files of tests cannot have one name, so that
    `compat/cpprb/files.py` has `compat/test_cpprb_files.py`."""
    places = {}
    for path in modules():
        for name in (path.stem, f"{path.parent.name}_{path.stem}"):
            places.setdefault(name, set()).add(folder_of_tests(path))
    tests, mirrored = ROOT / "tests", 0
    for test in tests.rglob("test_*.py"):
        there = places.get(test.stem.removeprefix("test_"))
        mirrored += there is not None
        assert there is None or test.parent.relative_to(tests).as_posix() in there, test
    assert mirrored > 100


def names_of_tests(path):
    """The names that the test of a module may have: with its folder's before it, and without where
    no other module has its tests in that folder under the same one."""
    folder = folder_of_tests(path)
    alike = [
        each for each in modules() if each.stem == path.stem and folder_of_tests(each) == folder
    ]
    long = f"test_{path.parent.name}_{path.stem}.py"
    return [long, f"test_{path.stem}.py"] if len(alike) == 1 else [long]


def without_a_test():
    """The modules without a file of tests of their name; not those that only export others."""
    tests = ROOT / "tests"
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if path.stem != "__init__"
        and not any(
            (tests / folder_of_tests(path) / name).exists() for name in names_of_tests(path)
        )
    }


def test_every_module_has_a_test_of_its_name_or_a_reason():
    """Else write the test, or say in `tests/elsewhere.py` why there is none."""
    assert not THIN.keys() & TOGETHER.keys()
    exempt = THIN.keys() | TOGETHER.keys()
    found = without_a_test()
    assert found - exempt == set(), "neither a test of their name nor a line in tests/elsewhere.py"
    assert exempt - found == set(), "in tests/elsewhere.py, and they have a test or are no modules"


def test_the_tests_that_stand_for_others_are_there():
    for module, (reason, *tests) in TOGETHER.items():
        assert reason, module
        assert tests, module
        for test in tests:
            assert (ROOT / "tests" / test).is_file(), f"{module}: {test} is not there"
    assert all(THIN.values())


def test_a_name_that_two_modules_have_is_no_name_of_a_test_of_either():
    one, other = (PACKAGE / "compat" / folder / "kernels.py" for folder in ("cpprb", "reagent"))
    assert names_of_tests(one) == ["test_cpprb_kernels.py"]
    assert names_of_tests(other) == ["test_reagent_kernels.py"]
    assert "test_files.py" in names_of_tests(PACKAGE / "store" / "files.py")

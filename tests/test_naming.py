"""Names of extras and of the keys of nested spaces: each is refused when the buffer is made, or
works in every way that a name is used."""

import inspect
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

import diskreplay
from diskreplay.check.verify import verify
from diskreplay.compat import cpprb
from diskreplay.convert import parquet
from diskreplay.errors import ExtrasError, InvalidInputError
from diskreplay.integrations.gymnasium import Recorder
from tests.effort import effort

CALLS = (
    diskreplay.ReplayBuffer, diskreplay.ReplayBuffer.add, diskreplay.ReplayBuffer.extend,
    diskreplay.ReplayBuffer.take, Recorder.annotate,
)  # fmt: skip
TAKEN = sorted(
    {name for call in CALLS for name in inspect.signature(call).parameters}
    | {name for name in dir(diskreplay.Batch) if not name.startswith("__")}
    | {"unsealed", "live", "priority", "tail", "state", "lock", "attachments", "manifest", "zarr"}
    | {"episode", "env", "row", "t", "return_to_go", "id", "seed", "class", "lambda", "None"}
)
SHAPED = [
    "", ".", "..", "a.b", "a..b", "a/b", "a b", "a ", "a.", "-a", ".a", "_a", "__a", "0", "1a",
    "zarr.json", "Zarr.json", "c.0.0.0", "x.tmp", "\0", "\n", "ä", "日本", "K", "x" * 100,
    "x" * 101, "x" * 199, "x" * 300, "con", "a_0", "action_0", "observation_0",
]  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(TAKEN + SHAPED),
    st.text(max_size=12),
    st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,12}", fullmatch=True),
)
SCALAR = {"observation_space": Discrete(9), "action_space": Discrete(3), "capacity": 100}


def used(path, options, steps):
    """Make a store, use it in every way; or it is refused, by a sentence that says what to do."""
    try:
        buffer = diskreplay.PrioritizedReplayBuffer(path, **options, seed=1)
    except InvalidInputError as error:
        said = str(error)
    else:
        said = None
    if said is not None:
        assert any(word in said for word in ("expected", "rename", "must", "choose")), said
        assert not path.exists()
        return
    with buffer:
        for step in steps:
            buffer.add(**step)
        buffer.save(path.parent / "checkpoints", 1)
    with diskreplay.PrioritizedReplayBuffer(path, **options, seed=1) as buffer:
        batch = buffer.gather(np.arange(len(steps) - 1))
        drawn = buffer.sample(8)
        for name in options.get("extras", ()):
            expected = [step[name] for step in steps[:-1]]
            assert getattr(batch, name).tolist() == batch[name].tolist() == expected
            assert buffer.take(name, np.arange(len(steps) - 1)).tolist() == expected
            assert getattr(drawn, name).shape == (8,)
            assert name in batch.asdict()
        for part in ("observation", "action"):
            same(getattr(batch, part), [step[part] for step in steps[:-1]])
        frame = buffer.to_pandas()
        assert len(frame.columns) == len(set(frame.columns)), list(frame.columns)
        for name in options.get("extras", ()):
            # Named like a column of every frame, or like another extra then, it gets a `_`.
            shown = [c for c in frame.columns if c.rstrip("_") == name.rstrip("_")]
            assert [step[name] for step in steps] in [frame[c].tolist() for c in shown]
        buffer.load(path.parent / "checkpoints", 1)
        parquet.to_parquet(buffer, path.parent / "rows.parquet")
    assert verify(path).clean
    parquet.from_parquet(path.parent / "rows.parquet", path.parent / "again")
    with diskreplay.open(path.parent / "again") as again, diskreplay.open(path) as reader:
        assert again.fields == reader.fields
        ids = np.arange(len(steps) - 1)
        for name in again.fields:
            same(again.take(name, ids), reader.take(name, ids))


def same(found, expected):
    if isinstance(found, dict):
        for key, value in found.items():
            same(value, [one[key] for one in expected])
    elif isinstance(found, tuple):
        for i, value in enumerate(found):
            same(value, [one[i] for one in expected])
    else:
        np.testing.assert_array_equal(found, expected)


@contextmanager
def place():
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory, "store")


@pytest.mark.costly
@settings(max_examples=effort(15, 40), deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=3, unique=True))
@example(["unsealed"])
@example(["self"])
@example(["to_torch"])
@example(["Pos", "pos"])
@example(["Reward"])
@example(["x", "x_"])
@example(["episode", "episode_"])
def test_any_names_of_extras(names):
    options = {**SCALAR, "extras": dict.fromkeys(names, ((), "int64"))}
    steps = [
        {"observation": i, "action": i % 3, "reward": float(i), "terminated": False,
         "truncated": False, **{name: 10 * i + k for k, name in enumerate(names)}}
        for i in range(6)
    ]  # fmt: skip
    with place() as path:
        used(path, options, steps)


@pytest.mark.costly
@settings(max_examples=effort(15, 40), deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=3, unique=True), NAMES)
@example(["a.b", "a"], "b")
@example(["Pos", "pos"], "x")
@example(["a", "a_0"], "a")
def test_any_keys_of_dict_spaces(names, inner):
    space = Dict([
        *((name, Box(-9, 99, (2,), "int16")) for name in names[:-1]),
        (names[-1], Dict([(inner, Discrete(50)), ("t", Tuple((Discrete(50), Discrete(50))))])),
    ])  # fmt: skip
    values = [
        {**{name: np.array([i, k], np.int16) for k, name in enumerate(names[:-1])},
         names[-1]: {inner: i, "t": (i + 1, i + 2)}}
        for i in range(6)
    ]  # fmt: skip
    options = {**SCALAR, "observation_space": space, "action_space": space}
    steps = [
        {"observation": one, "action": one, "reward": 1.0, "terminated": False, "truncated": False}
        for one in values
    ]
    if inner == "t":
        return
    with place() as path:
        used(path, options, steps)


def test_what_once_broke_is_told_apart(tmp_path):
    for names in (["self"], ["to_torch"], ["Reward"], ["Pos", "pos"], ["keys"], ["priority"]):
        extras = dict.fromkeys(names, ((), "int64"))
        with pytest.raises(ExtrasError, match=names[0]):
            diskreplay.ReplayBuffer(tmp_path / "store", **SCALAR, extras=extras)
    with diskreplay.ReplayBuffer(
        tmp_path / "store", **SCALAR, extras={"unsealed": ((), "i8"), "attachments": ((), "i8")}
    ) as b:
        b.add(1, 1, 0.0, False, False, unsealed=3, attachments=4)
    with diskreplay.open(tmp_path / "store") as reader:
        assert reader.take("unsealed", [0]).tolist() == [3]


def test_every_parameter_of_add_is_no_extra(tmp_path):
    parameters = inspect.signature(diskreplay.ReplayBuffer.add).parameters
    for name in set(parameters) - {"extras"}:
        with pytest.raises(ExtrasError, match=name):
            diskreplay.ReplayBuffer(tmp_path / "store", **SCALAR, extras={name: ((), "i8")})


@pytest.mark.parametrize(
    "space",
    [Dict(), Tuple(()), Dict(a=Dict()), Dict(a=Discrete(2), b=Tuple(())), Tuple((Dict(),))],
    ids=repr,
)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
def test_empty_spaces(tmp_path, space, which):
    with pytest.raises(InvalidInputError, match=rf"{which[:-6]}.*empty (Dict|Tuple) space"):
        diskreplay.ReplayBuffer(tmp_path / "store", **{**SCALAR, which: space})
    assert not list(tmp_path.iterdir())


def test_deep_spaces_are_refused_before_the_file_system_does(tmp_path):
    space = Discrete(2)
    for _ in range(30):
        space = Dict({"x" * 150: space})
    with pytest.raises(InvalidInputError, match="1000"):
        diskreplay.ReplayBuffer(tmp_path / "store", **{**SCALAR, "observation_space": space})
    assert not list(tmp_path.iterdir())


@pytest.mark.costly
@settings(max_examples=effort(15, 30), deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
@example(["Pos", "pos", "self_", "id", "id_"])
def test_any_columns_of_cpprb(names):
    """Whose columns are keywords too, so all but `self` are taken: none is refused."""
    names = [name for name in names if name != "self"]
    if not names:
        return
    with place() as path:
        with cpprb.ReplayBuffer(4, {name: {} for name in names}, path=path) as buffer:
            buffer.add(**{name: k for k, name in enumerate(names)})
        with cpprb.ReplayBuffer(4, {name: {} for name in names}, path=path) as buffer:
            found = buffer.get_all_transitions()
    assert {name: value.item() for name, value in found.items()} == {
        name: k for k, name in enumerate(names)
    }


def test_elements_of_reagent(tmp_path):
    """A field of a namedtuple there: what that takes is stored, whatever it is called here."""
    torch = pytest.importorskip("torch")
    from diskreplay.compat import reagent

    names = ["priority", "priority_", "Priority", "self", "unsealed", "to_torch", "keys", "lock"]
    elements = [reagent.ReplayElement(name, (), np.int64) for name in names]
    for kind in (reagent.ReplayBuffer, reagent.PrioritizedReplayBuffer):
        kept = elements[kind is reagent.PrioritizedReplayBuffer :]
        with kind(
            (3,), 1, 20, 4, extra_storage_types=kept, path=tmp_path / kind.__name__
        ) as buffer:
            for i in range(5):
                more = [10.0] if kind is reagent.PrioritizedReplayBuffer else []
                values = [100 * k + i for k in range(len(kept))]
                buffer.add(np.zeros(3, np.uint8), 1, 0.5, 0, *values, *more)
            batch = buffer.sample_transition_batch(indices=torch.tensor([1, 2, 1, 2]))
            for k, element in enumerate(kept):
                assert getattr(batch, element.name).ravel().tolist() == 2 * [
                    100 * k + 1,
                    100 * k + 2,
                ]

"""Every window of random rows against the page's words, said with lists."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay
from tests.effort import effort
from tests.sequences.naive_sequences import NaiveSequences, check_batch
from tests.sequences.playing import GAMMA, Play

OPTIONS = st.fixed_dictionaries({
    "length": st.integers(1, 6), "burn_in": st.integers(0, 3), "stride": st.sampled_from([1, 1, 3]),
    "ends": st.sampled_from(["inside", "shift", "pad", "cross"]),
    "n_step": st.sampled_from([1, 1, 2, 3]), "more": st.integers(0, 2),
    "arrival": st.booleans(), "finished": st.sampled_from([False, False, True]),
    "returns_to_go": st.sampled_from([None, 0.5]),
})  # fmt: skip


def compare(play, views, rng, most=6):
    """Every view has the windows that the twin has; some are looked at closely."""
    compared = 0
    for view, naive, state in views:
        anchors = naive.anchors()
        assert view.anchors().tolist() == anchors
        assert len(view) == len(anchors)
        if anchors:
            some = rng.sample(anchors, min(len(anchors), most))
            compared += check_batch(naive, view.gather(some), state=state)
            batch = view.sample(3)
            compared += check_batch(naive, batch, state=state)
            assert set(batch.anchor.tolist()) <= set(anchors)
            np.testing.assert_allclose(batch.probability, 1 / len(anchors))
            assert (batch.weight == 1).all()
    return compared


def make_views(play, asked, prefix, source=None):
    views = []
    for number, options in enumerate(asked):
        options = dict(options)
        more = options.pop("more")
        ahead = options["n_step"] + more
        if options["ends"] == "cross":
            ahead = more
        kept = play.stream.kept
        stack = play.options["stack_size"]
        if kept is not None and options["burn_in"] + options["length"] + ahead + stack - 1 > kept:
            continue
        naive = NaiveSequences(
            play.stream, stack_size=stack, padding=play.options["stack_padding"], gamma=GAMMA,
            ahead=ahead, **options,
        )  # fmt: skip
        state = number % 2 == 1
        view = (play.buffer if source is None else source).sequences(
            **options, ahead=ahead, state="h" if state else (), name=f"{prefix}{number}"
        )
        views.append((view, naive, state))
    return views


def run(path, seed, asked, *, num_envs, kept, stack_size, padding, steps, most=6):
    rng = random.Random(seed)
    play = Play(path, rng, num_envs=num_envs, kept=kept, stack_size=stack_size, padding=padding)
    compared = 0
    with diskreplay.open(path) as reader:
        views = make_views(play, asked, "v")
        follows = make_views(play, asked[:1], "r", reader)
        for number in range(steps):
            play.step()
            if rng.random() < 0.15:
                compared += compare(play, views, rng, most)
            if rng.random() < 0.05:
                compared += compare(play, follows, rng, most)
            if number == steps // 2:
                play.reopen()
                views = make_views(play, asked, "v")
        compared += compare(play, [*views, *follows], rng, most)
        fresh = make_views(play, asked, "f")
        compared += compare(play, fresh, rng, most)
    play.buffer.close()
    return compared


@pytest.mark.costly
@settings(max_examples=effort(10, 40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    asked=st.lists(OPTIONS, min_size=1, max_size=4),
    num_envs=st.sampled_from([1, 1, 3]),
    kept=st.sampled_from([None, 12, 20]),
    stack_size=st.sampled_from([1, 3]),
    padding=st.sampled_from(["zero", "reset"]),
)
def test_all_windows_are_those_of_the_page(
    tmp_path_factory, seed, asked, num_envs, kept, stack_size, padding
):
    path = tmp_path_factory.mktemp("store") / "replay"
    run(
        path, seed, asked, num_envs=num_envs, kept=kept, stack_size=stack_size, padding=padding,
        steps=60,
    )  # fmt: skip


@pytest.mark.costly(2)
@pytest.mark.parametrize("ends", ["inside", "shift", "pad", "cross"])
@pytest.mark.parametrize("stack_size", [1, 3])
def test_each_mode_has_windows_to_compare(tmp_path, ends, stack_size):
    """The random ones above could all be empty."""
    options = {
        "length": 3, "burn_in": 2, "stride": 1, "ends": ends, "n_step": 2, "more": 0,
        "arrival": False, "finished": False, "returns_to_go": 0.9,
    }  # fmt: skip
    compared = run(
        tmp_path / "replay", 5, [options], num_envs=2, kept=40, stack_size=stack_size,
        padding="zero", steps=200,
    )  # fmt: skip
    assert compared > 100

"""The episodes of a buffer beside lists of their rows."""

import numpy as np
import pytest

from diskreplay.episodes import Episodes
from diskreplay.errors import InvalidInputError

ENVS = 2
# Env, oldest retained row, its step, rows with what each is, how it ended.
LISTED = [
    (0, 0, 0, "TTTF", "terminated"),
    (1, 2, 3, "TT", "truncated"),  # its beginning is evicted
    (0, 4, 0, "TFTT", "cut"),  # a row set aside amid it
    (0, 8, 0, "TF", "truncated"),
    (1, 6, 0, "TTT", "unfinished"),  # rows 4 and 5 are of no episode
]


def ids_of(env, row, kinds, kind):
    return [(row + at) * ENVS + env for at, each in enumerate(kinds) if each == kind]


@pytest.fixture
def episodes():
    listed = sorted(LISTED, key=lambda each: each[1] * ENVS + each[0])
    final, inner = [], []
    for env, row, _step, kinds, _end in listed:
        frames = ids_of(env, row, kinds, "F")
        last = (row + len(kinds) - 1) * ENVS + env
        final.append(last if last in frames else -1)
        inner += [each for each in frames if each != last]
    ends = {
        name: np.array([each[4] == name for each in listed])
        for name in ("terminated", "truncated", "cut", "unfinished")
    }
    made = Episodes(
        number=np.arange(len(listed)), env=np.array([each[0] for each in listed]),
        start_id=np.array([each[1] * ENVS + each[0] for each in listed]),
        first_step=np.array([each[2] for each in listed]),
        beginning_lost=np.arange(len(listed)) == 1,
        rows=np.array([each[3].count("T") for each in listed]), final_id=np.array(final),
        returns=np.zeros(len(listed)), **ends, num_envs=ENVS,
        _stop_id=np.array([(each[1] + len(each[3])) * ENVS + each[0] for each in listed]),
        _inner_frames=np.sort(np.array(inner, np.int64)),
    )  # fmt: skip
    return made, listed


def test_the_ids_of_the_transitions_of_each(episodes):
    made, listed = episodes
    assert len(made) == len(listed)
    for number, (env, row, _step, kinds, _end) in enumerate(listed):
        expected = ids_of(env, row, kinds, "T")
        assert made.ids(number).tolist() == expected
        assert made.ids(number - len(listed)).tolist() == expected


def test_each_row_is_found_in_its_episode_and_others_in_none(episodes):
    made, listed = episodes
    expected = {}
    for number, (env, row, _step, kinds, _end) in enumerate(listed):
        expected |= {(row + at) * ENVS + env: number for at in range(len(kinds))}
    for id_ in range(40):
        assert made.find(id_) == expected.get(id_, -1)


def test_whole_is_what_has_ended_and_has_its_first_step(episodes):
    made, listed = episodes
    assert made.whole.tolist() == [
        end in ("terminated", "truncated") and step == 0 and number != 1
        for number, (_, _, step, _, end) in enumerate(listed)
    ]


def test_places_that_there_are_not(episodes):
    made, listed = episodes
    count = len(listed)
    assert [made.position(at) for at in (0, count - 1, -1, -count)] == [0, count - 1, count - 1, 0]
    for at in (count, -count - 1):
        with pytest.raises(InvalidInputError, match=f"there are 0 to {count - 1}"):
            made.position(at)
    none = Episodes(*[np.empty(0, np.int64)] * 12, ENVS, *[np.empty(0, np.int64)] * 2)
    with pytest.raises(InvalidInputError, match="there is none at all"):
        none.ids(0)
    assert none.find(0) == -1


@pytest.mark.parametrize("wrong", ["x", None, 1.5, True, [0], np.arange(2), b"1"])
def test_what_is_no_number_of_an_episode(episodes, wrong):
    made, _listed = episodes
    for call in (made.position, made.ids, made.find):
        with pytest.raises(InvalidInputError, match="an integer expected, found"):
            call(wrong)

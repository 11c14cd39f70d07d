"""Which windows were not handed out yet, as a value."""

import json

import numpy as np

from diskreplay.sampling.new_windows import NewWindows


def test_what_nobody_took_comes_first_and_in_its_order():
    before = NewWindows(np.array([7, 3]))
    after = before.with_back(np.array([12, 4])).with_back(np.array([9, 11]))
    assert after.returned.tolist() == [9, 11, 12, 4]
    assert after.cursor.tolist() == [7, 3]
    assert before.returned.tolist() == []  # whoever kept it can go back


def test_it_is_written_as_plain_numbers():
    new = NewWindows(np.array([7, 3]), np.array([2**40]))
    assert json.loads(json.dumps(new.as_json())) == {"cursor": [7, 3], "returned": [2**40]}

"""What is made of a batch that was read, and what a prefetcher is asked for."""

import pytest

from diskreplay.errors import InvalidInputError
from diskreplay.handover import Handover, handovers_to


def test_a_batch_is_given_as_it_is_and_its_memory_kept():
    handover, batch = Handover(), object()
    assert handover.batch is None
    handover.wait()
    made = handover.make(batch)
    assert made is batch is handover.batch
    assert handover.give(made) is batch


def test_what_a_function_makes_of_it_is_given():
    handover, batch = Handover(lambda given: [given]), object()
    assert handover.give(handover.make(batch)) == [batch]
    assert handover.batch is batch


def test_a_function_that_forgets_to_return_is_named():
    def forgets(batch):
        pass

    with pytest.raises(InvalidInputError, match=r"map: .*forgets returned None"):
        Handover(forgets).make(object())
    for falsy in (0, [], False):
        assert Handover(lambda batch, falsy=falsy: falsy).make(object()) is falsy


def test_each_handover_is_another_one_with_the_same_function():
    calls = []
    make = handovers_to(None, calls.append)
    one, other = make(), make()
    assert one is not other
    with pytest.raises(InvalidInputError):
        one.make("batch")
    assert calls == ["batch"]
    assert handovers_to(None, None)().make("batch") == "batch"
    for wrong in (3, "text", [len]):
        with pytest.raises(InvalidInputError, match="map: a function of a batch expected"):
            handovers_to(None, wrong)

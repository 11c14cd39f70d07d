"""Tianshou, with the functions compiled that it compiles in each process: seconds, which those that
are forked from one that has imported this do not need."""

from tests.integrations.tianshou_twins import make, player

for _kind, _name in (("plain", "ReplayBuffer"), ("vector", "VectorReplayBuffer")):
    _buffer, _plays = make(_name), player(_kind)
    for _ in range(3):
        _plays.step(_buffer)
    _buffer.sample(2)

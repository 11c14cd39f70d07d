"""A union in any order of calls, beside a twin that keeps each transition in a list."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import diskreplay
from tests.test_mutable_fields import SHARED_MEMORY
from tests.test_union import make

ALPHA, KEPT = 0.6, 20  # rows that each member keeps
PRIORITIES = st.floats(0.01, 50) | st.just(0.0)


class Twin:
    """The transitions of one member: what each earned, and its priority."""

    def __init__(self, is_prioritized):
        self.is_prioritized, self.rewards, self.priorities = is_prioritized, [], []
        self.largest = 1.0

    def add(self, reward):
        self.rewards.append(reward)
        self.priorities.append(self.largest if self.is_prioritized else 1.0)

    def there(self):
        return range(max(len(self.rewards) - KEPT, 0), len(self.rewards))

    def powers(self):
        return {i: self.priorities[i] ** ALPHA if self.priorities[i] else 0.0 for i in self.there()}

    def update(self, updates):
        """Returns how many were ignored."""
        ignored = 0
        for i, priority in updates:
            if self.is_prioritized and i in self.there():
                self.priorities[i] = priority
                self.largest = max(self.largest, priority)
            else:
                ignored += 1
        return ignored


class UnionMachine(RuleBasedStateMachine):
    """Three members: a buffer of this process; a store that another buffer writes to, which is
    followed and has no priorities; and a closed store, whose priorities only the union has."""

    @initialize(
        mixture=st.sampled_from([None, (2, 1, 1), (1, 0, 3)]),
        normalization=st.sampled_from(["batch", "buffer"]),
        seed=st.integers(0, 99),
    )
    def begin(self, mixture, normalization, seed):
        self.path = Path(tempfile.mkdtemp(prefix="union-", dir=SHARED_MEMORY))
        self.mixture, self.normalization = mixture, normalization
        self.twins = [Twin(True), Twin(False), Twin(True)]
        self.live = make(self.path / "live", capacity=KEPT, alpha=ALPHA, seed=seed)
        self.writer = make(self.path / "followed", diskreplay.ReplayBuffer, capacity=KEPT)
        with make(self.path / "old", capacity=KEPT, alpha=ALPHA) as old:
            self.record(old, 2, 7)
            old.update_priorities(np.arange(7), np.linspace(0.5, 3, 7))
        self.twins[2].update(enumerate(np.linspace(0.5, 3, 7)))
        self.kept = list(self.twins[2].priorities), self.twins[2].largest
        for member, buffer in enumerate((self.live, self.writer)):
            self.record(buffer, member, 3)
        self.open(seed)

    def open(self, seed):
        self.union = diskreplay.ReplayUnion(
            [self.live, self.path / "followed", self.path / "old"], mixture=self.mixture,
            weight_normalization=self.normalization, beta=lambda added: added / 40, seed=seed,
        )  # fmt: skip

    def record(self, buffer, member, count):
        """Episodes of one step, which can be drawn at once."""
        for _ in range(count):
            reward = float(len(self.twins[member].rewards) + 1000 * member)
            buffer.add(np.full(buffer.fields["observation"][0], 1), 0, reward, True, False)
            self.twins[member].add(reward)

    @rule(member=st.sampled_from([0, 1]), count=st.integers(1, 12))
    def add(self, member, count):
        self.record((self.live, self.writer)[member], member, count)

    @rule(data=st.data())
    def update(self, data):
        known = [(m, i) for m, twin in enumerate(self.twins) for i in range(len(twin.rewards))]
        chosen = data.draw(st.lists(st.tuples(st.sampled_from(known), PRIORITIES), max_size=8))
        ids = np.array([i * 3 + m for (m, i), _ in chosen], np.int64)
        ignored = sum(
            twin.update([(i, priority) for (m, i), priority in chosen if m == member])
            for member, twin in enumerate(self.twins)
        )
        found = self.union.update_priorities(ids, np.array([priority for _, priority in chosen]))
        assert found == ignored

    def expected(self):
        """By member and row: the probability of a draw, and what its weight is made of."""
        powers = [twin.powers() for twin in self.twins]
        totals = [sum(each.values()) for each in powers]
        shares = self.mixture or totals
        share = [each / sum(shares) for each in shares]
        found = {}
        for m, each in enumerate(powers):
            for i, power in each.items():
                if power and share[m]:
                    own = power / totals[m]
                    rarity = own * share[m] if self.mixture is None else own * len(each)
                    found[m, i] = own * share[m], rarity
        return found

    def drawable(self):
        totals = [sum(twin.powers().values()) for twin in self.twins]
        if self.mixture is None:
            return sum(totals) > 0
        return all(total for total, share in zip(totals, self.mixture, strict=True) if share)

    @precondition(lambda self: self.drawable())
    @rule(size=st.integers(1, 20), beta=st.sampled_from([None, 0.0, 0.7]))
    def sample(self, size, beta):
        expected = self.expected()
        batch = self.union.sample(size, beta=beta)
        if beta is None:
            beta = sum(len(twin.rewards) for twin in self.twins) / 40
        members, own = self.union.locate(batch.id)
        drawn = list(zip(members.tolist(), own.tolist(), strict=True))
        np.testing.assert_allclose(batch.probability, [expected[each][0] for each in drawn])
        rarity = np.array([expected[each][1] for each in drawn])
        least = rarity.min()
        if self.normalization == "buffer":
            least = min(each for _, each in expected.values())
        np.testing.assert_allclose(batch.weight, (least / rarity) ** beta, rtol=1e-5)
        assert batch.reward.tolist() == [self.twins[m].rewards[i] for m, i in drawn]
        again = self.union.gather(batch.id)
        np.testing.assert_array_equal(again.reward, batch.reward)

    @precondition(lambda self: self.drawable())
    @rule(size=st.integers(1, 9))
    def go_back(self, size):
        """What only the union has comes back: its generator, the priorities of the closed store."""
        before = list(self.twins[2].priorities), self.twins[2].largest
        self.union.save(self.path / "union.npz")
        drawn = self.union.sample(size)
        self.union.update_priorities(np.arange(7) * 3 + 2, np.full(7, 9.0))
        self.union.load(self.path / "union.npz")
        self.twins[2].priorities, self.twins[2].largest = before
        again = self.union.sample(size)
        np.testing.assert_array_equal(again.id, drawn.id)
        np.testing.assert_array_equal(again.weight, drawn.weight)

    @rule()
    def reopen_the_writer(self):
        self.writer.close()
        self.writer = make(self.path / "followed", diskreplay.ReplayBuffer, capacity=KEPT)

    @rule(seed=st.integers(0, 99))
    def reopen(self, seed):
        """What was set in the closed store was in the union's memory."""
        self.union.close()
        self.live.close()
        self.live = make(self.path / "live", capacity=KEPT, alpha=ALPHA)
        self.twins[2].priorities, self.twins[2].largest = list(self.kept[0]), self.kept[1]
        self.open(seed)

    @invariant()
    def agrees(self):
        if hasattr(self, "union"):
            assert len(self.union) == sum(len(twin.there()) for twin in self.twins)

    def teardown(self):
        if hasattr(self, "union"):
            self.union.close()
            self.live.close()
            self.writer.close()
            shutil.rmtree(self.path)


UnionMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)
TestUnion = UnionMachine.TestCase

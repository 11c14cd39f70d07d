"""ReAgent's replay buffer as its description says, with lists and loops: an oracle for the tests.

Every row ever added is kept, padding included, and all that is asked for is worked out from them.
Shares nothing with the package.
"""

import gzip
import pickle
import random
import sys
import types

import numpy as np
import torch


class Model:
    """`elements` maps each stored name to (shape, dtype): observation, action, reward, terminal,
    extras."""

    def __init__(self, elements, *, stack, capacity, horizon, gamma, attempts=1000):
        self.elements = elements
        self.stack, self.capacity, self.horizon = stack, capacity, horizon
        self.gamma, self.attempts = gamma, attempts
        self.rows = []  # (values by name, or None for padding)
        self.priorities = [0.0] * capacity

    def add(self, values, priority=0.0):
        if not self.rows or (self.rows[-1] is not None and self.rows[-1]["terminal"]):
            for _ in range(self.stack - 1):
                self.priorities[len(self.rows) % self.capacity] = 0.0
                self.rows.append(None)
        self.priorities[len(self.rows) % self.capacity] = priority
        self.rows.append(
            {name: np.array(values[name], dtype) for name, (_, dtype) in self.elements.items()}
        )

    def row_in(self, slot):
        """The number of the row in a slot, None if it was never written."""
        numbers = range(slot % self.capacity, len(self.rows), self.capacity)
        return numbers[-1] if numbers else None

    def value(self, name, slot):
        shape, dtype = self.elements[name]
        number = self.row_in(slot)
        if number is None or self.rows[number] is None:
            return np.zeros(shape, dtype)
        return self.rows[number][name]

    def is_valid(self, slot):
        number, count = self.row_in(slot), len(self.rows)
        if number is None or self.rows[number] is None:
            return False
        if number - self.stack + 1 < count - self.capacity:
            return False
        for later in range(number, number + self.horizon):
            if later < count and self.rows[later] is not None and self.rows[later]["terminal"]:
                return True
        return number + self.horizon < count

    def valid(self):
        return [slot for slot in range(self.capacity) if self.is_valid(slot)]

    def array(self, name):
        return np.stack([self.value(name, slot) for slot in range(self.capacity)])

    # -- sampling

    def stacked(self, name, slot):
        frames = [self.value(name, slot - back) for back in reversed(range(self.stack))]
        return frames[0] if self.stack == 1 else np.stack(frames, axis=-1)

    def steps(self, slot):
        for step in range(1, self.horizon):
            if self.value("terminal", slot + step - 1):
                return step
        return self.horizon

    def reward_sum(self, slot):
        shape, dtype = self.elements["reward"]
        total = np.zeros(shape, np.float64)
        for step in range(self.steps(slot)):
            total += self.value("reward", slot + step).astype(np.float64) * self.gamma**step
        return total.astype(np.float64 if dtype == np.float64 else np.float32)

    def batch(self, slots, *, everything=False, timeline=False):
        """Expected values by name; what is undefined is None."""
        names = [name for name in self.elements if name not in ("observation", "terminal")]
        found = {"state": [], "next_state": [], "terminal": [], "indices": [], "step": []}
        for name in names:
            found[name], found[f"next_{name}"] = [], []
        for slot in slots:
            steps = self.steps(slot)
            ended = bool(self.value("terminal", slot + steps - 1))
            found["indices"].append(slot)
            found["step"].append(steps)
            found["terminal"].append(ended)
            for name, column in [("state", "observation"), *zip(names, names, strict=True)]:
                if name == "reward" and timeline:
                    now = [self.stacked(column, slot + i) for i in range(steps)]
                elif name == "reward" and not everything:
                    now = self.reward_sum(slot)
                else:
                    now = self.stacked(column, slot)
                found[name].append(now)
                if timeline:
                    later = [self.stacked(column, slot + i + 1) for i in range(steps)]
                    later = [*later[:-1], None] if ended else later
                else:
                    later = None if ended else self.stacked(column, slot + steps)
                found[f"next_{name}"].append(later)
        return found

    def draw(self, size):
        valid = self.valid()
        return [valid[i] for i in torch.randint(len(valid), (size,)).tolist()]

    # -- priorities

    def leaf(self, share):
        """Exact for whole numbers: the leaf in whose part of the total the share lies."""
        mass = share * sum(self.priorities)
        for slot, priority in enumerate(self.priorities):
            if mass < priority:
                return slot
            mass -= priority
        raise AssertionError("beyond the last leaf")

    def draw_prioritized(self, size):
        bounds = np.linspace(0.0, 1.0, size + 1)
        shares = [random.uniform(bounds[i], bounds[i + 1]) for i in range(size)]
        slots, attempts = [self.leaf(share) for share in shares], self.attempts
        for i in range(size):
            while not self.is_valid(slots[i]):
                if attempts == 0:
                    raise RuntimeError
                slots[i] = self.leaf(random.random())
                attempts -= 1
        return slots

    # -- files, as the original writes and reads them

    def save(self, directory, suffix, *, prioritized=False):
        for name in self.elements:
            save_array(directory, f"$store$_{name}", suffix, self.array(name))
        save_array(directory, "add_count", suffix, np.array(len(self.rows)))
        if prioritized:
            with original_sum_tree() as tree_class:
                tree = tree_class(self.priorities)
                with gzip.open(directory / f"sum_tree_ckpt.{suffix}.gz", "wb") as file:
                    pickle.dump(tree, file)


def save_array(directory, name, suffix, array):
    with gzip.open(directory / f"{name}_ckpt.{suffix}.gz", "wb") as file:
        np.save(file, array, allow_pickle=False)


def load_array(directory, name, suffix):
    with gzip.open(directory / f"{name}_ckpt.{suffix}.gz", "rb") as file:
        return np.load(file, allow_pickle=False)


class original_sum_tree:
    """While it lasts, `reagent.replay_memory.sum_tree.SumTree` can be imported, as with ReAgent."""

    names = ("reagent", "reagent.replay_memory", "reagent.replay_memory.sum_tree")

    def __enter__(self):
        class SumTree:
            def __init__(self, leaves):
                width = 1
                while width < len(leaves):
                    width *= 2
                self.nodes = [np.array([*leaves, *[0.0] * (width - len(leaves))])]
                while len(self.nodes[0]) > 1:
                    below = self.nodes[0]
                    self.nodes.insert(0, below[::2] + below[1::2])
                self.max_recorded_priority = max(1.0, *leaves)

        SumTree.__module__, SumTree.__qualname__ = self.names[-1], "SumTree"
        for name in self.names:
            sys.modules[name] = types.ModuleType(name)
        sys.modules[self.names[-1]].SumTree = SumTree
        return SumTree

    def __exit__(self, *_exception):
        for name in self.names:
            del sys.modules[name]

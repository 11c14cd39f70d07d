"""A model of the rings of ReAgent and Dopamine, and the files that they write of them."""

import gzip
import pickle

import numpy as np


def save_array(directory, name, array, suffix=1):
    with gzip.open(directory / f"{name}_ckpt.{suffix}.gz", "wb") as file:
        np.save(file, array, allow_pickle=False)


def load_array(directory, name, suffix=1):
    with gzip.open(directory / f"{name}_ckpt.{suffix}.gz", "rb") as file:
        return np.load(file, allow_pickle=False)


class Ring:
    """The original's ring as a list: `rows` are (observation, action, reward, terminal, q, ended,
    episode, step), None for padding."""

    def __init__(self, capacity, stack):
        self.capacity, self.stack, self.rows = capacity, stack, []

    def add(self, row):
        if row[7] == 0:
            self.rows += [None] * (self.stack - 1)
        self.rows.append(row)

    def slots(self):
        """What is in each slot."""
        found = [None] * self.capacity
        for number, row in enumerate(self.rows):
            found[number % self.capacity] = row
        return found

    def retained(self):
        """Rows but padding, oldest first."""
        return [row for row in self.rows[-self.capacity :] if row is not None]

    def save(self, directory, *, horizon=None):
        """As Dopamine with a horizon, else as ReAgent."""
        slots = self.slots()
        for at, (name, shape, dtype) in enumerate(COLUMNS):
            zero = np.zeros(shape, dtype)
            column = [zero if row is None else np.asarray(row[at], dtype) for row in slots]
            save_array(directory, f"$store$_{name}", np.stack(column))
        save_array(directory, "add_count", np.array(len(self.rows)))
        if horizon:
            first = len(self.rows) - horizon
            listed = [(first + i) % self.capacity for i in range(self.stack + horizon)]
            save_array(directory, "invalid_range", np.array(listed))
            ended = {i for i, row in enumerate(slots) if row is not None and row[5]}
            with gzip.open(directory / "episode_end_indices_ckpt.1.gz", "wb") as file:
                pickle.dump(ended, file)


COLUMNS = [
    ("observation", (2, 2), np.uint8), ("action", (), np.int32), ("reward", (), np.float32),
    ("terminal", (), np.uint8), ("q", (2,), np.float32),
]  # fmt: skip


def play(ring, rng, rows, *, truncations=False):
    """Fill a ring; observations are never zero, so that padding can be told by its content."""
    episode, step = 0, 0
    for _ in range(rows):
        terminal = rng.random() < 0.15
        ended = truncations and (terminal or rng.random() < 0.15)
        ring.add((
            rng.integers(1, 255, (2, 2)), int(rng.integers(0, 4)), float(rng.integers(-3, 4)),
            int(terminal), rng.integers(0, 9, 2), bool(ended), episode, step,
        ))  # fmt: skip
        step += 1
        if terminal or ended:
            episode, step = episode + 1, 0

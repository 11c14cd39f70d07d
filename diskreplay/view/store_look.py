"""What there was in a store at one moment."""

import dataclasses
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import diskreplay
from diskreplay.buffer import ReplayBuffer
from diskreplay.episodes import Episodes
from diskreplay.inspection.episodes import episodes_of
from diskreplay.inspection.identity import action_components, action_labels, metadata_texts
from diskreplay.inspection.overview import Overview, overview_of
from diskreplay.inspection.plain import plain
from diskreplay.inspection.priorities import PriorityProfile, priority_rows
from diskreplay.inspection.profile import action_counts, values_of
from diskreplay.inspection.recorded_times import ends_of
from diskreplay.pictures.figures import COMPONENTS, Chart, charts_of, section_documents
from diskreplay.pictures.report import described
from diskreplay.prioritized import PrioritizedReplayBuffer

_REWARD_BYTES = _ACTION_BYTES = 4 << 20  # of what is kept to compare
_RECENT = 100  # episodes of "lately"


@dataclass(frozen=True, eq=False)
class StoreLook:
    """Figures and small columns of a store."""

    taken: float  # in seconds since the epoch
    seconds: float  # what it cost
    described: str  # what kind of buffer it is
    overview: Overview
    episodes: Episodes
    # About when each episode's newest row was recorded, see `recorded_times`.
    ended: np.ndarray
    is_latest: np.ndarray
    charts: dict[str, list[Chart]]  # by section
    # Of all that can be drawn, by id; empty without priorities.
    priority_ids: np.ndarray
    priorities: np.ndarray
    alpha: float  # what priorities are raised to; 0 without priorities
    profile: PriorityProfile | None
    rewards: np.ndarray  # all of them, or a sample
    # How often each value of each integer leaf of an action was chosen. Of all other actions, by
    # field and component: what it is called, and its values, or a sample of them.
    actions: dict[str, dict[int, int]]
    spreads: dict[tuple[str, int], tuple[str, np.ndarray]]
    labels: dict[int, str]  # what to call each of the actions, where that is known

    @property
    def version(self) -> str:
        """Changes with each look."""
        return f"{self.taken:.6f}"

    def priority(self, ids: np.ndarray) -> np.ndarray:
        """The priorities of rows, as `priorities` has them; NaN for those that have none."""
        if not len(self.priority_ids):
            return np.full(len(ids), np.nan)
        at = np.searchsorted(self.priority_ids, ids).clip(max=len(self.priority_ids) - 1)
        return np.where(self.priority_ids[at] == ids, self.priorities[at], np.nan)

    @cached_property
    def leaf_total(self) -> float:
        """The sum of ``priority ** alpha``, which draws are in proportion to."""
        return float((self.priorities**self.alpha).sum())

    @cached_property
    def of_episodes(self) -> dict[str, Any]:
        """Figures of the whole episodes, None where there is none; and how many there are."""
        whole = self.episodes.whole
        returns, lengths = self.episodes.returns[whole], self.episodes.rows[whole]
        recent = returns[-_RECENT:]
        return {
            "count": len(self.episodes),
            "whole": int(whole.sum()),
            "recent": len(recent),
            "mean_return": float(recent.mean()) if len(recent) else None,
            "best_return": float(returns.max()) if len(returns) else None,
            "worst_return": float(returns.min()) if len(returns) else None,
            "median_length": float(np.median(lengths)) if len(lengths) else None,
        }

    @cached_property
    def document(self) -> dict[str, Any]:
        """All but the arrays, as JSON has it."""
        overview = dataclasses.asdict(self.overview)
        overview["metadata_texts"] = metadata_texts(self.overview.metadata)
        for beside in overview["checkpoints"]:
            beside["path"] = str(beside["path"])
        return plain(
            {
                "version": self.version,
                "taken": self.taken,
                "seconds": self.seconds,
                "described": self.described,
                "overview": overview,
                "episodes": self.of_episodes,
                "priorities": self.profile,
                "sections": section_documents(self.charts),
            }
        )


def look_at(path: Path) -> StoreLook:
    """Look at the store or checkpoint at `path`.

    Raises
    ------
    DiskReplayError
        It cannot be read.

    Notes
    -----
    O(rows): reads some 30 bytes a row, no frames, and looks at every file's size.
    """
    began = time.perf_counter()
    overview = overview_of(path, patience=0.0)
    with diskreplay.open(path, follow=False) as buffer:
        episodes = episodes_of(buffer)
        ended, is_latest = ends_of(episodes, path, buffer.bounds[:, 1])
        rows = priority_rows(buffer) if isinstance(buffer, PrioritizedReplayBuffer) else None
        charts = charts_of(buffer, episodes, buffer.statistics(), rows)
        order = np.empty(0, np.int64) if rows is None else np.argsort(rows.ids)
        parts = list(values_of(buffer, "reward", most_bytes=_REWARD_BYTES))
        counts = action_counts(buffer)
        label = action_labels(buffer)
        actions = {name: found for name, found in counts.items() if found is not None}
        return StoreLook(
            taken=time.time(),
            seconds=time.perf_counter() - began,
            described=described(buffer),
            overview=overview,
            episodes=episodes,
            ended=ended,
            is_latest=is_latest,
            charts=charts,
            priority_ids=order if rows is None else rows.ids[order],
            priorities=np.empty(0) if rows is None else rows.priorities[order],
            alpha=buffer.alpha if isinstance(buffer, PrioritizedReplayBuffer) else 0.0,
            profile=None if rows is None else rows.profile(),
            rewards=np.concatenate(parts) if parts else np.empty(0, np.float32),
            actions=actions,
            spreads=_spreads(buffer, actions.keys()),
            labels={a: label(a) for a in actions.get("action", {})} if label else {},
        )


def _spreads(
    buffer: ReplayBuffer, counted: Collection[str]
) -> dict[tuple[str, int], tuple[str, np.ndarray]]:
    """Of the actions that are not counted, the first components."""
    found = {}
    for name in buffer.fields:
        if name.split("/")[0] != "action" or name in counted:
            continue
        parts = list(values_of(buffer, name, most_bytes=_ACTION_BYTES))
        if parts:
            values = np.concatenate([part.reshape(len(part), -1) for part in parts])
            for at, label in enumerate(action_components(buffer, name)[:COMPONENTS]):
                found[name, at] = label, values[:, at].copy()
    return found

"""How the rows of a reader, their index and their priorities keep up with the writer's store."""

from typing import Any

import numpy as np

from diskreplay import small_columns

_AT_ONCE = 1 << 20  # rows that are taken in


def catch_up(rows: Any) -> None:
    """Take over what the writer did since: into the `IndexedStore` of a reader whose store was not
    replaced."""
    store, follower, index = rows.store, rows.store.follower, rows.index
    has_news = follower.refresh()
    if not follower.follows:
        if index is not None and (store.first > index.first).any():
            rows.index = None  # it had to do without some rows
        return
    if has_news:
        try:
            rows.add_count = int(store.transitions_at(store.count).sum())
            rows.episodes.follow()
            if index is not None:
                _take_in(rows)
        except BaseException:
            rows.index = None  # it knows some of them: it is made anew, from all
            raise
    flushes = follower.flushes()
    if rows.index is not None and flushes != rows.flushes and not flushes % 2:
        follower.renew_largest()
        sampler = rows.make_sampler(rows.index, store)
        if follower.flushes() == flushes:  # else what was read is of two moments: the next call
            rows.sampler = sampler
            rows.flushes = flushes  # not before: after Ctrl-C it is made again


def _take_in(rows: Any) -> None:
    """Rows have come or left: tell the index, or have it made again."""
    store, index = rows.store, rows.index
    room = index.size // store.num_envs
    new = store.count - index.count
    if (new >= room).any() or (store.first > index.count).any():
        rows.index = None  # it has gone round: read all of it
        return
    rows.grow(int(new.max()))
    most = max(min(room // 4, _AT_ONCE // store.num_envs), 1)  # rows of an env at a time
    while (new := store.count - index.count).any():
        ids = small_columns.ids_between(index.count, index.count + np.minimum(new, most))
        read = small_columns.read(store, ids, rows.episodes.begins)
        rows.note_given(ids % store.num_envs, None)
        rows.take_in(ids % store.num_envs, *read)
    rows.evict_indexed(np.flatnonzero(store.first > index.first), store.first)
    store.first = np.maximum(store.first, index.first)

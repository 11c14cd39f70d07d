"""The page's actors and its learner; threads stand in for processes."""

import contextlib
import threading
import types

CHANGED = {"import multiprocessing\n": "", "10_000": "500"}


@contextlib.contextmanager
def around(_said):
    context = types.SimpleNamespace(Process=threading.Thread)
    stand_in = types.SimpleNamespace(get_context=lambda _method: context)
    yield (names := {"multiprocessing": stand_in})
    assert len(names["batch"]) == 32
    assert not any(actor.is_alive() for actor in names["actors"])

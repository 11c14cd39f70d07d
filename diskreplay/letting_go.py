"""The end of a buffer that nobody closed."""

import threading

from diskreplay import fork
from diskreplay.locks import Lock
from diskreplay.signals import undisturbed
from diskreplay.store import tempfiles
from diskreplay.store.open_store import LET_GO
from diskreplay.store.store import Store

LAST_CALL_S = 5.0


def let_go(holder: list[Store], room: tempfiles.Workspace | None, pid: int, lock: Lock) -> None:
    """Release the store of a buffer that is gone; the parent's is not a forked child's to close.

    The buffer may be used later all the same: by the `__del__` of what is garbage together with it,
    and at the interpreter's end by threads that are left and by functions of `atexit`. They must
    not touch what was unmapped.
    """
    if fork.pid != pid:
        return
    if any(store.maintenance.is_here for store in holder):
        # Garbage that is collected on that thread, which cannot wait for its own end.
        late = (holder, room, pid, lock)
        threading.Thread(target=let_go, args=late, name="diskreplay end").start()
        return
    with undisturbed():  # else it stays locked as long as this process lives
        # At the end of the interpreter a thread may be amid a call. One that does not come to its
        # end keeps the store as it is: the next opening recovers it.
        if not lock.acquire(timeout=LAST_CALL_S):
            return
        try:
            for store in holder:
                store.mode = LET_GO
                store.close()
        finally:
            lock.release()
        if room is not None:
            room.remove()

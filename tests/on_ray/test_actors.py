"""Answers that are waited for while another thread shuts Ray down."""

import subprocess
import sys
import time

import pytest
from ray import exceptions

from diskreplay.ray.actors import get, named, started, wait
from tests.processes import ROOT

pytestmark = pytest.mark.usefixtures("cluster")

WAITING = """
import sys, threading
import ray
from diskreplay.errors import DisconnectedError
from diskreplay.ray.actors import get, named, wait

def run(what, ended):
    try:
        what()
    except DisconnectedError:
        ended.append(what)

for time in range(5):
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    sleeper = named("sleeper")
    calls = [sleeper.call("sleep", 0.3) for _ in range(4)]
    kinds = (
        lambda: wait(calls[:2], 1000.0), lambda: wait(calls[2:], 1000.0),
        lambda: get(calls[3], 1000.0), lambda: get(calls[3]),
    )
    ended = []
    threads = [threading.Thread(target=run, args=(what, ended), daemon=True) for what in kinds]
    for thread in threads:
        thread.start()
    ray.shutdown()
    for thread in threads:
        thread.join(60.0)
    print(time, len(ended), flush=True)
"""


@pytest.fixture
def sleeper():
    class Sleeper:  # local, so that Ray sends its code: a worker cannot import this module
        def sleep(self, seconds):
            time.sleep(seconds)
            return seconds

    actor = started(Sleeper, (), name="sleeper")
    get(actor.call("sleep", 0.0), 120.0)
    yield actor
    actor.kill()


def test_threads_that_wait_end_where_ray_is_shut_down(sleeper, cluster):
    address = cluster.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", WAITING, address], cwd=ROOT, text=True, timeout=400,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{at} 4" for at in range(5)]


def test_answers_are_waited_for_as_long_as_asked(sleeper):
    call = sleeper.call("sleep", 3.0)
    assert not wait([call], 0.0)
    with pytest.raises(exceptions.GetTimeoutError, match=r"no answer in 0\.2 s"):
        get(call, 0.2)
    later = named("sleeper").call("sleep", 0.0)
    assert wait([call, later], 60.0)
    assert (get(call, 0.0), get(call), get(later)) == (3.0, 3.0, 0.0)
    assert wait([], 0.0)


def test_errors_of_an_actor_are_raised(sleeper):
    with pytest.raises(exceptions.RayTaskError) as found:
        get(sleeper.call("sleep", "long"))
    assert isinstance(found.value.cause, TypeError)

"""Python processes that start in milliseconds.

Most of what a new interpreter does is the same in each: it imports NumPy, Numba and diskreplay, and
loads compiled kernels. Here one process does so once, `_Nursery`, and each that is asked for is a
fork of it, which runs its own code as ``python -c`` would and ends as any interpreter does. It has
one thread and no open buffer. What depends on how an interpreter starts, or on
what it has imported by then, is for `subprocess`.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay

ROOT = Path(__file__).resolve().parent.parent
_PATIENCE = 600  # seconds
_DIGITS = 12  # of a number that is sent


class Process:
    """One that runs; as `subprocess.Popen`.

    Parameters
    ----------
    code : str
        What it runs, as ``__main__``.
    *arguments
        ``sys.argv[1:]``.
    stdin, stdout, stderr : int or file, optional
        As for `subprocess.Popen`: ``PIPE`` or what has a file number; this process's own by
        default. Pipes are of text.
    env, cwd
        Of the process; this one's by default. ``PYTHONPATH`` counts; what else an interpreter
        reads at its start does not.
    imports : sequence of str
        Modules that are slow to import and that it has imported, too: ``["torch"]``.
    """

    def __init__(
        self, code, *arguments, stdin=None, stdout=None, stderr=None, env=None, cwd=None,
        imports=(),
    ):  # fmt: skip
        self.args, self.returncode = [sys.executable, "-c", code, *map(str, arguments)], None
        self.stdin = self.stdout = self.stderr = None
        theirs, ours = [], []
        for at, (name, given) in enumerate(zip(_STREAMS, (stdin, stdout, stderr), strict=True)):
            if given == subprocess.PIPE:
                read, write = os.pipe()
                kept, passed = (write, read) if at == 0 else (read, write)
                setattr(self, name, os.fdopen(kept, "w" if at == 0 else "r"))
                ours.append(passed)
                theirs.append(passed)
            elif given is not None:
                theirs.append(given if isinstance(given, int) else given.fileno())
            else:
                theirs.append(at)
        self._status, status = socket.socketpair()
        self._status.settimeout(_PATIENCE)
        order = {
            "argv": ["-c", *self.args[3:]], "code": code, "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }  # fmt: skip
        try:
            _Nursery.of(tuple(imports)).send(order, [status.fileno(), *theirs])
        finally:
            status.close()
            for number in ours:
                os.close(number)
        self.pid = self._answer()

    def poll(self):
        """As `subprocess.Popen.poll`."""
        if self.returncode is None:
            self._status.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self._end()
        return self.returncode

    def wait(self, timeout=_PATIENCE):
        """As `subprocess.Popen.wait`."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self._end()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
        return self.returncode

    def _end(self):
        self.returncode = os.waitstatus_to_exitcode(self._answer())
        self._status.close()

    def _answer(self):
        """The next number that its keeper says: its id, then how it ended."""
        return int(self._status.recv(_DIGITS, socket.MSG_WAITALL))

    def send_signal(self, number):
        """As `subprocess.Popen.send_signal`."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and that is not told yet
                os.kill(self.pid, number)

    def kill(self):
        """As `subprocess.Popen.kill`."""
        self.send_signal(signal.SIGKILL)

    def communicate(self):
        """As `subprocess.Popen.communicate`, for pipes that are read one after the other; what was
        read before is not told again."""
        if self.stdin is not None:
            self.stdin.close()
        with self:
            return tuple(
                None if pipe is None or pipe.closed else pipe.read()
                for pipe in (self.stdout, self.stderr)
            )

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def run(code, *arguments, check=False, timeout=_PATIENCE, **options):
    """Run one to its end; as `subprocess.run` with ``capture_output`` and ``text``."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Process(code, *arguments, stdout=out, stderr=err, **options)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    done = subprocess.CompletedProcess(process.args, process.returncode, *texts)
    if check and done.returncode:
        raise AssertionError(f"ended with {done.returncode}: {done.stderr}{done.stdout}")
    return done


_STREAMS = "stdin", "stdout", "stderr"


class _Nursery:
    """The process that forks; each that asks has its own, which goes with it."""

    _all: ClassVar[dict] = {}

    def __init__(self, imports):
        self.owner = os.getpid()
        self._orders, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from tests import processes; processes.serve()",
                 str(theirs.fileno()), *imports],
                cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip

    @classmethod
    def of(cls, imports):
        key = os.getpid(), imports
        if key not in cls._all:
            cls._all[key] = cls(imports)
            atexit.register(cls._all[key].close)
        return cls._all[key]

    def close(self):
        """Let it end: its processor time counts with this process's, then."""
        if self.owner == os.getpid():
            self._orders.close()
            self._process.wait()

    def send(self, order, files):
        data = json.dumps(order).encode()
        socket.send_fds(self._orders, [len(data).to_bytes(4, "little")], files)
        self._orders.sendall(data)


def serve():
    """Be the process that forks: what comes back from here is a process that was asked for, with
    its code done."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    _prepare(sys.argv[2:])
    while True:
        head, files, _, _ = socket.recv_fds(orders, 4, 4)
        if not head:  # nobody is there any more to ask
            os._exit(0)
        size, data = int.from_bytes(head, "little"), b""
        while len(data) < size:
            data += orders.recv(size - len(data))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            orders.close()
            _keep(json.loads(data), *files)
            return
        for number in files:
            os.close(number)


def _prepare(imports):
    """Import, and load, what most processes need."""
    faulthandler.enable()
    for name in (*imports, "hypothesis", "pytest", "tests.naive"):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as directory:
        for num_envs, compressor in ((1, "lz4"), (2, "raw")):
            _use_all(Path(directory) / compressor, num_envs, compressor)
    gc.collect()
    gc.freeze()  # a collection would copy the pages of all that is there


def _use_all(directory, num_envs, compressor):
    options = {
        "observation_space": Box(0, 255, (8, 8), "uint8"), "action_space": Discrete(3),
        "capacity": 64 * num_envs, "segment_rows": 16, "compressor": compressor, "stack_size": 2,
        "update_horizon": 2, "num_envs": num_envs,
    }  # fmt: skip
    frame, zero, no = np.zeros((8, 8), np.uint8), 0, False
    if num_envs > 1:
        frame, zero, no = (np.array([value] * num_envs) for value in (frame, zero, no))
    with diskreplay.PrioritizedReplayBuffer(directory / "store", **options) as buffer:
        for _ in range(100):
            buffer.add(frame, zero, zero, no, no)
        buffer.update_priorities(buffer.sample(4).id, np.ones(4))
        buffer.save(directory / "saved", 1)
        buffer.load(directory / "saved")
        with diskreplay.open(directory / "store") as reader:
            reader.sample(4)


def _keep(order, status, *streams):
    """Fork the process and see it end; its parent, so that it is told how."""
    child = os.fork()
    if child == 0:
        os.close(status)
        _be(order, streams)
        return
    for number in streams:
        os.close(number)
    os.write(status, b"%*d" % (_DIGITS, child))
    os.write(status, b"%*d" % (_DIGITS, os.waitpid(child, 0)[1]))
    os._exit(0)


def _be(order, streams):
    """Run the code of a process."""
    for number, given in enumerate(streams):
        os.dup2(given, number)
    for given in streams:
        os.close(given)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None
    sys.argv = order["argv"]
    extra = order["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, extra), *(path for path in sys.path if path)]
    random.seed()
    np.random.seed()  # noqa: NPY002
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(order["code"], "<string>", "exec"), main.__dict__)

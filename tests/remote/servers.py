"""Object stores that are started for a test, on loopback, and end with it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE = 240
KEYS = {"access_key_id": "test-id", "secret_access_key": "very-secret-key-of-a-test"}


def program(name):
    """A program of a package that is installed beside Python; None if it is not there."""
    beside = [str(Path(path).parent.parent.parent / "bin") for path in sys.path]
    places = [os.path.dirname(sys.executable), *beside, os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(places))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def options(endpoint):
    """What `RemoteCheckpoints` is given for one of these."""
    return {
        "endpoint": endpoint, "region": "us-east-1", "virtual_hosted_style_request": False,
        "client_options": {"allow_http": True, "timeout": "30s"}, **KEYS,
    }  # fmt: skip


class Ended(Exception):
    """A server has ended before it answered: another process took one of its ports, say."""


def make_bucket(endpoint, server=None, name="bucket"):
    """Make a bucket by one plain request, as these servers take it; asks until they answer."""
    start = time.monotonic()
    while True:
        if server is not None and server.poll() is not None:
            raise Ended
        request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except urllib.error.HTTPError as error:
            if error.code == 409:  # made by the request before, whose answer was lost
                return
            last = error
        except OSError as error:
            last = error
        if time.monotonic() - start > PATIENCE:
            raise TimeoutError(f"{endpoint} does not answer") from last
        time.sleep(0.1)


def process(prepare):
    """A server in a process of its own, once it answers: `prepare` gives its command and endpoint,
    for other ports each time."""
    with tempfile.TemporaryFile() as said:
        for last in (False,) * 4 + (True,):
            command, endpoint = prepare()
            server = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
            try:
                make_bucket(endpoint, server)
                yield endpoint
                return
            except (Ended, TimeoutError) as error:
                if last or isinstance(error, TimeoutError):
                    said.seek(0)
                    print(said.read().decode(errors="replace")[-5000:])
                    raise
            finally:
                server.kill()
                server.wait()


@contextlib.contextmanager
def seaweedfs():
    """SeaweedFS with its S3 gateway: conditional puts are right, also in races."""
    with tempfile.TemporaryDirectory() as place:

        def prepare():
            ports = [free_port() for _ in range(8)]
            master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
            command = [
                program("weed"), "server", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                f"-master.port={master}", f"-master.port.grpc={master_grpc}",
                "-master.volumeSizeLimitMB=64", "-volume.max=40",
                f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}",
                "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}",
                "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}",
            ]  # fmt: skip
            return command, f"http://127.0.0.1:{s3}"

        yield from process(prepare)


@contextlib.contextmanager
def rclone():
    """rclone's S3 server, which takes no notice of conditions."""
    with tempfile.TemporaryDirectory() as place:
        os.mkdir(os.path.join(place, "bucket"))

        def prepare():
            port = free_port()
            command = [program("rclone"), "serve", "s3", f"--addr=127.0.0.1:{port}", place]
            return command, f"http://127.0.0.1:{port}"

        yield from process(prepare)


class Faults:
    """What stands between a client and a server, and does what it is told to a request.

    Attributes
    ----------
    seen : list of str
        Requests so far: ``"PUT packs"``.
    plan : dict of int to str
        What to do to the request of this number: ``"500"``, ``"503"``, ``"403"``, ``"412"``,
        ``"after"`` (it is done, and the answer is lost), ``"cut"`` (half of the body).
    """

    def __init__(self, app):
        self.app, self.seen, self.plan, self.always = app, [], {}, None

    def reset(self, plan=None):
        self.seen, self.plan = [], plan or {}

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"].split("/bucket/", 1)[-1].removeprefix("runs/pong/")
        self.seen.append(f"{environ['REQUEST_METHOD']} {path.split('/')[0]}")
        what = self.plan.get(len(self.seen) - 1)
        if what in ("500", "503", "403", "412"):
            start_response(f"{what} Refused", [("Content-Length", "0")])
            return [b""]
        if what is None:
            return self.app(environ, start_response)
        answers = []

        def keep(status, headers, exc_info=None):
            answers.append((status, headers))
            return lambda data: None

        body = b"".join(self.app(environ, keep))
        status, headers = answers[-1]
        if what == "cut" and len(body) > 1:
            start_response(status, headers)
            return [body[: len(body) // 2]]
        start_response("500 Lost", [("Content-Length", "0")])
        return [b""]


@contextlib.contextmanager
def moto():
    """moto's S3, in a thread, behind `Faults`; yields its endpoint and these."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    import threading

    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        make_bucket(endpoint)
        yield endpoint, faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

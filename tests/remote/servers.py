"""Object stores that are started for a test, on loopback, and end with it."""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import itertools
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
from typing import NamedTuple
from urllib.parse import urlsplit

PATIENCE = 240
ROOT = Path(__file__).resolve().parents[2]
KEYS = {"access_key_id": "test-id", "secret_access_key": "very-secret-key-of-a-test"}
# Of Azurite: each one has this account, and its key is on its first page.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_numbers = itertools.count()


def own(tmp_path):
    """A name that no other test of this process has in its store. A directory of a test that has
    passed is removed, and its name is given to another one; what is in a store stays there."""
    return f"{tmp_path.name}-{next(_numbers)}"


def program(name):
    """A program of a package that is installed beside Python; None if it is not there."""
    if name == "azurite-blob":  # of Node.js; tools/azurite installs it
        places = [str(ROOT / ".venv/azurite/node_modules/.bin"), os.environ.get("PATH", "")]
        return shutil.which("node") and shutil.which(name, path=os.pathsep.join(places))
    beside = [str(Path(path).parent.parent.parent / "bin") for path in sys.path]
    places = [os.path.dirname(sys.executable), *beside, os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(places))


# What tests are parametrized with: nothing where Azurite is not there, so that none is skipped.
AZURITE = ["azurite"] if program("azurite-blob") else []


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


def azure_options(endpoint):
    """The same for Azurite."""
    return {
        "endpoint": endpoint, "account_name": ACCOUNT, "account_key": ACCOUNT_KEY,
        "client_options": {"allow_http": True, "timeout": "30s"},
    }  # fmt: skip


def azure_environment(endpoint):
    """The same as variables of the environment."""
    return {
        "AZURE_STORAGE_ENDPOINT": endpoint, "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY, "AZURE_ALLOW_HTTP": "true",
    }  # fmt: skip


class Served(NamedTuple):
    """A bucket of one of these servers.

    Attributes
    ----------
    url : str
        ``"s3://bucket"``
    options : dict
        Of `RemoteCheckpoints`.
    """

    url: str
    options: dict


def served(kind, endpoint):
    """The bucket of a server of this kind."""
    if kind == "azurite":
        return Served("az://bucket", azure_options(endpoint))
    return Served("s3://bucket", options(endpoint))


class Ended(Exception):
    """A server has ended before it answered: another process took one of its ports, say."""


def _to_make(endpoint, name):
    """The request that makes a bucket: a plain one, or a signed one for Azurite."""
    if not endpoint.endswith(f"/{ACCOUNT}"):
        return urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = [f"{key}:{value}" for key, value in headers.items()]
    signed = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/{name}"])
    made = hmac.new(
        base64.b64decode(ACCOUNT_KEY), f"{signed}\nrestype:container".encode(), hashlib.sha256
    )
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(made.digest()).decode()}"
    return urllib.request.Request(
        f"{endpoint}/{name}?restype=container", method="PUT", headers=headers
    )


def make_bucket(endpoint, server=None, name="bucket"):
    """Make a bucket; asks until the server answers."""
    start = time.monotonic()
    while True:
        if server is not None and server.poll() is not None:
            raise Ended
        try:
            with urllib.request.urlopen(_to_make(endpoint, name), timeout=30):
                return
        except urllib.error.HTTPError as error:
            error.close()
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
                # Further services, whose ports are the same for all: a second server would end.
                "-s3.port.iceberg=0", "-s3.port.lance=0",
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


@contextlib.contextmanager
def azurite():
    """Azurite's blobs, in memory: conditional puts are right, also in races."""

    def prepare():
        port = free_port()
        command = [
            program("azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port),
            "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent",
        ]  # fmt: skip
        return command, f"http://127.0.0.1:{port}/{ACCOUNT}"

    yield from process(prepare)


class Forward:
    """A WSGI application that hands each request on to a server in another process."""

    def __init__(self, endpoint):
        self._host = urlsplit(endpoint).netloc

    def __call__(self, environ, start_response):
        headers = {
            key[5:].replace("_", "-"): value
            for key, value in environ.items()
            if key.startswith("HTTP_") and key != "HTTP_CONNECTION"
        }
        for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if environ.get(key):
                headers[key.replace("_", "-")] = environ[key]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        method = environ["REQUEST_METHOD"]
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, environ["RAW_URI"], body, headers)
            answer = connection.getresponse()
            data = answer.read()
        kept = [
            (key, value) for key, value in answer.getheaders()
            if key.lower() not in ("transfer-encoding", "connection", "keep-alive")
            and (method == "HEAD" or key.lower() != "content-length")
        ]  # fmt: skip
        if method != "HEAD":
            kept.append(("Content-Length", str(len(data))))
        start_response(f"{answer.status} {answer.reason}", kept)
        return [data]


class Faults:
    """What stands between a client and a server, and does what it is told to a request.

    Attributes
    ----------
    seen : list of str
        Requests so far: ``"PUT packs"``.
    plan : dict of int to str
        What to do to the request of this number: ``"500"``, ``"503"``, ``"403"``, ``"404"``,
        ``"412"``, ``"after"`` (it is done, and the answer is lost), ``"cut"`` (half of the body).
    may_list : bool
        Without it, what is not there is denied, as S3 does.
    """

    def __init__(self, app):
        self.app = app
        self.reset()

    def reset(self, plan=None):
        self.seen, self.plan, self.may_list = [], plan or {}, True

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"].split("/bucket/", 1)[-1].removeprefix("runs/pong/")
        self.seen.append(f"{environ['REQUEST_METHOD']} {path.split('/')[0]}")
        what = self.plan.get(len(self.seen) - 1)
        if what in ("500", "503", "403", "404", "412"):
            start_response(f"{what} Refused", [("Content-Length", "0")])
            return [b""]
        looks = environ["REQUEST_METHOD"] in ("GET", "HEAD")
        if what is None and (self.may_list or not looks):
            return self.app(environ, start_response)
        answers = []

        def keep(status, headers, exc_info=None):
            answers.append((status, headers))
            return lambda data: None

        body = b"".join(self.app(environ, keep))
        status, headers = answers[-1]
        if what is None:
            if status[:3] == "404" or "list-type" in environ["QUERY_STRING"]:
                start_response("403 Forbidden", [("Content-Length", "0")])
                return [b""]
            start_response(status, headers)
            return [body]
        if what == "cut" and len(body) > 1:
            start_response(status, headers)
            return [body[: len(body) // 2]]
        start_response("500 Lost", [("Content-Length", "0")])
        return [b""]


@contextlib.contextmanager
def behind_faults(app):
    """An application in a thread, behind `Faults`; yields its address and these."""
    import threading

    from werkzeug.serving import make_server

    faults = Faults(app)
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def moto():
    """moto's S3; yields its endpoint and the `Faults` before it."""
    from moto.server import DomainDispatcherApplication, create_backend_app

    with behind_faults(DomainDispatcherApplication(create_backend_app)) as (endpoint, faults):
        make_bucket(endpoint)
        yield endpoint, faults

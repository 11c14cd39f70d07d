"""Requests: URLs, secrets, and each request in turn fails."""

import contextlib
import datetime
import errno
import http.server
import json
import logging
import os
import random
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.bucket import Bucket, Missing, Overtaken
from diskreplay.remote.fetcher import Fetcher
from tests import processes
from tests.remote import servers
from tests.remote.test_checkpoints import same


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("bucket/runs", "no scheme"),
        ("ftp://bucket/runs", "ftp found"),
        ("s3:///runs", "no bucket"),
        ("s3://id:word@bucket/runs", "do not belong"),
        ("az://container/runs?sig=abc", "do not belong"),
        ("abfss://container:word@account.dfs.core.windows.net/runs", "do not belong"),
        ("abfss://word@container/runs", "do not belong"),
        ("abfss://container@dfs.core.windows.net.elsewhere/runs", "do not belong"),
        ("https://word@account.blob.core.windows.net/container/runs", "do not belong"),
        ("https://account.blob.core.windows.net/container?sig=abc", "do not belong"),
        ("https://bucket.elsewhere/runs", "https found"),
        ("az:///runs", "no bucket"),
        ("s3://[word/runs", "no URL"),
        (3, "a text"),
        (None, "a text"),
    ],
)
def test_urls(url, says):
    with pytest.raises(errors.InvalidInputError, match=says) as refused:
        RemoteCheckpoints(url)
    assert "word" not in str(refused.value)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "account", "prefix"),
    [
        ("az://box/runs/pong", "ours", "runs/pong"),
        ("azure://box/runs/pong/", "ours", "runs/pong"),
        ("abfs://box/runs", "ours", "runs"),
        ("abfss://box", "ours", None),
        ("abfs://box@theirs.dfs.core.windows.net/runs", "theirs", "runs"),
        ("abfss://box@theirs.dfs.core.windows.net/runs/pong", "theirs", "runs/pong"),
        ("https://theirs.blob.core.windows.net/box/runs/pong", "theirs", "runs/pong"),
        ("https://theirs.dfs.core.windows.net/box", "theirs", None),
    ],
)
def test_urls_of_azure(url, account, prefix, monkeypatch):
    """What the client makes of them: an account in a URL counts more than the environment's."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    bucket = Bucket(url, {"account_key": "a2V5"})
    assert type(bucket._store).__name__ == "AzureStore"
    assert bucket._store.config["container_name"] == "box"
    assert bucket._store.config.get("account_name", "ours") == account
    assert bucket._store.prefix == prefix
    assert bucket.where("a") == f"{url.rstrip('/')}/a"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("az://box/x", {"account_key": "a2V5"}, r"name the storage account: AZURE_STORAGE_ACC"),
        ("az://box/x", {"account_name": "a", "account_key": "very secret"}, "Access Key"),
        ("az://box/x", {"account_name": "a", "sas_key": "very-secret"}, "SAS"),
        ("az://box/x", {"account_name": "a", "very": "secret"}, "'very' is not valid"),
        ("az://box/x", {"account_name": "a", "account_key": 5}, "'int'"),
        ("az://box/x", {"account_name": "a", "endpoint": "nowhere"}, "http://HOST:PORT"),
        ("az://box/x", {"account_name": "a", "client_options": 5}, "'dict'"),
        ("https://theirs.blob.core.windows.net/", {}, "Container name"),
        ("abfss://box@theirs.dfs.core.windows.net/x", {"account_name": "a"}, "already"),
        ("s3://box/x", {"account_name": "a"}, "'account_name' is not valid"),
    ],
)
def test_options_that_no_store_can_be_made_with(url, options, says, monkeypatch):
    """No request was made, and none later is better: it is no store that does not answer."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(errors.InvalidInputError, match=says) as refused:
        RemoteCheckpoints(url, storage_options=options)
    assert "secret" not in str(refused.value)
    assert "later" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("memory://x", {"takeover": "no"}, "takeover: a bool expected"),
        ("memory://x", {"takeover": np.ones(2, bool)}, "takeover: a bool expected"),
        ("memory://x", {"unsafe_single_writer": "yes"}, "unsafe_single_writer: a bool expected"),
        ("memory://x", {"storage_options": "x"}, "storage_options: a dict expected"),
        ("memory://x", {"storage_options": ["x"]}, "storage_options: a dict expected"),
    ],
)
def test_what_makes_no_sense_is_refused(url, options, says):
    with pytest.raises(errors.InvalidInputError, match=says):
        RemoteCheckpoints(url, **options)


def test_a_url_of_this_machine(tmp_path):
    Bucket(f"file://{tmp_path}/a").create("x", b"1")
    assert Bucket(f"file://localhost{tmp_path}/a").get("x", 9)[0] == b"1"


def test_reading_makes_no_directory(tmp_path):
    bucket = Bucket(f"file://{tmp_path}/mis/typed")
    with pytest.raises(Missing):
        bucket.get("a", 9)
    with pytest.raises(Missing):
        list(bucket.pieces("a"))
    with pytest.raises(Missing):
        bucket.get_range("a", 0, 1)
    with pytest.raises(Overtaken):
        bucket.swap("a", b"1", "tag")
    assert bucket.size("a") is None
    assert list(bucket.list("a/")) == []
    bucket.delete(["a"])
    assert not list(tmp_path.iterdir())
    bucket.put("a", b"1")
    assert bucket.get("a", 9)[0] == b"1"
    Bucket(f"file://{tmp_path}/more").create("a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mis", "more"]


def test_a_directory_that_cannot_be_made():
    bucket = Bucket("file:///proc/no/such")
    assert bucket.size("a") is None
    for put in (bucket.create, bucket.put):
        with pytest.raises(errors.StorageError, match="cannot create the directory"):
            put("a", b"1")


def in_a_child(call):
    """Whether a forked child gets a `ForkedError` by this call, and does not wait for ever."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        status = 1
        try:
            call()
        except errors.ForkedError as error:
            status = 0 if "get_context('spawn')" in str(error) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.costly
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_may_not_ask(tmp_path):
    """The client's threads are not there: a request waits for ever."""
    url = f"file://{tmp_path}/bucket"
    bucket = Bucket(url)
    tag = bucket.create("a", b"1")
    for call in (
        lambda: bucket.get("a", 9), lambda: bucket.create("b", b""), lambda: bucket.size("a"),
        lambda: bucket.swap("a", b"", tag), lambda: bucket.put("a", b""),
        lambda: bucket.get_range("a", 0, 1), lambda: list(bucket.list("")),
        lambda: list(bucket.pieces("a")), lambda: bucket.delete(["a"]),
        lambda: Bucket(url).get("a", 9), lambda: RemoteCheckpoints(url).list(),
    ):  # fmt: skip
        assert in_a_child(call)
    with bucket._lock:  # as another thread might, amid a request
        assert in_a_child(lambda: bucket.get("a", 9))
    remote = RemoteCheckpoints(url)
    with remote._turn:
        assert in_a_child(lambda: remote.pull(1, tmp_path / "pulled"))
        assert in_a_child(lambda: remote.collect(1, 0))
    assert bucket.get("a", 9)[0] == b"1"


FIRST_IN_A_CHILD = """
import os, signal, sys
from diskreplay.remote.bucket import Bucket
bucket = Bucket(sys.argv[1])
if not (child := os.fork()):
    signal.alarm(60)
    bucket.create("a", b"1")
    os._exit(bucket.get("a", 9)[0] != b"1")
assert os.waitpid(child, 0)[1] == 0
assert bucket.get("a", 9)[0] == b"1"
"""


def test_one_whose_parent_has_not_asked_may(tmp_path):
    processes.run(FIRST_IN_A_CHILD, f"file://{tmp_path}/bucket", check=True)


def test_a_store_of_the_client(tmp_path):
    from obstore.store import LocalStore, MemoryStore

    assert RemoteCheckpoints(MemoryStore()).list() == []
    bucket = Bucket(LocalStore(str(tmp_path)))
    tag = bucket.create("a", b"1")
    newer = bucket.swap("a", b"2", tag)
    assert bucket.get("a", 9) == (b"2", newer)
    with pytest.raises(errors.InvalidInputError, match="only with a URL"):
        RemoteCheckpoints(MemoryStore(), storage_options={"region": "x"})


@pytest.fixture(params=["memory", "file", "s3", *servers.AZURITE])
def bucket(request, tmp_path):
    if request.param in ("memory", "file"):
        place = tmp_path if request.param == "file" else f"/{servers.own(tmp_path)}"
        return Bucket(f"{request.param}://{place}/bucket")
    if request.param == "azurite":
        place = servers.served("azurite", request.getfixturevalue("azurite"))
    else:
        endpoint, faults = request.getfixturevalue("moto")
        faults.reset()
        place = servers.served("moto", endpoint)
    return Bucket(f"{place.url}/{servers.own(tmp_path)}", place.options)


def test_conditions(bucket):
    with pytest.raises(Missing):
        bucket.get("a/b", 10)
    assert bucket.size("a/b") is None
    tag = bucket.create("a/b", b"one")
    with pytest.raises(Overtaken):
        bucket.create("a/b", b"two")
    newer = bucket.swap("a/b", b"two", tag)
    with pytest.raises(Overtaken):
        bucket.swap("a/b", b"three", tag)
    assert bucket.get("a/b", 10) == (b"two", newer)
    with pytest.raises(errors.RemoteError, match="3 bytes found, at most 2"):
        bucket.get("a/b", 2)
    assert bucket.get_range("a/b", 1, 2) == b"wo"
    assert b"".join(bucket.pieces("a/b")) == b"two"
    assert [(one.key, one.size) for one in bucket.list("a/")] == [("a/b", 3)]
    bucket.delete(["a/b", "a/never"])
    assert list(bucket.list("a/")) == []
    assert bucket.requests > 10


def test_a_swap_of_what_is_gone(bucket):
    """Each kind of store says it in its own way; a push begins anew then."""
    tag = bucket.create("a", b"one")
    bucket.delete(["a"])
    with pytest.raises(Overtaken):
        bucket.swap("a", b"two", tag)
    assert bucket.size("a") is None


def test_large_objects(bucket):
    """Longer than what the client puts at once, where it may put in parts."""
    data = random.Random(0).randbytes(12 << 20)
    tag = bucket.create("whole", data)
    bucket.put("parts", data)
    assert bucket.get("whole", 1 << 30) == (data, tag)
    assert b"".join(bucket.pieces("parts")) == data
    assert bucket.get_range("parts", (8 << 20) - 5, 10) == data[(8 << 20) - 5 : (8 << 20) + 5]
    assert {one.key: one.size for one in bucket.list("")} == dict.fromkeys(
        ("whole", "parts"), len(data)
    )


@pytest.mark.costly(1)
def test_many_objects(bucket):
    """More than one request lists or deletes, and some of them gone already."""
    keys = [f"a/{number}" for number in range(610)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bucket.create, keys[1:600], [b""] * 599))
    bucket.create("b/0", b"")
    assert sorted(one.key for one in bucket.list("a/")) == sorted(keys[1:600])
    bucket.delete(keys)
    assert [one.key for one in bucket.list("")] == ["b/0"]


def test_a_missing_package(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "diskreplay\[cloud\]"'):
        RemoteCheckpoints("memory://x")


QUICK = {
    "max_retries": 1, "retry_timeout": datetime.timedelta(seconds=5),
    "backoff": {
        "init_backoff": datetime.timedelta(milliseconds=1),
        "max_backoff": datetime.timedelta(milliseconds=2), "base": 2.0,
    },
}  # fmt: skip


def test_no_secret_is_in_a_message(run, faulty, tmp_path, caplog):
    place, faults = faulty
    secrets = [
        place.options[key]
        for key in ("access_key_id", "secret_access_key", "account_key") if key in place.options
    ]  # fmt: skip
    assert secrets
    caplog.set_level(logging.DEBUG)
    run.add(50)
    path = run.save(1)
    options = {**place.options, "retry_config": QUICK}
    remote = RemoteCheckpoints(f"{place.url}/secret", storage_options=options)
    said = []
    for what in ("403", "500", "412"):
        faults.reset(dict.fromkeys(range(100), what))
        with pytest.raises(errors.RemoteError) as refused:
            remote.push(path)
        said += traceback.format_exception(refused.value)  # what it is raised from, too
    faults.reset()
    remote.push(path)
    stored = b"".join(b"".join(remote._bucket.pieces(one.key)) for one in remote._bucket.list(""))
    said += [repr(remote), caplog.text]
    for secret in secrets:
        assert secret not in "".join(said)
        assert secret.encode() not in stored
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or secret.encode() not in file.read_bytes()


class Echo(http.server.BaseHTTPRequestHandler):
    """Refuses each request, and sends back all that came with it."""

    def answer(self):
        asked = f"{self.path} {self.headers} {self.server.more}"
        body = (
            f"<Error><StringToSign>{asked}</StringToSign><Message>{asked!r}</Message>"
            f"<Code>SignatureDoesNotMatch</Code></Error>"
        ).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = answer

    def log_message(self, *_what):
        pass


@pytest.fixture
def echo():
    """A server, and where it is."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.more = ""
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.costly(3)
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://box/x", {"session_token": "a-{}"}),
        ("s3://box/x", {"client_options": {"default_headers": {"Authorization": "Bearer {}"}}}),
        ("s3://box/x", {"endpoint": "http://user:{}@127.0.0.1:1"}),
        ("s3://box/x", {"endpoint": "http://user:{}/@127.0.0.1:1"}),
        ("s3://box/x", {"client_options": {"proxy_url": "user:{}@127.0.0.1 1"}}),
        ("s3://box/x", {"client_options": {"proxy_url": "http://user:{}@127.0.0.1:1"}}),
        ("az://box/x", {"account_name": "us", "sas_key": "sv=2022&sig={}%3D"}),
        ("s3://box/x", {"AWS_SESSION_TOKEN": "a-{}"}),
        ("az://box/x", {"AZURE_STORAGE_ACCOUNT_NAME": "us", "AZURE_STORAGE_SAS_KEY": "sig={}%3D"}),
    ],
)  # fmt: skip
def test_no_secret_is_in_a_traceback(url, options, echo, monkeypatch):
    """Whatever the server sends back; the whole of it, with all that an error was raised from."""
    server, endpoint = echo
    word = "".join(["wo", "rd", "12345"])  # a traceback quotes lines of this file, too
    server.more = f"{word}= sig={word}%3D&sp=r {word}"
    made = json.loads(json.dumps(options).replace("{}", word))
    for name in [name for name in made if name.isupper()]:
        monkeypatch.setenv(name, made.pop(name))
    own = {"access_key_id": "us", "secret_access_key": "ours-as-well", "region": "here"}
    made = {"endpoint": endpoint} | (own if url.startswith("s3") else {}) | made
    made["client_options"] = {"allow_http": True} | made.get("client_options", {})
    calls = (
        lambda bucket: bucket.get("a", 9), lambda bucket: bucket.create("a", b""),
        lambda bucket: bucket.size("a"), lambda bucket: bucket.swap("a", b"", "tag"),
        lambda bucket: bucket.get_range("a", 0, 1), lambda bucket: list(bucket.list("a/")),
        lambda bucket: list(bucket.pieces("a")),
    )  # fmt: skip
    for call in calls:
        with pytest.raises((errors.RemoteError, errors.InvalidInputError)) as refused:
            call(Bucket(url, {**made, "retry_config": {"max_retries": 0}}))
        said = "".join(traceback.format_exception(refused.value))
        assert word not in said
        assert "ours-as-well" not in said


class PanicException(BaseException):
    """What the client raises where it breaks off: no `Exception`."""


def test_a_panic_of_the_client_is_an_error_of_ours(monkeypatch):
    bucket = Bucket("memory://panic")

    def panic(*_what, **_more):
        raise PanicException("called `Result::unwrap()` on an `Err` value: ()")

    for name in ("get", "put", "head", "list"):
        monkeypatch.setattr(bucket._obstore, name, panic)
    for call in (
        lambda: bucket.get("a", 9), lambda: bucket.create("a", b""), lambda: bucket.size("a"),
        lambda: list(bucket.list("a/")),
    ):  # fmt: skip
        with pytest.raises(errors.RemoteError, match="no request can be made") as refused:
            call()
        assert refused.value.errno == errno.EINVAL
        assert not isinstance(refused.value, errors.RemoteUnavailableError)
    monkeypatch.setattr(bucket._obstore.store, "from_url", panic)
    with pytest.raises(errors.InvalidInputError, match="no store can be made"):
        Bucket("s3://box/x")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_stays_what_it_is(monkeypatch, interrupt):
    bucket = Bucket("memory://panic")

    def cut(*_what, **_more):
        raise interrupt

    monkeypatch.setattr(bucket._obstore, "get", cut)
    with pytest.raises(interrupt):
        bucket.get("a", 9)
    monkeypatch.setattr(bucket._obstore.store, "from_url", cut)
    with pytest.raises(interrupt):
        Bucket("s3://box/x")


def test_a_missing_bucket(run, moto):
    """It is no place where nothing is published yet. tests/remote/test_azure.py has Azure's."""
    endpoint, faults = moto
    faults.reset()
    run.add(50)
    path = run.save(1)
    remote = RemoteCheckpoints("s3://no-such-box/x", storage_options=servers.options(endpoint))
    for request in (remote.list, lambda: remote.push(path), lambda: remote._hold(int)):
        with pytest.raises(errors.RemoteError, match="no such bucket or container") as refused:
            request()
        assert refused.value.errno == errno.ENOENT


def test_a_missing_bucket_of_a_server_that_only_says_404(faulty):
    place, faults = faulty
    bucket = Bucket(f"{place.url}/x", {**place.options, "retry_config": QUICK})
    for put in (bucket.create, bucket.put):
        faults.reset({0: "404"})
        with pytest.raises(errors.RemoteError, match="no such bucket or container"):
            put("a", b"1")
    faults.reset({0: "404"})
    with pytest.raises(Missing):
        bucket.get("a", 9)


class Silent(http.server.ThreadingHTTPServer):
    """Takes requests and never answers, until it is closed."""

    def __init__(self):
        self.asked, self.ends = [], threading.Event()
        super().__init__(("127.0.0.1", 0), None)
        threading.Thread(target=self.serve_forever).start()

    def finish_request(self, request, client_address):
        self.asked.append(client_address)
        self.ends.wait()

    def close(self):
        self.ends.set()
        self.shutdown()
        self.server_close()


def test_what_the_client_has_repeated_is_not_repeated():
    """A server that never answers costs the client's patience once, and not four times."""
    with contextlib.closing(Silent()) as server:
        options = {
            "endpoint": f"http://127.0.0.1:{server.server_port}", "region": "here",
            "access_key_id": "id", "secret_access_key": "word", "retry_config": QUICK,
            "client_options": {"allow_http": True, "timeout": "100ms"},
        }  # fmt: skip
        bucket = Bucket("s3://box/x", options)
        fetcher = Fetcher(bucket, concurrency=1)
        for ask in (
            lambda: bucket.get("a", 9), lambda: bucket.get_range("a", 0, 9),
            lambda: fetcher.checked("a", 9),
        ):  # fmt: skip
            server.asked.clear()
            with pytest.raises(errors.RemoteUnavailableError, match="call again later"):
                ask()
            assert len(server.asked) == QUICK["max_retries"] + 1


@pytest.mark.parametrize("what", ["500", "503", "403", "412", "after", "cut"])
@pytest.mark.costly(1)
def test_each_request_in_turn_fails(run, faulty, tmp_path, what):
    """The right result, or one of our errors and no half checkpoint; and the next push works."""
    place, faults = faulty
    options = {**place.options, "retry_config": QUICK}
    run.add(300)
    first = run.save(1)
    run.add(300)
    second = run.save(2)
    number, failed = 0, 0
    while True:
        url = f"{place.url}/faults-{what}-{number}"
        faults.reset()
        RemoteCheckpoints(url, storage_options=options, concurrency=1).push(first)
        remote = RemoteCheckpoints(url, storage_options=options, concurrency=1)
        # That many requests are spoilt from this one on: the client's own repetition too.
        faults.reset(dict.fromkeys(range(number, number + 2), what))
        try:
            remote.push(second)
            pulled = remote.pull(2, tmp_path / f"pulled-{number}")
            assert same(second, pulled)
        except (errors.RemoteError, errors.CorruptCheckpointError):
            failed += 1
        done = len(faults.seen) <= number
        faults.reset()
        later = RemoteCheckpoints(url, storage_options=options)
        assert later.verify(deep=True).clean
        later.push(second)
        for path in (first, second):
            suffix = path.name.rpartition(".")[2]
            assert same(path, later.pull(suffix, tmp_path / f"again-{number}"))
        assert not list(tmp_path.glob("pulled-*/.*"))
        if done:
            break
        number += 1
    assert number > 5
    assert failed or what in ("after", "cut")

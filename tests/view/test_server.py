"""Where the page listens, and what its address is called."""

import socket

import pytest

pytest.importorskip("uvicorn")

from diskreplay.errors import InvalidInputError
from diskreplay.view import server


@pytest.fixture
def addresses(monkeypatch, tmp_path):
    """What `serve` says of where it is; nothing is answered."""
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda _self, sockets: None)
    found = []

    def serve(**options):
        server.serve([tmp_path], found.append, **options)
        return found[-1]

    return serve


def test_an_address_of_this_machine_only(addresses):
    address = addresses(port=0)
    assert (address.host, address.is_local, address.has_stores) == ("127.0.0.1", True, False)
    scheme, rest = address.url.split("127.0.0.1:")
    port, token = rest.split("/?token=")
    assert scheme == "http://"
    assert int(port) > 0
    assert len(token) >= 16
    assert addresses(port=0).url.split("token=")[1] != token


def test_all_addresses_are_called_by_the_name_of_the_machine(addresses):
    """Nobody can open a page at 0.0.0.0."""
    address = addresses(host="0.0.0.0", port=0)
    assert not address.is_local
    assert address.host == "0.0.0.0"
    assert address.url.startswith(f"http://{socket.gethostname()}:")


def test_an_address_with_colons_stands_in_brackets(addresses, monkeypatch):
    """Not every machine has one."""
    monkeypatch.setattr(server, "_listening", lambda _host, _port: socket.create_server(("", 0)))
    assert addresses(host="fe80::1").url.startswith("http://[fe80::1]:")


def test_another_port_where_the_usual_one_is_taken(addresses, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(server, "PORT", number)
        found = int(addresses().url.split(":")[2].split("/")[0])
        assert found not in (0, number)
        with pytest.raises(OSError, match="in use"):
            addresses(port=number)  # one that was asked for
    assert f":{number}/" in addresses().url


@pytest.mark.parametrize("token", ["", "x" * 15, "x" * 15 + "/", "x" * 15 + " ", "\u00fc" * 20])
def test_a_token_that_is_too_short_or_would_not_stand_in_an_address(addresses, token):
    with pytest.raises(InvalidInputError, match="token: 16 or more letters, digits and hyphens"):
        addresses(token=token, port=0)
    assert addresses(token="a-1" * 6, port=0).url.endswith("token=" + "a-1" * 6)


@pytest.mark.parametrize(
    "name",
    ["*", "*lan", "*.lan", "gpu*.lan", "", " ", "a b", "a\n", "http://gpu7", "gpu7/x", "gpu7:8642",
     "gpu7..lab", ".lab", "::1", "gpu7,gpu8"],
)  # fmt: skip
def test_a_name_that_is_none_of_a_host(addresses, name):
    """One with an asterisk would let any page elsewhere ask by a name of its own."""
    with pytest.raises(InvalidInputError, match="name: a host's name expected"):
        addresses(names=["gpu7.lab", name], port=0)


def test_names_that_it_may_be_asked_by():
    assert "127.0.0.1" in server._hosts("127.0.0.1", ())
    assert "*" not in server._hosts("0.0.0.0", ())
    assert {"gpu7.lab", socket.gethostname()} <= {*server._hosts("0.0.0.0", ["gpu7.lab"])}
    assert {"GPU-7", "a.b_c.", "10.0.0.7"} <= {
        *server._hosts("127.0.0.1", iter(["GPU-7", "a.b_c.", "10.0.0.7"]))
    }
    assert "10.1.2.3" in server._hosts("10.1.2.3", ())
    assert socket.gethostname() not in server._hosts("127.0.0.1", ())

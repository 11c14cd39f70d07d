"""The page served, until Ctrl-C."""

import contextlib
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from diskreplay.errors import InvalidInputError
from diskreplay.view.app import make_app
from diskreplay.view.shown_stores import ShownStores

PORT = 8642  # where none is asked for; another one if it is taken
_LEAST = 16  # characters of a token
# Of a host, as a browser has it before the port. An asterisk would stand for any name there is.
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)


@dataclass(frozen=True)
class Address:
    """Where the page is."""

    url: str  # with the token
    host: str  # that it listens on
    is_local: bool  # whether only this machine can reach it
    has_stores: bool  # whether there is anything to show by now


def serve(
    paths: Iterable[Path],
    ready: Callable[[Address], None],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Iterable[str] = (),
    token: str | None = None,
) -> None:
    """Serve the page of some stores.

    Parameters
    ----------
    paths : iterable of Path
        Stores, checkpoints, or directories of them.
    ready : callable
        Called with the address before the first request is answered.
    host : str
        A name or an address of this machine to listen on; ``0.0.0.0`` are all of them.
    port : int, optional
        Default: 8642, or any other if that is taken. 0 is any.
    names : iterable of str
        Further names of this machine that the page may be asked by.
    token : str, optional
        Default: a new one.

    Raises
    ------
    FormatError, StorageError
        A path is no directory, is no store though it looks like one, or cannot be read.
    InvalidInputError
        The token is too short or would not stand in an address, or a name is none of a host.
    OSError
        The host or the port cannot be listened on.
    """
    if token is None:
        token = secrets.token_urlsafe(24)
    elif len(token) < _LEAST or not token.isascii() or not token.replace("-", "").isalnum():
        raise InvalidInputError(
            f"token: {_LEAST} or more letters, digits and hyphens expected; leave it out to get one"
        )
    hosts = _hosts(host, names)
    stores = ShownStores(paths)
    with _listening(host, port) as listener:
        number = listener.getsockname()[1]
        is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        shown = host if is_local or not _is_any(host) else socket.gethostname()
        shown = f"[{shown}]" if ":" in shown else shown
        app = make_app(stores, token=token, port=number, hosts=hosts)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, ws="none",
            lifespan="on", timeout_graceful_shutdown=2,
        )  # fmt: skip
        url = f"http://{shown}:{number}/?token={token}"
        ready(Address(url, host, is_local, bool(stores.all())))
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port is None:
        with contextlib.suppress(OSError):
            return socket.create_server((host, PORT), family=family)
    return socket.create_server((host, port or 0), family=family)


def _is_any(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def _hosts(host: str, names: Iterable[str]) -> list[str]:
    """What may stand in the header ``Host``. A name that somebody else's DNS leads here is not
    among them."""
    names = list(names)
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"name: a host's name expected, as in gpu7.lab, with no asterisk, slash, blank or "
                f"port, found {name!r:.60}"
            )
    hosts = {"127.0.0.1", "localhost", "::1", "[::1]", *names}
    if _is_any(host):
        own = socket.gethostname()
        hosts |= {own, socket.getfqdn()}
        with contextlib.suppress(OSError):  # a name that nobody can look up has no addresses
            hosts |= {str(found[4][0]) for found in socket.getaddrinfo(own, None)}
    else:
        hosts.add(host)
    return sorted(hosts)

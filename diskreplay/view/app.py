"""What the page asks for, and what it is answered."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import diskreplay
from diskreplay.errors import DiskReplayError, InvalidInputError
from diskreplay.inspection.identity import title_of
from diskreplay.inspection.plain import plain
from diskreplay.view.guard import Guard
from diskreplay.view.readers import Readers
from diskreplay.view.shown_stores import ShownStore, ShownStores

_SWEEP = 15.0  # seconds

Answer = Callable[[Readers, Request], Any]


class Json(Response):
    """A document of numbers, texts and arrays; a path may hold what is no UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """As ASCII."""
        return json.dumps(plain(content), allow_nan=False, separators=(",", ":")).encode()


def make_app(stores: ShownStores, *, token: str, port: int, hosts: list[str]) -> Starlette:
    """The application.

    Parameters
    ----------
    stores : ShownStores
    token : str
        What each request has to bring, see `Guard`.
    port : int
        That it is served on.
    hosts : list of str
        Names and addresses that it may be asked by.
    """
    readers = Readers(stores)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_sweep(readers))
        try:
            yield
        finally:
            sweeper.cancel()
            await run_in_threadpool(readers.close)

    page = StaticFiles(packages=[("diskreplay.view", "static"), ("diskreplay.pictures", "page")])
    return Starlette(
        routes=[
            Route("/", _index),
            Route("/api/stores", _answering(readers, _stores)),
            Route("/api/stores/{key}/pulse", _answering(readers, _pulse)),
            Route("/api/stores/{key}/look", _answering(readers, _look)),
            Mount("/static", page),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(Guard, token=token, port=port),
        ],
        lifespan=lifespan,
    )


async def _sweep(readers: Readers) -> None:
    while True:
        await asyncio.sleep(_SWEEP)
        await run_in_threadpool(readers.sweep)


def _answering(readers: Readers, answer: Answer) -> Callable[[Request], Response]:
    """An endpoint, which runs on a thread: what fails is said in words."""

    def endpoint(request: Request) -> Response:
        try:
            answered = answer(readers, request)
        except InvalidInputError as error:
            return Json({"error": str(error)}, 404)
        except (DiskReplayError, FileNotFoundError) as error:
            return Json({"error": str(error)}, 409)
        return answered if isinstance(answered, Response) else Json(answered)

    return endpoint


def _index(_request: Request) -> Response:
    from importlib import resources

    page = resources.files("diskreplay.view").joinpath("static", "index.html")
    return Response(page.read_bytes(), media_type="text/html")


def _stores(readers: Readers, _request: Request) -> dict[str, Any]:
    return {
        "version": diskreplay.__version__,
        "paths": readers.stores.paths,
        "stores": [_about(store) for store in readers.stores.all()],
    }


def _about(store: ShownStore) -> dict[str, Any]:
    try:
        title = title_of(store.path)
    except DiskReplayError:  # gone, or damaged: the pulse says which
        title = "/".join(store.path.parts[-3:])
    return {
        "key": store.key,
        "path": store.path,
        "title": title,
        "name": store.path.name,
        "is_checkpoint": store.is_checkpoint,
    }


def _pulse(readers: Readers, request: Request) -> dict[str, Any]:
    return readers.of(request.path_params["key"]).pulse(number(request, "after", 0.0))


def _look(readers: Readers, request: Request) -> dict[str, Any]:
    look = readers.of(request.path_params["key"]).look()
    if request.query_params.get("seen") == look.version:
        return {"version": look.version, "unchanged": True}
    return look.document


def number(request: Request, name: str, default: float) -> float:
    """A number of the query.

    Raises
    ------
    InvalidInputError
    """
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    try:
        found = float(given)
    except ValueError:
        found = float("nan")
    if found != found:
        raise InvalidInputError(f"{name}: a number expected, found {given!r:.40}")
    return found

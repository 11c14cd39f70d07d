"""What the page asks for, and what it is answered."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import diskreplay
from diskreplay.errors import DiskReplayError, InvalidInputError
from diskreplay.inspection.harmless import harmless
from diskreplay.inspection.identity import title_of
from diskreplay.inspection.plain import plain
from diskreplay.pictures.vectors import vectors_of
from diskreplay.view import episode_answers, row_answers
from diskreplay.view.comparison import compared
from diskreplay.view.guard import Guard
from diskreplay.view.query import number, text
from diskreplay.view.readers import Readers
from diskreplay.view.shown_stores import ShownStore, ShownStores
from diskreplay.view.store_reader import unless_moved

_SWEEP = 15.0  # seconds

Answer = Callable[[Readers, Request], Any]


class Id(IntegerConvertor):
    """A row's or an episode's number in an address: Starlette's own takes any number of digits, and
    fails with thousands."""

    regex = "[0-9]{1,1000}"


register_url_convertor("id", Id())


class Json(Response):
    """A document of numbers, texts and arrays; what of it is shown is harmless."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """As ASCII."""
        return json.dumps(plain(content, harmless), allow_nan=False, separators=(",", ":")).encode()


def make_app(stores: ShownStores, *, token: str, port: int, hosts: list[str]) -> Starlette:
    """The application, which is served on `port`.

    Each request has to bring the token, see `Guard`, and to ask by one of the names and addresses
    in `hosts`.
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
            *(Route(f"/api/{path}", _answering(readers, answer)) for path, answer in _ANSWERS),
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
            answered = unless_moved(lambda: answer(readers, request))
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
    found, left_out = readers.stores.look()
    return {
        "version": diskreplay.__version__,
        "paths": readers.stores.paths,
        "stores": _listed(readers, found),
        "left_out": left_out,
    }


def _listed(readers: Readers, found: Sequence[ShownStore]) -> list[dict[str, Any]]:
    stores = [_about(store) for store in found]
    alike = Counter(each["title"] for each in stores if not each["is_checkpoint"])
    for each in stores:
        if alike[each["title"]] > 1:  # runs of one environment
            each["title"] += f" · {_within(each['path'], readers.stores.paths)}"
    return stores


def _within(path: Path, given: Sequence[Path]) -> str:
    """The part of a path that tells it from others below the same directory that was given."""
    above = next((each for each in given if each in path.parents), path.parent.parent)
    inner = path.relative_to(above)
    return str(inner.parent if len(inner.parts) > 1 else inner)


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
    if text(request, "seen") == look.version:
        return {"version": look.version, "unchanged": True}
    return look.document


def _vectors(readers: Readers, request: Request) -> list[dict[str, Any]]:
    with readers.of(request.path_params["key"]).reading() as buffer:
        return vectors_of(buffer)


def _compare(readers: Readers, request: Request) -> dict[str, Any]:
    found = [readers.of(request.path_params[side]) for side in ("left", "right")]
    left, right = (reader.look() for reader in found)
    listed = {each["key"]: each for each in _listed(readers, readers.stores.all())}
    about = [listed.get(reader.store.key) or _about(reader.store) for reader in found]
    for names in (
        [each["title"] for each in about],
        [f"{each['title']} · {each['name']}" for each in about],
        [str(each["path"]) for each in about],
    ):
        if names[0] != names[1]:
            break
    return compared(left, right, names)


_ANSWERS: list[tuple[str, Answer]] = [
    ("stores", _stores),
    ("stores/{key}/pulse", _pulse),
    ("stores/{key}/look", _look),
    ("stores/{key}/episodes", episode_answers.episodes),
    ("stores/{key}/episodes/{id:id}", episode_answers.episode),
    ("stores/{key}/episodes/{id:id}/steps", episode_answers.steps),
    ("stores/{key}/episodes/{id:id}/frames", episode_answers.frames),
    ("stores/{key}/rows", row_answers.newest),
    ("stores/{key}/rows/{id:id}", row_answers.row),
    ("stores/{key}/rows/{id:id}/picture", row_answers.picture),
    ("stores/{key}/vectors", _vectors),
    ("compare/{left}/{right}", _compare),
]

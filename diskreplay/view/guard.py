"""Who may ask, and what a browser may do with the answer."""

import secrets
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# No script but the page's own files, nothing from elsewhere, and no text that becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REFUSED = (
    "This page needs its token: open the address that `diskreplay view` printed, with all that "
    "stands behind the question mark.\n"
)


class Guard:
    """Middleware that lets through only who was meant.

    Each request needs the token: the first one in its address, from which it goes into a cookie of
    this server alone; programs give it as ``Authorization: Bearer``. A page elsewhere cannot read
    anything: it may not name the host (a name that leads here by another's DNS is refused), its
    requests have another origin, and the cookie is not sent with them.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._cookie = f"diskreplay-{port}"  # cookies themselves do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page can only be read.\n", 405, {"Allow": "GET, HEAD"})
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope['scheme']}://{headers.get('host', '')}":
            return PlainTextResponse("Asked by a page from elsewhere.\n", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and len(given) == 1 and self._is_token(given[0]):
            # Both relative: a proxy may have the page below a path, of which nothing is said here.
            entered = RedirectResponse("./", 303)
            entered.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path=None)
            return entered
        # A page of the same site, on another port say, sends the cookie, but has no business here.
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Asked by a page from elsewhere.\n", 403)
        if not any(map(self._is_token, self._tokens(scope))):
            return PlainTextResponse(_REFUSED, 403)
        return None

    def _tokens(self, scope: Scope) -> Collection[str]:
        request = HTTPConnection(scope)
        kind, _blank, bearer = request.headers.get("authorization", "").partition(" ")
        found = [bearer] if kind.lower() == "bearer" else []
        return [*found, request.cookies.get(self._cookie, "")]

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

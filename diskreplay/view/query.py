"""What stands behind the question mark of an address."""

from starlette.requests import Request

from diskreplay.errors import InvalidInputError


def number(request: Request, name: str, default: float) -> float:
    """A number; an InvalidInputError if it is none."""
    given = text(request, name)
    if not given:
        return default
    try:
        found = float(given)
    except ValueError:
        found = float("nan")
    if found != found:
        raise InvalidInputError(f"{name}: a number expected, found {given!r:.40}")
    return found


def whole(request: Request, name: str, default: int, *, most: int) -> int:
    """A whole number from 0 to `most`; an InvalidInputError if it is none."""
    given = text(request, name)
    if not given:
        return default
    if not (given.isascii() and given.isdecimal()) or len(given) > 18 or int(given) > most:
        raise InvalidInputError(
            f"{name}: a whole number from 0 to {most} expected, found {given!r:.40}"
        )
    return int(given)


def text(request: Request, name: str, default: str = "") -> str:
    """A text."""
    return request.query_params.get(name, default)

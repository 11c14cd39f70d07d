"""What the client is given, in `storage_options` and by the environment: what it would break off
at is refused, and what may be a secret is known, so that no message has it."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from diskreplay.errors import InvalidInputError

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_"}  # what they begin with; for all others Azure's
_AZURE = "AZURE_"
_OWNERS = "(aws_|azure_|google_)?"
_ENDPOINT = re.compile(
    _OWNERS + "(storage_|metadata_|msi_|identity_)?(endpoint(_url(_s3)?)?|base_url|authority_host)"
)
# Not all that begin so: others may be there for other programs.
_READ = re.compile(
    _OWNERS + "(storage_)?(access_key(_id)?|secret_access_key|session_token|token|"
    "(default_)?region|account_(name|key)|master_key|sas_(key|token)|client_(id|secret)|(tenant|authority)_id)"
)
_ADDRESS = re.compile("endpoint|url|uri|host|proxy")
_SECRET = re.compile("key|secret|token|pass|sas|cred|authorization|default_headers")
_NAME_OF_A_FILE = re.compile("(_file|application_credentials)$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check(scheme: str, options: Mapping[str, Any]) -> None:
    """Refuse what the client panics at: a text that it cannot put into a header, and an endpoint
    that is no URL. The scheme of the URL says which variables of the environment the client
    reads."""
    has_endpoint = False
    for name, text in _texts(options):
        is_endpoint = _ENDPOINT.fullmatch(name.lower()) is not None
        has_endpoint |= is_endpoint
        _check_text(f"{name} in storage_options", text, is_endpoint)
    for name, text in os.environ.items():
        if name.startswith(_VARIABLES.get(scheme, _AZURE)):
            is_endpoint = _ENDPOINT.fullmatch(name.lower()) is not None
            if _READ.fullmatch(name.lower()) or (is_endpoint and not has_endpoint):
                _check_text(f"{name} in the environment", text, is_endpoint)


def _check_text(where: str, text: str, is_endpoint: bool) -> None:
    bad = _CONTROL.search(text)
    if bad is not None and "service_account" not in where:  # which may be JSON, of many lines
        raise InvalidInputError(
            f"{where}: a text without control characters expected, found {bad[0]!r} at place "
            f"{bad.start()} of {len(text)}; take it out (a line break at the end of a file, say)"
        )
    if is_endpoint and not _is_address(text):
        # Not with its text if that may have a password in it.
        found = "" if "@" in text else f", found {text!r:.80}"
        raise InvalidInputError(f"{where}: http://HOST:PORT or https://HOST expected{found}")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _port = parts.port  # a ValueError where it is no number
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """Texts of options, and of the environment, that may be secrets, the longest first."""
    owners = *_VARIABLES.values(), _AZURE
    variables = (
        (name, text) for name, text in os.environ.items()
        if name.startswith(owners) or name.lower().endswith("_proxy")
    )  # fmt: skip
    found = set()
    for name, text in (*_texts(options), *variables):
        for secret in _secrets_in(name.lower(), text):
            # In a URL or a body a server may have it in another form.
            found |= {secret, unquote(secret), quote(secret, safe="")}
    return sorted(found - {""}, key=lambda secret: (-len(secret), secret))


def _texts(options: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """All texts, with their names."""
    for key, value in options.items():
        name = within or str(key)
        if isinstance(value, Mapping):  # any header may be a secret, whatever its name is
            yield from _texts(value, "default_headers" if key == "default_headers" else within)
        elif isinstance(value, bytes):
            yield name, value.decode("latin-1")
        elif isinstance(value, str):
            yield name, value


def _secrets_in(name: str, text: str) -> Iterator[str]:
    if _ADDRESS.search(name) and "@" in text:
        user = text.rpartition("@")[0].rpartition("://")[2]
        yield user
        yield user.partition(":")[2]
    if _SECRET.search(name) and not _NAME_OF_A_FILE.search(name):
        yield text
        if "=" in text:  # a shared access signature
            for part in text.removeprefix("?").split("&"):
                yield part
                if part.startswith("sig="):
                    yield part.removeprefix("sig=")
        if name == "default_headers":
            yield from text.split()  # what comes behind "Bearer"

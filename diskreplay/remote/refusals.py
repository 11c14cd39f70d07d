"""What an error of the client says: in a line, without secrets, and what can be done about it."""

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MOST = 300  # letters
_NO_CREDENTIALS = (
    "no credentials were found in the environment, a profile or storage_options, so that this "
    "machine was asked for those of its role"
)

NO_BUCKET = errno.ENOENT, "there is no such bucket or container; make it, or correct the URL"
DENIED = errno.EACCES, "check the credentials and what they may do there"

# What the text of an error has in it, an errno, and a remedy. The first that fits counts.
_REASONS = (
    (re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>"), *NO_BUCKET),
    (
        re.compile(r"builder error"), errno.EINVAL,
        "an endpoint with http:// has to be allowed: client_options={'allow_http': True}, or "
        "AWS_ALLOW_HTTP=true, AZURE_ALLOW_HTTP=true in the environment",
    ),
    (
        re.compile(r"<Code>(InvalidBucketName|InvalidResourceName|OutOfRangeInput)</Code>"),
        errno.EINVAL, "check the URL and the endpoint",
    ),
    (re.compile(r"169\.254\.169\.254.* status code: 40[013]\b"), errno.EACCES, _NO_CREDENTIALS),
    (re.compile(r" status code: 40[13]\b"), *DENIED),
)  # fmt: skip
_ASKED_FOR_A_TOKEN = re.compile(r"169\.254\.169\.254|performing token request")


def line(error: BaseException, secrets: Sequence[str]) -> str:
    """The client's message: its first line, without secrets. Of the XML that a server sent, its
    code and the first line of its message: more may have what was signed in it."""
    text = str(error).split("\n\nDebug source")[0]
    answer = re.search(r"<Code>([^<]*)</Code>\s*<Message>([^<\n]*)", text)
    if answer is not None:
        text = f"{text.partition('<')[0]}{answer[1]}: {answer[2]}"
    text = re.sub(r"\?[^\s\"')]+", "?...", " ".join(text.split()))
    text = re.sub(r"://[^\s/@]+@", "://...@", text)  # of an endpoint
    for secret in secrets:
        text = text.replace(secret, "...")
    return text[:_MOST]


def reason(error: BaseException) -> tuple[int, str] | None:
    """The errno and the remedy of a request that no repetition makes better; None where one may."""
    text = str(error)
    return next(((code, remedy) for found, code, remedy in _REASONS if found.search(text)), None)


def later(error: BaseException) -> str:
    """The remedy where one may."""
    if _ASKED_FOR_A_TOKEN.search(str(error)):
        return f"call again later; if {_NO_CREDENTIALS}, give them"
    return "call again later"


def of_bucket(error: BaseException) -> bool:
    """Whether an object is missing since its bucket is."""
    return _REASONS[0][0].search(str(error)) is not None


def of_options(text: str) -> str:
    """The remedy for a URL and options that the client takes no store from."""
    if "Account must be specified" in text:
        return (
            "name the storage account: AZURE_STORAGE_ACCOUNT_NAME in the environment, or "
            "storage_options={'account_name': ...}, or "
            "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/..."
        )
    return "check the URL, storage_options and the environment"


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """Values of options that may be secrets, the longest first."""
    return sorted(_texts(options), key=len, reverse=True)


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    """All texts that are no addresses or switches."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif (
            isinstance(value, str) and value  # an empty one is between any two letters
            and re.search("key|secret|token|pass|sas|cred", str(key), re.IGNORECASE)
        ):  # fmt: skip
            yield value

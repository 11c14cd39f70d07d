"""What an error of the client says: in a line, without secrets, and what can be done about it."""

import errno
import re
from collections.abc import Sequence

_MOST = 300  # letters
_SHORT = 6  # letters; a secret of fewer is looked for as a word, else "S" were cut out of "S3"
_NO_CREDENTIALS = (
    "no credentials were found in the environment, a profile or storage_options, so that this "
    "machine was asked for those of its role"
)

NO_BUCKET = errno.ENOENT, "there is no such bucket or container; make it, or correct the URL"
DENIED = errno.EACCES, "check the credentials and what they may do there"
_NO_REQUEST = (
    errno.EINVAL,
    "no request can be made of these options; check the URL, the endpoint, the region, "
    "storage_options and the environment",
)

_NOT_WHOLE = "RequestTimeout|IncompleteBody|BadDigest|Md5Mismatch"  # as it came to the store

# What the text of an error has in it, an errno, and a remedy. The first that fits counts.
_REASONS = (
    (re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>"), *NO_BUCKET),
    (
        re.compile(
            r"builder error.*BadScheme|http://\S+ in \S+ - HTTP error: builder error", re.DOTALL
        ),
        errno.EINVAL,
        "an endpoint with http:// has to be allowed: client_options={'allow_http': True}, or "
        "AWS_ALLOW_HTTP=true, AZURE_ALLOW_HTTP=true in the environment",
    ),
    (re.compile(r"builder error"), *_NO_REQUEST),
    (
        re.compile(r"<Code>(InvalidBucketName|InvalidResourceName|OutOfRangeInput)</Code>"),
        errno.EINVAL, "check the URL and the endpoint",
    ),
    (
        re.compile(r"<Code>(ExpiredToken(Exception)?|InvalidToken|TokenRefreshRequired)</Code>"),
        errno.EACCES, "the credentials are not valid, or not any more; renew them",
    ),
    (
        re.compile(r"<Code>(RequestTimeTooSkewed|RequestExpired)</Code>"),
        errno.EINVAL, "set the clock of this machine right",
    ),
    (
        re.compile(
            r"<Code>(AuthorizationHeaderMalformed|PermanentRedirect|"
            r"IllegalLocationConstraintException)</Code>|incorrectly configured region"
        ),
        errno.EINVAL,
        "check the region (AWS_REGION in the environment, or storage_options={'region': ...}) and "
        "the endpoint",
    ),
    (re.compile(r"169\.254\.169\.254.* status code: 40[013]\b"), errno.EACCES, _NO_CREDENTIALS),
    (re.compile(r" status code: 40[13]\b"), *DENIED),
    (
        re.compile(rf" status code: 400\b(?!.*<Code>({_NOT_WHOLE})</Code>)", re.DOTALL),
        errno.EINVAL,
        "the store takes no such request; check the URL, the endpoint, the region and the "
        "credentials",
    ),
)  # fmt: skip
_REPEATED = re.compile(r"\bafter \d+ retries, max_retries: \d+, retry_timeout: ")
_ASKED_FOR_A_TOKEN = re.compile(r"169\.254\.169\.254|performing token request")
# All that a server has sent is behind this.
_ANSWER = re.compile(
    r"( status code: [^:<]*|Server returned error response|(?=<)):?\s*(.*)", re.DOTALL
)


def line(error: BaseException, secrets: Sequence[str]) -> str:
    """The client's message: its first line, without secrets. Of what a server sent, its code and
    the first line of its message, if it is XML: more may have what was signed in it."""
    text = str(error).split("\n\nDebug source")[0]
    for secret in secrets:
        text = _without(text, secret)
    text = _ANSWER.sub(_answer, text)
    text = re.sub(r"\?[^\s\"')]+", "?...", " ".join(text.split()))
    text = re.sub(r"://[^\s/@]+@", "://...@", text)  # of an endpoint
    return text[:_MOST]


def _without(text: str, secret: str) -> str:
    if len(secret) >= _SHORT:
        return text.replace(secret, "...")
    return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "...", text)


def _answer(found: re.Match[str]) -> str:
    said = (re.search(rf"<{tag}>\s*([^<\n]*)", found[2]) for tag in ("Code", "Message"))
    return ": ".join([found[1].rstrip(), *(each[1].strip() for each in said if each)])


def is_panic(error: BaseException | None) -> bool:
    """Whether the client, which is not written in Python, broke off. Its class cannot be
    imported, and it is no `Exception`."""
    return type(error).__name__ == "PanicException"


def reason(error: BaseException) -> tuple[int, str] | None:
    """The errno and the remedy of a request that no repetition makes better; None where one may."""
    if is_panic(error):
        return _NO_REQUEST
    text = str(error)
    return next(((code, remedy) for found, code, remedy in _REASONS if found.search(text)), None)


def is_denied(error: OSError) -> bool:
    """Whether one of ours says that something is not allowed. Without the right to list, S3 answers
    so, too, of an object that is not there."""
    return error.errno == DENIED[0]


def was_repeated(error: OSError) -> bool:
    """Whether one of ours says that the client has made the request again and again, as a server
    did not answer; not where a body was cut, which the client leaves to us."""
    return _REPEATED.search(error.strerror or "") is not None


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
    if "Duplicate key" in text:
        if "account_name" in text:
            return "the URL names the storage account already: leave it out of storage_options"
        return "it is there twice: leave one out"
    return "check the URL, storage_options and the environment"

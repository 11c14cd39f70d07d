"""What is made of the client's errors, word by word."""

import errno

import pytest

from diskreplay.errors import RemoteError
from diskreplay.remote import refusals

ANSWER = (
    "Object at location a not found: Error performing {} http://host/box/a?sv=1&sig=abc in 2ms - "
    'Server returned non-2xx status code: {}: <?xml version="1.0" encoding="UTF-8"?>\n<Error>\n'
    "  <Code>{}</Code>\n  <Message>It is so.\nRequestId:7\nString to sign was abc</Message>\n"
    "</Error>\n\nDebug source:\nStatus {{ body: abc }}"
)


class PanicException(BaseException):
    """As the client's is named, which cannot be imported."""


def answer(status, code, request="GET"):
    return OSError(ANSWER.format(request, status, code))


def test_a_line():
    assert refusals.line(answer("404 Not Found", "NoSuchKey"), ()) == (
        "Object at location a not found: Error performing GET http://host/box/a?... in 2ms - "
        "Server returned non-2xx status code: 404 Not Found: NoSuchKey: It is so."
    )
    assert refusals.line(OSError("two\n  lines\n\nDebug source:\nmore"), ()) == "two lines"
    assert refusals.line(OSError("GET https://id:word@host/x"), ()) == "GET https://...@host/x"
    assert len(refusals.line(OSError("x" * 999), ())) == 300


def test_of_an_answer_only_its_code_and_its_message_are_said():
    begin = "Error performing GET http://host/a in 2ms - Server returned "
    code, text = "<Code>Its code</Code>", "<Message>its message\nRequestId:7</Message>"
    signed = "<StringToSign>word</StringToSign>"
    for answer, says in (
        (f"<?xml?><Error>{code}{text}{signed}</Error>", ": Its code: its message"),
        (f"<Error>{text}{code}{signed}</Error>", ": Its code: its message"),
        (f"<Error>{code}{signed}{text}</Error>", ": Its code: its message"),
        (f"<Error>{signed}{code}</Error>", ": Its code"),
        (f"<Error>{signed}</Error>", ""),
        (f"<e:Error>{signed}</e:Error>", ""),
        ('{"error": "word: word"}', ""),
        ("word:\n\nword", ""),
        ("", ""),
    ):
        for status in ("non-2xx status code: 403 Forbidden", "error response"):
            said = refusals.line(OSError(f"{begin}{status}: {answer}\n\nDebug source:\nword"), ())
            assert said == f"{begin}{status}{says}"
    assert refusals.line(OSError(f"no status {signed}"), ()) == "no status"


def test_secrets_are_left_out():
    secrets = ["key-1-and-more", "pass-1", "two  words\n", "key-1", "S"]
    said = OSError("key-1-and-more, key-1 and pass-1pass-1 of S3, S and two  words\n")
    assert refusals.line(said, secrets) == "..., ... and ...... of S3, ... and ..."


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (answer("404 Not Found", "NoSuchBucket"), errno.ENOENT),
        (answer("404 Not Found", "ContainerNotFound"), errno.ENOENT),
        (answer("400 Bad Request", "InvalidResourceName"), errno.EINVAL),
        (answer("400 Bad Request", "InvalidBucketName"), errno.EINVAL),
        (answer("403 Forbidden", "AuthorizationFailure"), errno.EACCES),
        (answer("401 Unauthorized", "NoAuthenticationInformation"), errno.EACCES),
        (OSError("GET http://host/a in 4us - HTTP error: builder error"), errno.EINVAL),
        (OSError("GET http://169.254.169.254/x - status code: 400 Bad Request"), errno.EACCES),
        (OSError("GET http://169.254.169.254/x - status code: 404 Not Found"), None),
        (OSError("GET http://169.254.169.254/x - error sending request"), None),
        (OSError("HTTP error: builder error ... BadScheme"), errno.EINVAL),
        (OSError("HTTP error: builder error"), errno.EINVAL),
        (answer("400 Bad Request", "ExpiredToken"), errno.EACCES),
        (answer("400 Bad Request", "InvalidToken"), errno.EACCES),
        (answer("400 Bad Request", "AuthorizationHeaderMalformed"), errno.EINVAL),
        (answer("403 Forbidden", "RequestTimeTooSkewed"), errno.EINVAL),
        (answer("400 Bad Request", "SomethingElse"), errno.EINVAL),
        (OSError("HEAD http://host/a - status code: 400 Bad Request"), errno.EINVAL),
        (
            OSError(
                "Received redirect without LOCATION, this normally indicates an incorrectly "
                "configured region"
            ),
            errno.EINVAL,
        ),
        (PanicException("unwrap"), errno.EINVAL),
        (answer("400 Bad Request", "IncompleteBody"), None),
        (answer("400 Bad Request", "RequestTimeout"), None),
        (answer("409 Conflict", "ContainerBeingDeleted"), None),
        (answer("500 Internal Server Error", "InternalError"), None),
        (answer("503 Slow Down", "ServerBusy"), None),
        (OSError("a body of 403 bytes"), None),
    ],
)
def test_what_no_repetition_makes_better(error, code):
    why = refusals.reason(error)
    assert (why and why[0]) == code
    assert refusals.of_bucket(error) == (code == errno.ENOENT)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (answer("400 Bad Request", "ExpiredToken"), "renew them"),
        (answer("400 Bad Request", "RequestTimeTooSkewed"), "clock"),
        (answer("403 Forbidden", "RequestTimeTooSkewed"), "clock"),
        (answer("400 Bad Request", "AuthorizationHeaderMalformed"), "check the region"),
        (answer("400 Bad Request", "SomethingElse"), "takes no such request"),
        (OSError("in 4us - HTTP error: builder error\n\nDebug source: BadScheme"), "allow_http"),
        (OSError("GET http://host/a in 4us - HTTP error: builder error"), "allow_http"),
        (
            OSError("GET https://host/a in 4us - HTTP error: builder error"),
            "no request can be",
        ),
        (PanicException("unwrap"), "no request can be"),
    ],
)
def test_remedies(error, remedy):
    assert remedy in refusals.reason(error)[1]


def test_what_is_denied():
    assert refusals.is_denied(RemoteError(refusals.DENIED[0], "denied", "a"))
    assert not refusals.is_denied(RemoteError(errno.EINVAL, "clock", "a"))


def test_what_the_client_has_repeated():
    for says, is_it in (
        ("GET in 3s, after 2 retries, max_retries: 2, retry_timeout: 3s - HTTP error", True),
        ("3 bytes came where 9 are expected", False),
        (None, False),
    ):
        assert refusals.was_repeated(RemoteError(errno.EIO, says, "a")) == is_it


def test_later():
    assert refusals.later(OSError("error sending request")) == "call again later"
    for token in ("performing token request: no answer", "http://169.254.169.254/latest/token"):
        assert "no credentials were found" in refusals.later(OSError(token))


def test_options():
    assert "AZURE_STORAGE_ACCOUNT_NAME" in refusals.of_options("Account must be specified")
    twice = "Duplicate key {} provided"
    named = refusals.of_options(twice.format("azure_storage_account_name"))
    assert named.startswith("the URL names the storage account already")
    assert "leave one out" in refusals.of_options(twice.format("aws_region"))
    assert refusals.of_options("else") == "check the URL, storage_options and the environment"

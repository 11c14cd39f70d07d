"""What is made of the client's errors, word by word."""

import errno

import pytest

from diskreplay.remote import refusals

ANSWER = (
    "Object at location a not found: Error performing {} http://host/box/a?sv=1&sig=abc in 2ms - "
    'Server returned non-2xx status code: {}: <?xml version="1.0" encoding="UTF-8"?>\n<Error>\n'
    "  <Code>{}</Code>\n  <Message>It is so.\nRequestId:7\nString to sign was abc</Message>\n"
    "</Error>\n\nDebug source:\nStatus {{ body: abc }}"
)


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


def test_secrets_are_left_out():
    options = {
        "account_key": "key-1", "client_options": {"timeout": 1, "proxy_password": "pass-1"},
        "sas_key": "", "endpoint": "http://host", "secret": "key-1-and-more", "allow_key": True,
    }  # fmt: skip
    secrets = refusals.secrets_of(options)
    assert secrets == ["key-1-and-more", "pass-1", "key-1"]
    said = OSError("key-1-and-more, key-1 and pass-1 of http://host")
    assert refusals.line(said, secrets) == "..., ... and ... of http://host"


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


def test_later():
    assert refusals.later(OSError("error sending request")) == "call again later"
    for token in ("performing token request: no answer", "http://169.254.169.254/latest/token"):
        assert "no credentials were found" in refusals.later(OSError(token))


def test_options():
    assert "AZURE_STORAGE_ACCOUNT_NAME" in refusals.of_options("Account must be specified")
    assert refusals.of_options("else") == "check the URL, storage_options and the environment"

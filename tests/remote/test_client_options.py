"""What of options and the environment is refused before a store is made, and what is a secret."""

import os

import pytest

from diskreplay.errors import InvalidInputError
from diskreplay.remote import client_options


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


WRONG = [
    "localhost:9000", "127.0.0.1:9000", "http:/127.0.0.1:9000", "", "nowhere", "http://",
    "http://:9000", "http://a b", "http://host:port", "http://user:pa/ss@host", "ftp://host",
    "localhost:10000/account", "http://[::1", " http://host",
]  # fmt: skip


@pytest.mark.parametrize("endpoint", WRONG)
@pytest.mark.parametrize(
    ("scheme", "option", "variable"),
    [
        ("s3", "endpoint", "AWS_ENDPOINT"),
        ("s3", "aws_endpoint_url", "AWS_ENDPOINT_URL_S3"),
        ("az", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        ("abfss", "authority_host", "AZURE_MSI_ENDPOINT"),
        ("gs", "base_url", "GOOGLE_BASE_URL"),
    ],
)
def test_an_endpoint_that_is_no_url(monkeypatch, endpoint, scheme, option, variable):
    for options in ({option: endpoint}, {"config": {option: endpoint}}):
        with pytest.raises(InvalidInputError, match=f"^{option} in storage_options: http://") as no:
            client_options.check(scheme, options)
        assert "ss@" not in str(no.value)
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(InvalidInputError, match=f"^{variable} in the environment: http://"):
        client_options.check(scheme, {})
    client_options.check(scheme, {"endpoint": "http://host:9000"})  # which counts more
    client_options.check("s3" if scheme != "s3" else "az", {})  # the client does not read it


@pytest.mark.parametrize(
    "options",
    [
        {}, {"endpoint": "https://host"}, {"endpoint": "http://user:word@[::1]:9000/path"},
        {"use_fabric_endpoint": "true", "region": "somewhere"}, {"endpoint": None},
        {"service_account_key": '{\n"private_key": "a"\n}'}, {"timeout": 5},
        {"client_options": {"proxy_url": "localhost:3128", "default_headers": {"a": b"b"}}},
    ],
)  # fmt: skip
def test_what_the_client_takes(monkeypatch, options):
    # Of other programs.
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "nowhere")
    monkeypatch.setenv("AWS_LINES", "one\ntwo")
    client_options.check("s3", options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"session_token": "word\n"}, "session_token"),
        ({"region": "some\x7fwhere"}, "region"),
        ({"config": {"aws_access_key_id": "\rword"}}, "aws_access_key_id"),
        ({"client_options": {"default_headers": {"a": b"word\n"}}}, "default_headers"),
    ],
)
def test_control_characters(monkeypatch, options, name):
    with pytest.raises(InvalidInputError, match=f"^{name} in storage_options: .*take it out") as no:
        client_options.check("s3", options)
    assert "word" not in str(no.value)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("s3", "AWS_SECRET_ACCESS_KEY"), ("s3", "AWS_REGION"), ("az", "AZURE_STORAGE_SAS_KEY"),
     ("https", "AZURE_CLIENT_SECRET"), ("gs", "GOOGLE_BASE_URL")],
)  # fmt: skip
def test_control_characters_in_the_environment(monkeypatch, scheme, name):
    monkeypatch.setenv(name, "word\n")
    says = rf"^{name} in the environment: .*'\\n' at place 4 of 5"
    with pytest.raises(InvalidInputError, match=says) as no:
        client_options.check(scheme, {})
    assert "word" not in str(no.value)


def test_secrets_of_options():
    options = {
        "account_key": "key-1", "client_options": {"timeout": 1, "proxy_password": "pass-1"},
        "sas_key": "", "endpoint": "http://host", "secret": "key-1-and-more", "allow_key": True,
    }  # fmt: skip
    assert client_options.secrets_of(options) == ["key-1-and-more", "pass-1", "key-1"]


@pytest.mark.parametrize(
    ("options", "secrets"),
    [
        ({"sas_key": "?sv=20&sig=ab%2Bc%3D"}, {"sv=20", "sig=ab%2Bc%3D", "ab%2Bc%3D", "ab+c="}),
        ({"azure_storage_sas_token": "sp=r&sig=ab+c="}, {"sp=r", "ab+c=", "ab%2Bc%3D"}),
        ({"session_token": "a/b"}, {"a/b", "a%2Fb"}),
        (
            {"client_options": {"default_headers": {"X-Any": "Bearer word", "Y": b"other"}}},
            {"Bearer word", "word", "other"},
        ),
        ({"endpoint": "http://user:pa@ss@host"}, {"user:pa@ss", "pa@ss"}),
        ({"client_options": {"proxy_url": "user:word@host x"}}, {"word"}),
        ({"config": {"secret_access_key": "word"}}, {"word"}),
    ],
)
def test_forms_of_secrets(options, secrets):
    assert secrets <= set(client_options.secrets_of(options))


def test_secrets_of_the_environment(monkeypatch):
    for name, text in {
        "AWS_SESSION_TOKEN": "one-word", "AZURE_STORAGE_SAS_KEY": "sp=r&sig=two-word",
        "GOOGLE_SERVICE_ACCOUNT_KEY": "{three}", "AWS_ENDPOINT": "http://me:four-word@host",
        "https_proxy": "http://me:five-word@host", "AWS_REGION": "somewhere",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a/file", "AWS_SHARED_CREDENTIALS_FILE": "/b/file",
        "OTHER_TOKEN": "no matter",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    found = set(client_options.secrets_of({}))
    assert {"one-word", "two-word", "{three}", "four-word", "five-word"} <= found
    assert found.isdisjoint({"somewhere", "/a/file", "/b/file", "no matter"})

"""Which directory a file:// URL names."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from diskreplay import errors
from diskreplay.remote import RemoteCheckpoints
from diskreplay.remote.directory_url import directory_of


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///no/such", b"/no/such"),
        ("file://localhost/no/such", b"/no/such"),
        ("file:/no/such", b"/no/such"),
        ("file:///no/a%20b%23%25", b"/no/a b#%"),
        ("file:///no/a%b", b"/no/a%b"),
        ("file:///no/%ff%C3%A4", b"/no/\xff\xc3\xa4"),
        ("file:///no/\xe4", b"/no/\xc3\xa4"),
        ("file:///no/\udcff", b"/no/\xff"),
    ],
)
def test_paths(url, path):
    assert directory_of(urlsplit(url)) == Path(os.fsdecode(path))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://", "names no directory"),
        ("file:", "names no directory"),
        ("file:///", "names no directory"),
        ("file://localhost", "names no directory"),
        ("file:runs/pong", "names no directory"),
        ("file://runs/pong", "file://runs names a machine"),
        ("file:///no/a%00b", "%00"),
        ("file:///no/\ud800", "half a character"),
        ("file:///dev/null", "/dev/null is a file"),
        ("file:///dev/null/x", "/dev/null is a file"),
    ],
)
def test_what_is_refused(url, says):
    with pytest.raises(errors.InvalidInputError, match=says):
        RemoteCheckpoints(url)


def test_a_name_with_spaces(run, tmp_path):
    """What `Path.as_uri` makes of it is what it is."""
    run.add(50)
    place = tmp_path / "a b%20#c"
    RemoteCheckpoints(place.as_uri()).push(run.save(1))
    assert (place / "checkpoints.json").is_file()
    assert [one.suffix for one in RemoteCheckpoints(place.as_uri()).list()] == ["1"]


def test_inside_a_checkpoint(run, tmp_path):
    run.add(50)
    path = run.save(1)
    with pytest.raises(errors.InvalidInputError, match="inside the checkpoint"):
        RemoteCheckpoints(f"file://{path}/bucket")

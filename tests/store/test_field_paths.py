"""Where the files of a field are: as docs/format.md says."""

import numpy as np
import pytest

from diskreplay.store.field import Field
from diskreplay.store.field_paths import FieldPaths


def paths(tmp_path, **options):
    return FieldPaths(tmp_path, 5, Field("a/b", (3, 4), np.dtype("u1"), **options))


def test_every_file(tmp_path):
    found, live = paths(tmp_path), tmp_path / "is_final" / "live"
    assert found.directory == tmp_path / "a" / "b"
    assert found.chunk(7, 2) == tmp_path / "a" / "b" / "c.7.2.0.0"
    assert found.tail == live / "tail.5"
    assert found.open_segments == live / "open.5"
    assert found.open_segment(7, 2) == live / "open.5" / "7.2"
    assert found.spare(9) == live / "spare.5.9"
    assert found.unsealed() == live / "unsealed.5.0"
    assert found.unsealed(3) == live / "unsealed.5.3"


@pytest.mark.parametrize(
    ("options", "has_private"),
    [({}, False), ({"compressor": "lz4"}, True), ({"mutable": True}, True)],
)
def test_what_goes_with_a_segment(tmp_path, options, has_private):
    found = paths(tmp_path, **options)
    private = [found.open_segment(1, 0)] * has_private
    assert found.of_segment(1, 0) == [*private, found.chunk(1, 0)]


def test_where_values_may_be_replaced_the_copy_is_the_newest(tmp_path):
    """Also one that is a link to nothing: whoever opens it says what is wrong with it."""
    for mutable in (False, True):
        found = paths(tmp_path, mutable=mutable)
        found.open_segment(1, 0).unlink(missing_ok=True)
        assert found.live_chunk(1, 0) == found.chunk(1, 0)
        found.open_segments.mkdir(parents=True, exist_ok=True)
        found.open_segment(1, 0).symlink_to("nothing")
        expected = found.open_segment(1, 0) if mutable else found.chunk(1, 0)
        assert found.live_chunk(1, 0) == expected

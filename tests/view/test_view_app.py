"""What the page is answered."""

import errno
import os

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

import diskreplay
from diskreplay.errors import StoreMovedError
from diskreplay.view import app, shown_stores
from diskreplay.view.shown_stores import key_of
from tests.pictures.making import record
from tests.view.serving import asked, of, serving


def test_the_stores(tmp_path):
    record(tmp_path / "runs" / "store", (3,))
    with serving(tmp_path) as client:
        (store,) = asked(client, "stores")["stores"]
    assert store["title"].endswith("runs/store")
    assert (store["key"], store["is_checkpoint"]) == (key_of(tmp_path / "runs" / "store"), False)


def test_what_is_not_shown_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(shown_stores, "_MOST_STORES", 1)
    for name in "abc":
        record(tmp_path / name, (3,))
    with serving(tmp_path) as client:
        found = asked(client, "stores")
    assert len(found["stores"]) == 1
    assert found["left_out"] == {"stores": 2, "checkpoints": 0, "directories": 0}


def test_runs_of_one_environment_are_told_apart(tmp_path):
    for name in ("a", "b"):
        store = tmp_path / "runs" / name / "replay"
        record(store, (3,))
        with diskreplay.open(store, "a") as buffer:
            buffer.set_metadata({"env_id": "Pong"})
    record(tmp_path / "runs" / "c" / "replay", (3,))
    with serving(tmp_path / "runs") as client:
        titles = [store["title"] for store in asked(client, "stores")["stores"]]
    assert titles[:2] == ["Pong · a", "Pong · b"]
    assert titles[2].endswith("runs/c/replay")
    stores = [tmp_path / "runs" / name / "replay" for name in ("a", "b")]
    with serving(*stores) as client:  # each was given by itself
        titles = [store["title"] for store in asked(client, "stores")["stores"]]
    assert titles == ["Pong · a", "Pong · b"]


def test_a_look_is_sent_once(tmp_path):
    record(tmp_path / "store", (3, 4))
    with serving(tmp_path) as client:
        look = asked(client, of(tmp_path / "store", "look"))
        assert look["episodes"]["count"] == 2
        again = asked(client, of(tmp_path / "store", "look"), seen=look["version"])
    assert again == {"version": look["version"], "unchanged": True}


def test_a_store_that_is_not_there(tmp_path):
    with serving(tmp_path) as client:
        answered = client.get("/api/stores/nothing/pulse")
        assert answered.status_code == 404
        assert "none with this key" in answered.json()["error"]


def test_a_number_that_is_none(tmp_path):
    record(tmp_path / "store", (3,))
    with serving(tmp_path) as client:
        for text in ("x", "nan"):
            answered = client.get(f"/api/{of(tmp_path / 'store', 'pulse')}", params={"after": text})
            assert answered.status_code == 404
            assert answered.json()["error"] == f"after: a number expected, found '{text}'"


@pytest.mark.parametrize(("moves", "code"), [(1, 200), (3, 200), (4, 409)])
def test_a_store_that_is_loaded_amid_an_answer(tmp_path, monkeypatch, moves, code):
    asked_for = []

    def answer(_readers, _request):
        asked_for.append(None)
        if len(asked_for) <= moves:
            raise StoreMovedError(errno.ESTALE, "moved", str(tmp_path))
        return {"fine": True}

    monkeypatch.setattr(app, "_ANSWERS", [("once", answer)])
    with serving(tmp_path) as client:
        answered = client.get("/api/once")
    assert answered.status_code == code
    assert answered.json() == {"fine": True} or "moved" in answered.json()["error"]


def test_a_damaged_store_is_said_to_be(tmp_path):
    record(tmp_path / "store", (3,))
    with serving(tmp_path) as client:
        asked(client, "stores")
        (tmp_path / "store" / "zarr.json").write_text("{")
        pulse = asked(client, of(tmp_path / "store", "pulse"))
        assert pulse["state"] == "unreadable"
        assert "zarr.json" in pulse["message"]
        answered = client.get(f"/api/{of(tmp_path / 'store', 'look')}")
        assert answered.status_code == 409
        assert "zarr.json" in answered.json()["error"]


def test_a_path_that_is_no_utf8(tmp_path):
    store = tmp_path / os.fsdecode(b"st\xffre")
    try:
        record(store, (3,))
    except OSError:
        pytest.skip("this file system wants UTF-8")
    with serving(tmp_path) as client:
        (found,) = asked(client, "stores")["stores"]
        assert asked(client, f"stores/{found['key']}/look")["episodes"]["count"] == 1


@pytest.mark.parametrize("digits", [19, 5000])
def test_an_address_with_a_number_of_many_digits(tmp_path, digits):
    record(tmp_path / "store", (3,))
    with serving(tmp_path) as client:
        for what in ("episodes/{}", "episodes/{}/steps", "rows/{}", "rows/{}/picture"):
            answered = client.get(f"/api/{of(tmp_path / 'store', what.format('1' * digits))}")
            assert answered.status_code == 404
        last = of(tmp_path / "store", f"rows/{'9' * 18}")
        assert "error" in client.get(f"/api/{last}").json()

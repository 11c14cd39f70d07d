"""Who may ask, and what a browser is told about the answer."""

from urllib.parse import urljoin

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx2")

from tests.pictures.making import record
from tests.view.serving import HOST, PORT, TOKEN, serving

EVERYWHERE = [
    "/",
    "/static/dom.js",
    "/static/view.css",
    "/api/stores",
    "/api/stores/x/pulse",
    "/no",
]


@pytest.fixture
def stranger(tmp_path):
    record(tmp_path / "store", (3,))
    with serving(tmp_path, token=None) as client:
        yield client


@pytest.mark.parametrize("path", EVERYWHERE)
def test_nothing_without_the_token(stranger, path):
    for wrong in ({}, {"Authorization": "Bearer no"}, {"Cookie": f"diskreplay-{PORT}=no"},
                  {"Cookie": f"diskreplay-1={TOKEN}"}):  # fmt: skip
        refused = stranger.get(path, headers=wrong)
        assert refused.status_code == 403
        assert "token" in refused.text
        assert TOKEN not in refused.text
    assert stranger.get(f"{path}?token=wrong").status_code == 403


def test_the_token_of_the_address_goes_into_a_cookie(stranger):
    entered = stranger.get(f"/?token={TOKEN}")
    assert (entered.status_code, entered.headers["location"]) == (303, "./")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert stranger.get("/").status_code == 200  # with the cookie
    assert stranger.get("/api/stores").status_code == 200


def test_behind_a_proxy_with_a_path_the_page_stays_below_it(tmp_path):
    """As of Jupyter or nginx, which take that path away before they ask."""
    record(tmp_path / "store", (3,))
    with serving(tmp_path, token=None) as client:
        entered = client.get(f"/?token={TOKEN}")
    assert urljoin("https://hub/user/proxy/8642/?token=x", entered.headers["location"]) == (
        "https://hub/user/proxy/8642/"
    )
    # Without a path a browser takes that of the address: nothing else on that host gets the token.
    assert "path=" not in entered.headers["set-cookie"].lower()


def test_the_token_opens_nothing_but_the_page_by_the_address(stranger):
    """Else it would stand in the addresses of all that is asked for."""
    assert stranger.get(f"/api/stores?token={TOKEN}").status_code == 403
    assert stranger.get(f"/?token={TOKEN}&token={TOKEN}").status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_somebody_else_leads_here_is_refused(tmp_path, host):
    with serving(tmp_path) as client:
        assert client.get("/api/stores", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": HOST}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": f"http://localhost:{PORT}"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
    ],
)
def test_a_page_from_elsewhere_is_refused(tmp_path, headers, status):
    with serving(tmp_path) as client:
        assert client.get("/api/stores", headers=headers).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_sent(tmp_path, method):
    with serving(tmp_path) as client:
        for path in EVERYWHERE:
            assert client.request(method, path).status_code == 405


@pytest.mark.parametrize("path", EVERYWHERE)
def test_no_answer_may_run_a_script_of_a_store(tmp_path, path):
    with serving(tmp_path) as client:
        headers = client.get(path).headers
    policy = dict(
        part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"]
)
def test_only_files_of_the_page_are_served(tmp_path, path):
    with serving(tmp_path) as client:
        assert client.get(path).status_code == 404


def test_the_page_asks_for_its_own_files_only(tmp_path):
    import re

    with serving(tmp_path) as client:
        page = client.get("/").text
        files = re.findall(r'(?:src|href)="([^"#]+)"', page)
        assert len(files) > 8
        for name in files:
            assert client.get(f"/{name}").status_code == 200, name
    assert not re.search(r"<script(?![^>]* src=)|<style| on\w+=|https?://", page)

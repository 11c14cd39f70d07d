"""The page's application without a server."""

import contextlib
import io

import numpy as np
from starlette.testclient import TestClient

from diskreplay.view.app import make_app
from diskreplay.view.shown_stores import ShownStores, key_of

TOKEN, PORT = "a-token-of-the-tests", 8642
HOST = f"http://127.0.0.1:{PORT}"


@contextlib.contextmanager
def serving(*paths, token=TOKEN):
    """A client that has the token; None: one without."""
    app = make_app(ShownStores(paths), token=TOKEN, port=PORT, hosts=["127.0.0.1", "localhost"])
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with TestClient(app, base_url=HOST, headers=headers, follow_redirects=False) as client:
        yield client


def asked(client, path, **query):
    """The document at a path below ``api/``."""
    answered = client.get(f"/api/{path}", params=query)
    assert answered.status_code == 200, answered.text
    return answered.json()


def of(path, rest=""):
    """The path of a store's documents."""
    return f"stores/{key_of(path)}/{rest}"


def pixels(client, path, **query):
    """The picture at a path below ``api/``, as an array."""
    from PIL import Image

    answered = client.get(f"/api/{path}", params=query)
    assert (answered.status_code, answered.headers["content-type"]) == (200, "image/png")
    return np.asarray(Image.open(io.BytesIO(answered.content)))

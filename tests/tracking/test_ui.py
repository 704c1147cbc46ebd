"""MLflow's application behind a password."""

import asyncio
from base64 import b64encode

import pytest

from flbench.tracking.ui import Guarded

PASSWORD = "right:one"


def basic(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


def sent(kind: str, path: str, *authorization: bytes) -> list[str]:
    """Return the types of the messages that a request gets, or `inside` if it is let through."""
    messages = []

    async def inside(scope, receive, send):
        messages.append({"type": "inside"})

    async def send(message):
        messages.append(message)

    headers = [(b"authorization", value) for value in authorization]
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(Guarded(inside, PASSWORD)(scope, None, send))
    assert all(message.get("status", 401) == 401 for message in messages)
    return [message["type"] for message in messages]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "authorization",
    [
        (),
        (b"",),
        (b"Basic",),
        (b"Basic !",),
        (b"Bearer right:one",),
        (basic(PASSWORD.replace(":", "")),),
        (basic("flbench:"),),
        (basic("flbench:right"),),
        (basic(f"flbench:{PASSWORD} "),),
        (basic("flbench:\udcff".encode("utf-8", "surrogateescape").decode("latin-1")),),
        (basic(f"flbench:{PASSWORD}"), basic("flbench:wrong")),
    ],
)
def test_request_without_the_password_is_refused(kind, authorization):
    for path in ("/", "/health", "/get-artifact"):
        assert "inside" not in sent(kind, path, *authorization)


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("user", ["", "flbench", "ann"])
def test_request_with_the_password_is_let_through(kind, user):
    assert sent(kind, "/", basic(f"{user}:{PASSWORD}")) == ["inside"]


def test_the_start_needs_no_password():
    assert sent("lifespan", "") == ["inside"]

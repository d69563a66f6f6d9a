"""Nothing is answered to whoever may not ask, and no request leads anywhere but to its own route."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard

from evsys_sdk.dashboard.client.connection import API_PREFIX  # noqa: E402
from evsys_sdk.dashboard.server import security  # noqa: E402
from evsys_sdk.dashboard.server.app import local_app  # noqa: E402
from evsys_sdk.dashboard.server.auth import LocalGate  # noqa: E402
from evsys_sdk.dashboard.server.page import PageFiles  # noqa: E402
from evsys_sdk.dashboard.server.routes.routing import GuardedRouter, list_routes  # noqa: E402

from .serving import Api, AppThread, running_app  # noqa: E402
from .test_api import experiment, run, step  # noqa: E402

BODIES: dict[str, Any] = {
    "notes": {"text": "x"},
    "requests": {"kind": "stop"},
    "step": {"step": 1, "metrics": {}},
    "eval": {"metrics": {}},
    "predictions": {"rows": []},
    "keys": {"scopes": ["read"]},
}


@pytest.fixture(scope="module")
def routes() -> list[tuple[str, str, str]]:
    """Method, path and scope of every route of the server."""
    from evsys_sdk.dashboard.server.app import server_app
    from evsys_sdk.dashboard.server.storage.database import connect

    app = server_app(connect("sqlite-never-opened.db"), ["x"]).app.app

    async def end() -> None:
        async with app.router.lifespan_context(app):  # ends the thread that writes
            pass

    asyncio.run(end())
    page = app.routes.pop()  # it has no scope: it is for everybody
    assert page.path == "/{path:path}"
    return [route for route in list_routes(app) if route[2] != "none"]


def ask(http: httpx.Client, method: str, path: str) -> httpx.Response:
    """A request that would be fine if one were allowed to make it."""
    filled = re.sub(r"\{(\w+)\}", lambda found: "0" if found[1] == "piece" else "e1", path.removeprefix(API_PREFIX))
    body = next((body for word, body in BODIES.items() if filled.rstrip("/").endswith(word)), {"fields": {}})
    return http.request(method, filled, params={"seq": 0, "a": "e1", "b": "e1"}, json=body if method != "GET" else None)


def test_every_route_refuses_who_has_no_key(dashboard: Any, routes: list[tuple[str, str, str]]) -> None:
    assert len(routes) > 40
    with dashboard.client(None) as nobody, dashboard.client("evk_wrong_key") as stranger:
        for method, path, _ in routes:
            for http in (nobody, stranger):
                answer = ask(http, method, path)
                assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized"), (method, path)


def test_every_route_refuses_a_key_without_its_scope(dashboard: Any, routes: list[tuple[str, str, str]]) -> None:
    lesser = {"read": "write", "write": "read", "admin": "write"}
    keys = {scope: dashboard.new_key(scope) for scope in ("read", "write")}
    for method, path, scope in routes:
        with dashboard.client(keys[lesser[scope]]) as http:
            answer = ask(http, method, path)
            assert answer.status_code == 403, (method, path, answer.text)


def test_no_route_shows_or_changes_anything_of_another_project(
    dashboard: Any, routes: list[tuple[str, str, str]], servers: dict[str, Any]
) -> None:
    dashboard.send(experiment(name="secret-name"), run("e1"), step(1, of="e1", loss=1.0))
    before = dashboard.http.read("/experiments/e1")
    server = next(server for server in servers.values() if server.url == dashboard.url)
    other = server.new_project()
    admin = other.client(other.new_key("read", "write", "admin"))
    with admin:
        for method, path, _ in routes:
            if path.endswith("/events"):
                continue
            answer = ask(admin, method, path)
            assert "secret-name" not in answer.text, (method, path)
        headers = {"X-Evsys-Project": dashboard.id}
        assert admin.get("/experiments", headers=headers).status_code == 403
    other.close()
    assert dashboard.http.read("/experiments/e1") == before


def test_a_key_that_was_revoked_or_is_too_old_ends_at_once(dashboard: Any) -> None:
    admin = dashboard.client(dashboard.new_key("admin"))
    body = admin.post("/keys", json={"name": "short", "scopes": ["read"]}).json()
    with dashboard.client(body["key"]) as http:
        assert http.get("/overview").status_code == 200
        cookie = http.post("/session", json={"token": body["key"]}).cookies["evsys_session"]
        assert admin.delete(f"/keys/{body['id']}").status_code == 204
        assert http.get("/overview").status_code == 401
    with dashboard.client(None) as browser:
        browser.cookies.set("evsys_session", cookie)
        assert browser.get("/overview").status_code == 401
    with dashboard.client(dashboard.new_key("read", expires=time.time() - 1)) as http:
        assert http.get("/overview").status_code == 401
    listed = admin.get("/keys").json()
    assert {"id": body["id"], "revoked": True}.items() <= next(k for k in listed if k["id"] == body["id"]).items()
    assert body["key"] not in json.dumps(listed)
    assert "hash" not in listed[0]
    assert admin.delete("/keys/none").status_code == 404
    admin.close()


def test_only_the_hash_of_a_key_is_in_the_database(dashboard: Any) -> None:
    from sqlalchemy import select

    from evsys_sdk.dashboard.server.storage import schema

    with dashboard.engine.connect() as connection:
        rows = connection.execute(select(schema.api_key)).all()
    assert rows
    assert dashboard.key.split("_")[-1] not in repr(rows)


def test_a_browser_signs_in_for_a_cookie_that_scripts_cannot_read(dashboard: Any) -> None:
    with dashboard.client(None) as browser:
        assert browser.get("/session").status_code == 401
        assert browser.post("/session", json={"token": "wrong"}).status_code == 401
        answer = browser.post("/session", json={"token": dashboard.key})
        assert answer.json()["project"] == dashboard.id
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert browser.get("/session").json()["scopes"] == ["read", "write"]
        assert browser.delete("/session", headers={"x-evsys-request": "1"}).status_code == 204
        assert browser.get("/session").status_code == 401


def test_a_change_with_a_cookie_needs_the_pages_own_header(dashboard: Any) -> None:
    dashboard.send(experiment())
    with dashboard.client(None) as browser:
        browser.post("/session", json={"token": dashboard.key})
        note = {"json": {"text": "x"}}
        assert browser.post("/experiments/e1/notes", **note).status_code == 403
        assert browser.post("/experiments/e1/notes", headers={"x-evsys-request": "1"}, **note).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_change_that_another_page_makes_is_refused(dashboard: Any, headers: dict[str, str]) -> None:
    dashboard.send(experiment())
    answer = dashboard.http.post("/experiments/e1/notes", json={"text": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "foreign_origin")
    assert dashboard.http.post("/session", json={"token": dashboard.key}, headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", ""])
def test_a_name_that_is_not_theservers_is_not_answered_to(dashboard: Any, host: str) -> None:
    answer = dashboard.http.get("/overview", headers={"host": host})
    assert answer.status_code in (400, 421)
    assert "total" not in answer.text


def test_a_body_that_is_too_long_is_refused_with_and_without_a_declared_length(dashboard: Any) -> None:
    def endless() -> Any:
        for _ in range(security.LARGEST_BODY // 65_536 + 2):
            yield b" " * 65_536

    path, query = "/sdk/streams/s/", {"seq": 0}
    assert dashboard.http.post(path, params=query, content=b" " * (security.LARGEST_BODY + 1)).status_code == 413
    assert dashboard.http.post(path, params=query, content=endless()).status_code == 413
    assert dashboard.http.post("/sdk/experiments/", content=endless()).status_code == 413


INJECTIONS = [
    "' OR 1=1 --",
    '"; DROP TABLE experiment; --',
    "%",
    "_",
    "\\",
    "{}",
    "../../etc/passwd",
    "..%2f..%2fetc",
    "\u0000",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_text_stays_text_wherever_it_is_put(dashboard: Any, text: str) -> None:
    dashboard.send(experiment("other", name="other"), experiment("e1", name=text or "x", tags=[text]))
    http = dashboard.http
    for query in ({"q": text}, {"tag": text}, {"model": text}, {"status": text}, {"parent": text}):
        response = http.get("/experiments", params=query)
        assert response.status_code == (400 if text == "\x00" else 200)
        assert len(response.json().get("items", [])) < 2
    answer = http.get(f"/experiments/{quote(text, safe='')}")
    assert answer.status_code in (200, 400, 404)
    assert "root:" not in answer.text
    assert http.get("/experiments", params={"sort": text}).status_code == 400
    assert http.get("/experiments", params={"cursor": text}).status_code == 400
    assert http.read("/experiments")["total"] == 2


def raw_get(port: int, target: str, token: str = "") -> bytes:
    """A request whose path no one has tidied up."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{authorization}Connection: close\r\n\r\n".encode()
        )
        received = b""
        while more := connection.recv(65_536):
            received += more
        return received


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>the page</title>", "utf-8")
    (folder / "assets" / "app-1a2b.js").write_text("export {}", "utf-8")
    (tmp_path / "secret.txt").write_text("root:secret", "utf-8")
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr("evsys_sdk.dashboard.server.app.PageFiles", lambda: PageFiles(folder))
    return folder


@pytest.fixture
def local(tmp_path: Path, page: Path) -> Any:
    from evsys_sdk.dashboard.local.records import LocalRecords

    gate = LocalGate()
    source = LocalRecords([], tmp_path)
    with running_app(lambda hosts: local_app(source, gate, hosts, name="here")) as server:
        server.token = gate.token
        yield server


def test_the_page_is_served_under_a_strict_policy(local: AppThread) -> None:
    with httpx.Client(base_url=local.url, trust_env=False) as http:
        for path in ("/", "/experiments/e1", "/anything/else"):
            answer = http.get(path)
            assert answer.status_code == 200
            assert "the page" in answer.text
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe-eval" not in policy
            assert "script-src 'self';" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-cache"
        script = http.get("/assets/app-1a2b.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]
        assert http.post("/").status_code == 405
        assert http.get(f"{API_PREFIX}/session").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "target",
    ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt", "//etc/passwd", "/..%5csecret.txt", "/%00"],
)
def test_no_address_leads_out_of_the_pages_folder(local: AppThread, target: str) -> None:
    assert b"root:" not in raw_get(local.port, target)


def test_without_the_page_the_server_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evsys_sdk.dashboard.local.records import LocalRecords

    monkeypatch.setattr(PageFiles.__init__, "__defaults__", (tmp_path,))
    source = LocalRecords([], tmp_path)
    with running_app(lambda hosts: local_app(source, LocalGate(), hosts, name="here")) as server:
        answer = httpx.get(server.url, trust_env=False)
    assert answer.status_code == 200
    assert "released\nwheel" in answer.text


def test_local_mode_needs_its_token_and_has_no_routes_for_clients(local: Any) -> None:
    with Api(local.url) as nobody, Api(local.url, local.token) as http:
        assert nobody.get("/overview").status_code == 401
        assert nobody.get("/overview", params={"token": local.token}).status_code == 401
        assert http.read("/session")["mode"] == "local"
        assert http.read("/overview")["total"] == 0
        assert http.post("/sdk/experiments/", json={"fields": {}}).status_code in (404, 405)


def test_a_route_that_declares_no_scope_is_never_mounted() -> None:
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    GuardedRouter(app, "fine").add("GET", "/fine", "read")(lambda: None)
    assert [scope for *_, scope in list_routes(app)] == ["read"]
    app.add_api_route("/open", lambda: None)
    with pytest.raises(RuntimeError, match="/open declares no scope"):
        list_routes(app)


def test_operators_are_answered_without_a_key(dashboard: Any) -> None:
    with dashboard.client(None) as nobody:
        root = str(nobody.base_url).split("/api")[0].rstrip("/")
        assert httpx.get(f"{root}/health").json() == {"status": "ok"}
        assert httpx.get(f"{root}/ready").json() == {"status": "ready"}
        assert "evsys_http_requests_total" in httpx.get(f"{root}/metrics").text
        assert nobody.get("/experiments").headers["x-request-id"]

"""The real server for tests: on a thread of this process, or as a separate process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import uvicorn
from sqlalchemy import Engine

from evsys_sdk.dashboard.client.connection import API_PREFIX
from evsys_sdk.dashboard.server.app import server_app
from evsys_sdk.dashboard.server.auth import make_key, make_project
from evsys_sdk.dashboard.server.run import list_hosts, listen
from evsys_sdk.dashboard.server.storage.database import open_database

from ..server_process import ServerProcess as BaseServerProcess


class AppThread:
    """An application on a free port of this machine, served by a thread."""

    def __init__(self, make_app: Any) -> None:
        sock = listen("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = make_app(list_hosts("127.0.0.1", self.port))
        self.app = app
        config = uvicorn.Config(app, log_level="error", lifespan="on", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        started = threading.Event()

        async def run() -> None:
            startup = self._server.startup

            async def tell(sockets: Any = None) -> None:
                await startup(sockets)
                started.set()

            self._server.startup = tell
            await self._server.serve(sockets=[sock])

        self._thread = threading.Thread(target=lambda: asyncio.run(run()))
        self._thread.start()
        assert started.wait(60)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


class ServerThread(AppThread):
    """The server with a database."""

    def __init__(self, address: str) -> None:
        self.engine: Engine = open_database(address, upgrade=True)
        super().__init__(lambda hosts: server_app(self.engine, hosts))

    def new_project(self) -> Project:
        return Project(self.url, self.engine)

    def stop(self) -> None:
        super().stop()
        self.engine.dispose()


class Project:
    """A separate project, and a client with a key for it."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url, self.engine = url, engine
        self.id = f"project-{secrets.token_hex(4)}"
        with engine.execution_options(writes=True).begin() as connection:
            make_project(connection, self.id)
        self.key = self.new_key("read", "write")
        self._opened = ExitStack()
        self.http = self.client(self.key)

    def new_key(self, *scopes: str, **options: Any) -> str:
        with self.engine.execution_options(writes=True).begin() as connection:
            return make_key(connection, self.id, scopes, **options)[1]

    def client(self, key: str | None) -> Api:
        """A client that is closed with the project, if not before."""
        api = Api(self.url, key)
        self._opened.callback(api.close)
        return api

    def send(self, *records: dict[str, Any], stream: str | None = None, seq: int = 0) -> dict[str, Any]:
        """Store records by a separate stream."""
        return self.http.send_records(stream or secrets.token_hex(8), seq, records)

    def close(self) -> None:
        self._opened.close()


class Api(httpx.Client):
    """HTTP below the API's prefix, with a key."""

    def __init__(self, url: str, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        super().__init__(base_url=f"{url}{API_PREFIX}", headers=headers, timeout=60, trust_env=False)

    def send_records(self, stream: str, seq: int, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        body = "\n".join(json.dumps(record) for record in records)
        answer = self.post(f"/sdk/streams/{stream}/", params={"seq": seq}, content=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def read(self, path: str, **query: Any) -> Any:
        answer = self.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


class ServerProcess(BaseServerProcess):
    """`evsys dashboard serve` as a process; ended by its own id."""

    def __init__(self, database: str, port: int = 0) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        super().__init__("dashboard", "serve", "--json", "--database", database, "--port", str(port), env=env)


@contextmanager
def running_app(make_app: Any) -> Iterator[AppThread]:
    server = AppThread(make_app)
    try:
        yield server
    finally:
        server.stop()

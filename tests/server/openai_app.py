"""The server's application without a wire, for tests that need neither the `tinker` package nor uvicorn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from evsys_sdk.server.app import App
from evsys_sdk.server.service import Service
from evsys_sdk.server.settings import ServeSettings
from evsys_sdk.server.weights.catalog import Catalog


@asynccontextmanager
async def open_app(folder: Path, catalog: Catalog | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on the mock backend."""
    service = Service.start(ServeSettings(state_dir=folder, **settings), catalog)
    transport = httpx.ASGITransport(app=App(service))  # pyright: ignore[reportArgumentType]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            client.service = service  # pyright: ignore[reportAttributeAccessIssue]
            yield client
    finally:
        await service.close()

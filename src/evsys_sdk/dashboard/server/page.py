"""Serve the files of the web page that are built into the package, or a hint on how to get them."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from ..client.connection import API_PREFIX

PAGE = Path(__file__).parents[1] / "page"
_MISSING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>evsys dashboard</title></head>
<body><h1>The page is not built</h1>
<p>The server runs and its API answers, but this copy of evsys-sdk was installed without the page. Install a released
wheel of evsys-sdk, which carries it.</p></body></html>
"""
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}


class PageFiles:
    """Serves files of the page by path; other paths get `index.html`."""

    def __init__(self, folder: Path = PAGE) -> None:
        self._folder = folder.resolve()
        files = [path for path in folder.rglob("*") if path.is_file()] if (folder / "index.html").is_file() else []
        self._files = {f"/{path.relative_to(folder).as_posix()}": path for path in files}
        """URL path -> file, listed once at the start: request paths are never used as file paths."""

    async def answer(self, request: Request) -> Response:
        """Return a file of the page, or `index.html` for paths that the page routes itself."""
        if request.url.path.split("/")[1] == API_PREFIX.split("/")[1]:  # a mistyped path of the API
            raise HTTPException(404, f"there is no {request.url.path[:200]} here.")
        if not self._files:
            return HTMLResponse(_MISSING, 200)
        path = self._files.get(request.url.path)
        if path is None:
            return FileResponse(self._files["/index.html"], media_type="text/html")
        kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        # Names of assets contain a hash of their content; `index.html`, which refers to them, is not cached.
        hashed = request.url.path.startswith("/assets/")
        cache = "public, max-age=31536000, immutable" if hashed else "no-cache"
        return FileResponse(path, media_type=kind, headers={"cache-control": cache})

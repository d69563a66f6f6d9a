"""A stand-in for the Hugging Face hub: makes repositories and takes commits, as the hub's own client sends them.

It wants every file inside the commit, as the hub does for small ones; how large ones travel is between that client and
the hub's storage.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from ..http_stand_in import JsonHandler, LoopbackServer

TOKEN = "hf_" + "a1B2" * 6


class Hub(LoopbackServer):
    """The hub."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        """Repository -> its files now."""
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.breaks_at = ""
        """Part of a path whose requests are answered with status 500."""
        super().__init__(_handler(self))

    def answer(self, method: str, path: str, body: bytes, key: str) -> tuple[int, Any]:
        if self.breaks_at and self.breaks_at in path:
            return 500, {"error": "the stand-in breaks here"}
        if key != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials"}
        parts = path.strip("/").split("/")
        match [method, *parts]:
            case ["POST", "api", "repos", "create"]:
                parsed = json.loads(body)
                name = f"{parsed['organization']}/{parsed['name']}" if parsed.get("organization") else parsed["name"]
                if name in self.repos:
                    return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
                self.repos[name], self.private[name] = (
                    {},
                    bool(parsed.get("private")) or parsed.get("visibility") == "private",
                )
                return 200, {"url": f"{self.url}/{name}", "name": name}
            case ["POST", "api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["GET", "api", "models", owner, name, *_]:
                return self._describe(f"{owner}/{name}", tree="tree" in parts)
            case ["POST", "api", "models", owner, name, "preupload", _]:
                paths = [file["path"] for file in json.loads(body)["files"]]
                modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
                return 200, {"files": modes, "commitOid": "0" * 40}
            case ["POST", "api", "models", owner, name, "commit", _]:
                return self._commit(f"{owner}/{name}", [json.loads(line) for line in body.splitlines() if line])
            case _:
                return 404, {"error": f"{method} {path} is not known to the stand-in"}

    def _describe(self, repo: str, *, tree: bool) -> tuple[int, Any]:
        if repo not in self.repos:
            return 404, {"error": "Repository not found"}
        files = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in self.repos[repo].items()
        ]
        if tree:
            return 200, files
        return 200, {"id": repo, "sha": "0" * 40, "siblings": [{"rfilename": file["path"]} for file in files]}

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.repos[repo][value["path"]]
        oid = hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()
        self.commits.append(lines[0]["value"]["summary"])
        return 200, {
            "success": True,
            "commitOid": oid,
            "commitUrl": f"{self.url}/{repo}/commit/{oid}",
            "hookOutput": "",
        }


def _handler(hub: Hub) -> type[JsonHandler]:
    class Handler(JsonHandler):
        def _serve(self) -> None:
            path = urlsplit(self.path).path.replace(".git/", "/")
            status, answer = hub.answer(self.command, path, self.read_body(), self.headers.get("authorization", ""))
            self.send_json(answer, status)

        do_GET = do_POST = _serve

    return Handler

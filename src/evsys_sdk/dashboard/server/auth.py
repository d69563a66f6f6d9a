"""Authentication and authorization: API keys with scopes for one project, and browser sessions.

A key is `evk_<id>_<secret>`. Only its hash is stored; a fast hash is sufficient for 256 random bits. A key is shown
once, sent in a header, and never part of a URL, a log line or a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, delete, insert, select, update

from ...errors import DataError, EvsysAuthError, show
from ..client.connection import new_id
from ..records import check_id
from ..shapes.experiment import Scope
from .storage import schema
from .storage.writer import Busy, Writer

SCOPES: tuple[Scope, ...] = ("read", "write", "admin")
SESSION_S = 30 * 86_400.0
_CACHE_S = 15.0
"""Seconds for which a key is cached.

Revoking in this process takes effect at once; in another, e.g. by `evsys dashboard key --revoke`, after this time.
"""
_MOST_CACHED = 10_000
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller of a request."""

    project: str
    scopes: frozenset[str]
    key_id: str
    by_cookie: bool = False


class AccessGate(Protocol):
    """Authenticates callers."""

    def identify_key(self, key: str) -> Caller | None: ...
    def identify_session(self, cookie: str) -> Caller | None: ...
    def open_session(self, token: str) -> str | None:
        """Return a new session cookie for a token, or None if the token is invalid."""
        ...

    def close_session(self, cookie: str) -> None: ...


class LocalGate:
    """Access by a token, created when the server starts: other users of the machine must not read the record."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._sessions: set[str] = set()

    def identify_key(self, key: str) -> Caller | None:
        # As bytes, because `compare_digest` raises for non-ASCII text.
        same = hmac.compare_digest(key.encode(), self.token.encode())
        return Caller(LOCAL, frozenset(SCOPES), LOCAL) if same else None

    def identify_session(self, cookie: str) -> Caller | None:
        is_open = digest(cookie) in self._sessions
        return Caller(LOCAL, frozenset(SCOPES), LOCAL, by_cookie=True) if is_open else None

    def open_session(self, token: str) -> str | None:
        if self.identify_key(token) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._sessions.add(digest(cookie))
        return cookie

    def close_session(self, cookie: str) -> None:
        self._sessions.discard(digest(cookie))


class KeyGate:
    """Access by API keys and sessions in the database."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine, self._writer = engine, writer
        self._cache: dict[str, tuple[float, Caller]] = {}
        self._lock = threading.Lock()

    def identify_key(self, key: str) -> Caller | None:
        return self._identify(key, by_cookie=False)

    def identify_session(self, cookie: str) -> Caller | None:
        return self._identify(cookie, by_cookie=True)

    def open_session(self, token: str) -> str | None:
        identity = self.identify_key(token)
        if identity is None:
            return None
        cookie = secrets.token_urlsafe(32)
        values = {"hash": digest(cookie), "key_id": identity.key_id, "expires": time.time() + SESSION_S}

        def write(connection: Connection) -> None:
            connection.execute(delete(schema.web_session).where(schema.web_session.c.expires < time.time()))
            connection.execute(insert(schema.web_session).values(**values))

        self._writer.call(write)
        return cookie

    def close_session(self, cookie: str) -> None:
        hash = digest(cookie)
        self._writer.call(
            lambda connection: (
                connection.execute(delete(schema.web_session).where(schema.web_session.c.hash == hash)).rowcount
            )
        )
        self.forget()

    def forget(self) -> None:
        """Clear the cache after a key was revoked."""
        with self._lock:
            self._cache.clear()

    def _identify(self, secret: str, *, by_cookie: bool) -> Caller | None:
        if len(secret) > 500:  # longer than any key; bounds the time for hashing
            return None
        hash = digest(secret)
        now = time.monotonic()
        with self._lock:
            cached = self._cache.get(hash)
        # A cookie sent as a key must not match the cache, and vice versa.
        if cached is not None and cached[0] > now and cached[1].by_cookie == by_cookie:
            return cached[1]
        session, key = schema.web_session, schema.api_key
        if by_cookie:
            query = select(key).join(session, session.c.key_id == key.c.id)
            query = query.where(session.c.hash == hash, session.c.expires > time.time())
        else:
            query = select(key).where(key.c.hash == hash)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        # Applies to sessions too: a session ends with its key.
        if row is None or row["revoked"] or (row["expires"] is not None and row["expires"] < time.time()):
            return None
        identity = Caller(str(row["project_id"]), frozenset(json.loads(row["scopes"])), str(row["id"]), by_cookie)
        with self._lock:
            if len(self._cache) > _MOST_CACHED:
                self._cache.clear()
            self._cache[hash] = (now + _CACHE_S, identity)
        # Only after a lookup, because a write per request would cost more than most requests.
        self._note_use(identity.key_id)
        return identity

    def _note_use(self, key_id: str) -> None:
        used = update(schema.api_key).where(schema.api_key.c.id == key_id).values(last_used=time.time())
        with contextlib.suppress(Busy):  # not important enough to wait
            self._writer.submit(lambda connection: connection.execute(used).rowcount)


def digest(secret: str) -> str:
    """The hash under which a secret is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_project(connection: Connection, id: str) -> None:
    """Create a project if it does not exist."""
    check_id(id, "the project's id")
    if connection.execute(select(schema.project.c.id).where(schema.project.c.id == id)).first() is None:
        values = {"id": id, "name": id, "created": time.time(), "version": 0}
        connection.execute(insert(schema.project).values(**values))


def make_key(
    connection: Connection, project: str, scopes: Sequence[str], *, name: str = "", expires: float | None = None
) -> tuple[str, str]:
    """Create a key of a project; return its id and the key, which is not stored."""
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise DataError(f"scope {show(unknown[0] if unknown else '')} is not known. Choose among {', '.join(SCOPES)}.")
    if connection.execute(select(schema.project.c.id).where(schema.project.c.id == project)).first() is None:
        raise DataError(f"there is no project {show(project)}. Make it with: evsys dashboard key {project}")
    id = new_id()
    key = f"evk_{id}_{secrets.token_urlsafe(32)}"
    values = {"id": id, "project_id": project, "name": name, "hash": digest(key), "revoked": False}
    values |= {"scopes": json.dumps(sorted(set(scopes))), "created": time.time(), "expires": expires}
    connection.execute(insert(schema.api_key).values(**values))
    return id, key


def list_keys(connection: Connection, project: str | None) -> list[dict[str, Any]]:
    """List the keys of a project or of all projects, without hashes."""
    table = schema.api_key
    query = select(*(column for column in table.c if column.name != "hash")).order_by(table.c.created)
    rows = connection.execute(query.where(table.c.project_id == project) if project else query).mappings()
    return [{**row, "scopes": json.loads(row["scopes"])} for row in rows]


def revoke_key(connection: Connection, project: str | None, id: str) -> bool:
    """Revoke a key and its sessions; return False if there is no such key."""
    table = schema.api_key
    conditions = [table.c.id == id, *([table.c.project_id == project] if project else [])]
    revoked = connection.execute(update(table).where(*conditions).values(revoked=True)).rowcount > 0
    if revoked:
        connection.execute(delete(schema.web_session).where(schema.web_session.c.key_id == id))
    return revoked


def require(identity: Caller | None, scope: Scope) -> Caller:
    """Return the caller if it has the scope, else raise; `admin` includes every scope."""
    if identity is None:
        raise EvsysAuthError("sign in first.")
    if scope not in identity.scopes and "admin" not in identity.scopes:
        raise PermissionError(f"this key has no scope '{scope}'. Ask for one that has.")
    return identity

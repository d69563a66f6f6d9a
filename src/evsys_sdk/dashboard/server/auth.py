"""Who may do what: API keys with scopes for one project, and the sessions of browsers.

A key is `evk_<id>_<secret>`. Only its hash is stored; it has 256 random bits, so a slow hash would protect nothing
more. It is shown once, sent in a header, and never part of an address, a log line or a record.
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
_REMEMBERED_S = 15.0
"""How long a key is believed without looking it up.

What this process revokes it forgets at once; what another one does, as `evsys dashboard key --revoke`, only then.
"""
_MOST_REMEMBERED = 10_000
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    project: str
    scopes: frozenset[str]
    key_id: str
    by_cookie: bool = False


class AccessGate(Protocol):
    """Tells who asks."""

    def identify_key(self, key: str) -> Caller | None: ...
    def identify_session(self, cookie: str) -> Caller | None: ...
    def open_session(self, token: str) -> str | None:
        """A new cookie for the owner of this token; None when it is not valid."""
        ...

    def close_session(self, cookie: str) -> None: ...


class LocalGate:
    """One token, made when the server starts: on a shared machine, others must not see the record."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._sessions: set[str] = set()

    def identify_key(self, key: str) -> Caller | None:
        # As bytes: of text that is not ASCII, `compare_digest` raises.
        same = hmac.compare_digest(key.encode(), self.token.encode())
        return Caller(LOCAL, frozenset(SCOPES), LOCAL) if same else None

    def identify_session(self, cookie: str) -> Caller | None:
        known = digest(cookie) in self._sessions
        return Caller(LOCAL, frozenset(SCOPES), LOCAL, by_cookie=True) if known else None

    def open_session(self, token: str) -> str | None:
        if self.identify_key(token) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._sessions.add(digest(cookie))
        return cookie

    def close_session(self, cookie: str) -> None:
        self._sessions.discard(digest(cookie))


class KeyGate:
    """API keys and sessions in the database."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine, self._writer = engine, writer
        self._known: dict[str, tuple[float, Caller]] = {}
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
        """Look everybody up again: a key was revoked."""
        with self._lock:
            self._known.clear()

    def _identify(self, secret: str, *, by_cookie: bool) -> Caller | None:
        if len(secret) > 500:  # no key is, and hashing takes as long as its input
            return None
        hash = digest(secret)
        now = time.monotonic()
        with self._lock:
            known = self._known.get(hash)
        # Remembered as what it was: a cookie that is sent as a key is looked up among the keys, where it is none.
        if known is not None and known[0] > now and known[1].by_cookie == by_cookie:
            return known[1]
        session, key = schema.web_session, schema.api_key
        if by_cookie:
            query = select(key).join(session, session.c.key_id == key.c.id)
            query = query.where(session.c.hash == hash, session.c.expires > time.time())
        else:
            query = select(key).where(key.c.hash == hash)
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        # Also of a session: it ends with the key that opened it.
        if row is None or row["revoked"] or (row["expires"] is not None and row["expires"] < time.time()):
            return None
        identity = Caller(str(row["project_id"]), frozenset(json.loads(row["scopes"])), str(row["id"]), by_cookie)
        with self._lock:
            if len(self._known) > _MOST_REMEMBERED:
                self._known.clear()
            self._known[hash] = (now + _REMEMBERED_S, identity)
        # Only after a look-up: a write with each request would be more work than most requests.
        self._note_use(identity.key_id)
        return identity

    def _note_use(self, key_id: str) -> None:
        used = update(schema.api_key).where(schema.api_key.c.id == key_id).values(last_used=time.time())
        with contextlib.suppress(Busy):  # there is more important work than this
            self._writer.submit(lambda connection: connection.execute(used).rowcount)


def digest(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_project(connection: Connection, id: str, name: str = "") -> None:
    """A new project; one that is there stays as it is."""
    check_id(id, "the project's id")
    if connection.execute(select(schema.project.c.id).where(schema.project.c.id == id)).first() is None:
        values = {"id": id, "name": name or id, "created": time.time(), "version": 0}
        connection.execute(insert(schema.project).values(**values))


def make_key(
    connection: Connection, project: str, scopes: Sequence[str], *, name: str = "", expires: float | None = None
) -> tuple[str, str]:
    """A new key of a project: its id, and the key itself, which no one can find out later."""
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
    """What is known of the keys, without the keys."""
    table = schema.api_key
    query = select(*(column for column in table.c if column.name != "hash")).order_by(table.c.created)
    rows = connection.execute(query.where(table.c.project_id == project) if project else query).mappings()
    return [{**row, "scopes": json.loads(row["scopes"])} for row in rows]


def revoke_key(connection: Connection, project: str | None, id: str) -> bool:
    """End a key and the sessions it opened; False when there is none."""
    table = schema.api_key
    mine = [table.c.id == id, *([table.c.project_id == project] if project else [])]
    found = connection.execute(update(table).where(*mine).values(revoked=True)).rowcount > 0
    if found:
        connection.execute(delete(schema.web_session).where(schema.web_session.c.key_id == id))
    return found


def require(identity: Caller | None, scope: Scope) -> Caller:
    """The caller, if permitted; admin may everything."""
    if identity is None:
        raise EvsysAuthError("sign in first.")
    if scope not in identity.scopes and "admin" not in identity.scopes:
        raise PermissionError(f"this key has no scope '{scope}'. Ask for one that has.")
    return identity

"""`evsys dashboard`: the record of this project in a browser, and the server for many clients;
`evsys sync`: send records to a dashboard that it has not received yet.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError
from ...redact import hand_over
from ..options import POSITIVE, json_option, root_option
from ..output import emit, table

if TYPE_CHECKING:
    from sqlalchemy import Engine


_DEFAULT_DATABASE = ".evsys/dashboard.sqlite3"
_port = click.option("--port", default=8000, type=click.IntRange(0, 65535), help="0 chooses a free port.")
_host = click.option("--host", default="127.0.0.1", help="Address to listen on.")
_database = click.option(
    "--database",
    default=_DEFAULT_DATABASE,
    envvar="EVSYS_DASHBOARD_DATABASE",
    help="A file, or postgresql://user@host/name.",
)


@click.group(invoke_without_command=True)
@_host
@_port
@root_option
@json_option
@click.pass_context
def dashboard(ctx: click.Context, host: str, port: int, roots: tuple[str, ...], as_json: bool) -> None:
    """Show the experiments recorded on this machine, live, in a browser.

    Prints an address with a token: open it on this machine. Runs until Ctrl-C. Nothing is uploaded or changed.
    """
    if ctx.invoked_subcommand is not None:
        return
    from ...dashboard.local.records import LocalRecords
    from ...history.find import experiment_roots
    from ...loop.page import ProjectLoops
    from ...paths import project_root

    _need_server()  # before the imports, to name the missing extra
    from ...dashboard.client.connection import Connection
    from ...dashboard.local.scripts import ProjectRecords
    from ...dashboard.server.app import local_app
    from ...dashboard.server.auth import LocalGate
    from ...dashboard.server.run import list_hosts, listen, serve
    from ...server.settings import is_loopback

    if not is_loopback(host):
        hint = "Only this machine may see the record of a project. For others, run: evsys dashboard serve"
        raise ConfigError(f"--host {host} is not this machine. {hint}")
    project = project_root()
    mirror = Connection.from_environment(offline=True).mirror_dir
    source: Any = ProjectRecords(LocalRecords(experiment_roots(roots), project), mirror)
    gate = LocalGate()
    sock = listen(host, port)
    port = sock.getsockname()[1]  # known only now if --port is 0
    app = local_app(source, gate, list_hosts(host, port), name=project.name, pages=ProjectLoops())
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def announce() -> None:
        about = {"url": url, "open": f"{url}/#token={gate.token}", "token": gate.token, "project": str(project)}
        # not `echo`, which would redact the token
        hand_over(json.dumps(about) if as_json else f"Open {about['open']}\nCtrl-C stops it.")

    with closing(source):
        serve(app, sock, announce)


@dashboard.command("serve")
@_database
@_host
@_port
@click.option("--allow-host", "hosts", multiple=True, help="Host name that browsers use. May be repeated.")
@json_option
def serve_command(database: str, host: str, port: int, hosts: tuple[str, ...], as_json: bool) -> None:
    """Store what clients send, and show it to anyone with a key (`evsys dashboard key`)."""
    _need_server()
    from ...dashboard.server.app import server_app
    from ...dashboard.server.run import list_hosts, listen, serve
    from ...dashboard.server.storage.database import hide_password, open_database

    engine = open_database(database)
    sock = listen(host, port)
    port = sock.getsockname()[1]
    app = server_app(engine, list_hosts(host, port, hosts))
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        text = f"The dashboard of {hide_password(database)} is at {url}. Ctrl-C stops it."
        about = {"url": url, "database": hide_password(database)}
        serve(app, sock, lambda: click.echo(json.dumps(about) if as_json else text))
    finally:
        engine.dispose()


@dashboard.command("key")
@click.argument("project")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["read", "write", "admin"]),
    default=("read", "write"),
    help="Permission of the key. May be repeated.",
)
@click.option("--name", default="", show_default=False, help="Name of its user.")
@click.option("--days", type=POSITIVE, help="Days until it expires; by default never.")
@click.option("--list", "listing", is_flag=True, help="List the keys of the project instead.")
@click.option("--revoke", metavar="ID", help="Revoke a key instead.")
@_database
@json_option
def key_command(
    project: str,
    scopes: tuple[str, ...],
    name: str,
    days: float | None,
    listing: bool,
    revoke: str | None,
    database: str,
    as_json: bool,
) -> None:
    """Create an API key of PROJECT, and the project if it is new. The key is shown only once."""
    import time

    engine = _open(database)
    from ...dashboard.server.auth import list_keys, make_key, make_project, revoke_key

    # `writes` takes SQLite's lock at once, because a server may use the same file
    with engine.execution_options(writes=True).begin() as connection:
        if revoke is not None:
            if not revoke_key(connection, project, revoke):
                raise ConfigError(f"project '{project}' has no key '{revoke}'. See them with --list.")
            emit({"revoked": revoke}, as_json, lambda: click.echo(f"{revoke} is no longer valid."))
        elif listing:
            keys = list_keys(connection, project)
            emit(keys, as_json, lambda: _print_keys(keys))
        else:
            make_project(connection, project)
            expires = None if days is None else time.time() + days * 86_400
            id, key = make_key(connection, project, scopes, name=name, expires=expires)
            about = {"project": project, "id": id, "key": key, "scopes": list(scopes)}
            text = f"export EVSYS_PROJECT_ID={project}\nexport EVSYS_API_KEY={key}"
            hand_over(json.dumps(about) if as_json else text)
    engine.dispose()


@dashboard.command("upgrade")
@_database
@json_option
def upgrade_command(database: str, as_json: bool) -> None:
    """Upgrade a database to the schema of this version; a SQLite file is copied first."""
    _need_server()
    from ...dashboard.server.storage.database import hide_password, open_database

    open_database(database, upgrade=True).dispose()
    about = {"database": hide_password(database), "upgraded": True}
    emit(about, as_json, lambda: click.echo(f"{hide_password(database)} is up to date."))


@dashboard.command("backup")
@click.argument("target", type=click.Path())
@_database
@json_option
def backup_command(target: str, database: str, as_json: bool) -> None:
    """Back up the database to TARGET, also while a server uses it."""
    engine = _open(database)
    from ...dashboard.server.storage.database import back_up

    back_up(engine, Path(target))
    engine.dispose()
    emit({"backup": target}, as_json, lambda: click.echo(f"{target} is a copy of {database}."))


@dashboard.command("restore")
@click.argument("backup", type=click.Path())
@_database
@json_option
def restore_command(backup: str, database: str, as_json: bool) -> None:
    """Replace the database by BACKUP; no server may be using it."""
    _need_server()
    from ...dashboard.server.storage.database import restore

    if "://" in database:
        raise ConfigError("Restore a PostgreSQL database with pg_restore.")
    restore(Path(backup), Path(database))
    emit({"restored": database}, as_json, lambda: click.echo(f"{database} is restored from {backup}."))


@dashboard.command("export")
@click.argument("experiment")
@click.option("--output", "-o", type=click.Path(), help="Folder to write to.  [default: EXPERIMENT-export]")
@root_option
@json_option
def export_command(experiment: str, output: str | None, roots: tuple[str, ...], as_json: bool) -> None:
    """Write EXPERIMENT as a folder with an index.html that shows it without a server."""
    from ...dashboard.export import export_experiment
    from ...history.find import experiment_roots, find_experiment

    folder = find_experiment(experiment, experiment_roots(roots))
    target = Path(output or f"{folder.name}-export")
    files = export_experiment(folder, target)
    emit({"path": str(target), "files": files}, as_json, lambda: click.echo(str(target / "index.html")))


def _open(database: str) -> Engine:
    _need_server()
    from ...dashboard.server.storage.database import open_database

    return open_database(database)


def _need_server() -> None:
    from ...lazy import import_extra

    for module in ("fastapi", "sqlalchemy", "alembic", "msgspec", "uvicorn"):
        import_extra(module, extra="dashboard", needed_by="evsys dashboard")


def _print_keys(keys: list[dict[str, Any]]) -> None:
    rows = [(key["id"], key["name"], " ".join(key["scopes"]), "revoked" if key["revoked"] else "valid") for key in keys]
    click.echo(table(("id", "name", "scopes", "state"), rows) if rows else "This project has no keys.")


@click.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--again", is_flag=True, help="Check every stream, also those that have arrived.")
@json_option
def sync(path: str | None, again: bool, as_json: bool) -> int:
    """Send all records that the dashboard does not have yet; sending twice has no effect.

    PATH is a folder with a mirror (by default EVSYS_LOG_DIR or .evsys), or the folder of a recorded experiment,
    which is then sent as a whole.
    """
    from ...dashboard.client.connection import Connection
    from ...dashboard.client.sender import find_mirror, send_mirror
    from ...record.layout import ExperimentFiles

    # Also with EVSYS_OFFLINE set, which is for runs.
    connection = Connection.from_environment(offline=False)
    source = Path(path) if path else connection.mirror_dir
    if path and ExperimentFiles(source).config.is_file() and ExperimentFiles(source).journal.is_file():
        return _sync_experiment(source, as_json)
    if not path and not source.is_dir():
        emit({"streams": []}, as_json, lambda: click.echo("Nothing was logged for a dashboard here."))
        return 0
    streams = list(send_mirror(connection, find_mirror(source), again=again))

    def render() -> None:
        if not streams:
            click.echo("Everything has arrived.")
        for stream in streams:
            click.echo(
                f"{stream.stream}: {stream.new} new records, {stream.records} in all"
                + (stream.problem and f"; {stream.problem}")
            )
            for reason in stream.rejected:
                click.echo(f"  quarantined: {reason}", err=True)

    emit({"streams": [asdict(stream) for stream in streams]}, as_json, render)
    return 1 if any(stream.problem or stream.rejected for stream in streams) else 0


def _sync_experiment(folder: Path, as_json: bool) -> int:
    from ...dashboard.client.client import DashboardClient
    from ...dashboard.client.upload import report_experiment
    from ...errors import DashboardClientError

    client = DashboardClient(offline=False)
    try:
        id = report_experiment(client, folder, complete=True)
    finally:
        arrived = client.close(timeout_s=600.0)
    if not arrived:
        raise DashboardClientError(
            f"{folder}: some records have not arrived. They are in the mirror; send them with: evsys sync"
        )
    answer: dict[str, Any] = {"experiment": id, "path": str(folder)}
    emit(answer, as_json, lambda: click.echo(f"{folder} is on the dashboard as {id}."))
    return 0

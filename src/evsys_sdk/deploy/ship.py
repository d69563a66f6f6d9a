"""Ship weights and roll deployments back.

A deployment is built in a temporary folder, renamed into place in one step, and recorded in the list of promotions.

deployment = ship(find_source("routing"), "peft_dir", name="production")
roll_back("production", reason="live scores fell")
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.base import expand_variables
from ..config.building import build_extension
from ..errors import DataError, show
from ..experiment.audit.audit import AuditReport, audit_experiment
from ..files import write_text
from ..paths import workspace_dir
from ..record.events import Kind
from ..record.project_files.journals import PromotionLog, lock_promotions
from ..record.values import number, text
from ..registry import get_deployer
from ..settings import requires_gate
from ..user_code import default_limit_s, limit_user_code
from .deployer import Built, Deployer, Publisher
from .deployments import Deployment, Deployments, check_promotions
from .gate import find_pass
from .source import Source, describe_scores, hash_file

CARD = "README.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def deployments_dir() -> Path:
    """The default folder of deployments."""
    return workspace_dir() / "deployments"


def check_name(name: str) -> str:
    """Return the name; raise if it cannot be part of a URL or a path."""
    if not _NAME.fullmatch(name):
        raise DataError(f"a deployment cannot be called {show(name)}. Use letters, digits, '_' and '-', 64 at most.")
    return name


def ship(
    source: Source,
    kind: str,
    *,
    name: str,
    params: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    gated: bool = False,
    despite_audit: bool = False,
) -> Deployment:
    """Make the weights of a source live under a name; nothing goes live if the process is killed before the end.

    With `gated`, or if the project requires a gate, ship only weights that passed the gate against the live weights.
    """
    settings, gated = dict(params or {}), gated or requires_gate()
    deployer: Deployer = build_extension(
        get_deployer(kind), expand_variables(settings), what=f"deployer '{kind}'", path="--param"
    )
    check_name(name)
    check_promotions()
    audit = audit_experiment(source.detail.folder)
    if audit.invalid and not despite_audit:
        raise DataError(
            f"{source.detail.folder}: its record does not hold ({audit.invalid}). Nothing is shipped. See evsys audit, "
            "or ship it all the same with --despite-audit."
        )
    with lock_promotions():
        # One lock from reading the live deployment to writing the list: a promotion in between would invalidate the
        # verdict of the gate, and two deployments could get the same number.
        gate = find_pass(source, name) if gated else ""
        number = max((entry.number for entry in Deployments.read().of(name)), default=0) + 1
        place = folder.absolute() if folder else _clear(deployments_dir() / name, number)
        with limit_user_code(f"deployer '{kind}'", limit_s=default_limit_s(3600), exit_code=2):
            built = _build(deployer, source, place, audit)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        with PromotionLog.open() as log:
            log.append(
                Kind.DEPLOYED,
                deployment=f"{name}.{number}",
                name=name,
                number=number,
                deployer=kind,
                params=settings,
                location=built.location or str(place),
                source=source.to_dict(),
                files={file.relative_to(place).as_posix(): hash_file(file) for file in files},
                facts=built.facts,
                gate=gate,
                audit={"clean": audit.clean, "flags": [check.name for check in audit.flags]},
            )
    return Deployments.read().find(f"{name}.{number}")


def roll_back(name: str, *, to: str | None = None, reason: str = "", nothing: bool = False) -> Deployment | None:
    """Roll a name back to the previous deployment or to `to`; return it, or None if nothing is live afterwards."""
    check_promotions()
    with lock_promotions():
        deployments = Deployments.read()
        live = deployments.live_under(name)
        if live is None:
            raise DataError(f"nothing is live under {show(name)}, so there is nothing to take back.")
        target = deployments.find(to) if to else deployments.before(live)
        if target is None and not nothing:
            raise DataError(
                f"{live.id} is the first deployment of {name!r}: there is none to go back to. Take it down with "
                "--to-nothing."
            )
        if target is not None and target.name != name:
            raise DataError(f"{target.id} is a deployment of {target.name!r}, not of {name!r}.")
        if target is not None and target.id == live.id:
            raise DataError(f"{live.id} is live already.")
        if target is not None:
            check_whole(target)
        with PromotionLog.open() as log:
            back_to = target.id if target else ""
            log.append(Kind.ROLLED_BACK, name=name, deployment=back_to, replaced=live.id, reason=reason)
    return target


def check_whole(deployment: Deployment) -> None:
    """Raise if the files of a deployment differ from the shipped files."""
    folder = Path(deployment.location)
    # A deployment that was shipped elsewhere has no local folder.
    for name, sha256 in deployment.files.items() if folder.is_dir() else ():
        file = folder / name
        if not file.is_file() or hash_file(file) != sha256:
            state = "was changed" if file.is_file() else "is gone"
            raise DataError(f"{file}: this file of {deployment.id} {state} since it was shipped. Ship it again.")


def _clear(shelf: Path, number: int) -> Path:
    """Return the folder of a new deployment after deleting what a killed process left there."""
    place = shelf / str(number)
    for leftover in [place, *shelf.glob(".*.tmp")]:
        shutil.rmtree(leftover, ignore_errors=True)
    return place


def _build(deployer: Deployer, source: Source, place: Path, audit: AuditReport) -> Built:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise DataError(f"{place}: there is something already. Name an empty folder with --out.")
    # A hidden folder next to the final one is renamed at the end: readers never see a partial deployment, and the
    # next deployment deletes what a killed process left.
    staged = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    staged.mkdir(parents=True)
    try:
        built = deployer.build(source, staged)
        card = write_card(source, audit, kind=deployer.name, library=deployer.library or "evsys")
        write_text(staged / CARD, card)
        # Published before the rename, so that a failed upload leaves no folder.
        if isinstance(deployer, Publisher):
            built = deployer.publish(staged, built)
        staged.rename(place)
    # BaseException, so that Ctrl-C leaves no folder either.
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return built


# The model card: the weights, their conclusion, their training rows and their audit.


def write_card(source: Source, audit: AuditReport, *, kind: str, library: str) -> str:
    """The model card as Markdown with the front matter of model hubs."""
    conclusion = source.detail.conclusion
    head = [
        "---",
        f"base_model: {source.base_model}",
        f"library_name: {library}",
        "tags: [evsys]",
        "---",
        "",
        f"# {source.detail.view.name}: {source.arm.run}",
        "",
        f"Weights of the arm `{source.arm.name}` of the experiment `{source.experiment}`, checkpoint "
        f"`{source.checkpoint}`, trained from `{source.base_model}` and shipped as `{kind}`.",
        "",
    ]
    stated = [
        "## Conclusion",
        "",
        text(conclusion.get("summary")) or "The experiment has no conclusion.",
        "",
        *(f"- {line}" for line in describe_scores(source)),
        "",
    ]
    return "\n".join([*head, *stated, *_lineage(source), *_integrity(source, audit)])


def _lineage(source: Source) -> list[str]:
    rows = [
        f"| {text(data.get('source')) or '?'} | {number(data.get('rows')) or 0:g} | `{text(data.get('sha256'))[:16]}` |"
        for data in source.arm.datasets
    ]
    body = ["| rows from | rows | sha256 |", "|---|---|---|", *rows] if rows else ["The record does not name them."]
    return ["## Data", "", *body, ""]


def _integrity(source: Source, audit: AuditReport) -> list[str]:
    flagged = ", ".join(check.name for check in audit.flags)
    unchecked = ", ".join(check.name for check in audit.checks if check.state == "unchecked")
    mark = f"flagged: {flagged}" if flagged else "no issues found"
    return [
        "## Integrity",
        "",
        f"- Audit: {mark}{f'; could not be checked: {unchecked}' if unchecked else ''}.",
        f"- sha256 of the weights as trained: `{source.sha256}`.",
        f"- Conversations were rendered with: {source.renderer or 'not recorded'}. A loader with another chat template "
        "asks the model something that it was not trained on.",
        "",
    ]

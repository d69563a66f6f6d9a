"""`evsys conclude` and `audit`: recompute the conclusion and check the consistency of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..options import find_folder, json_option, recheck_option
from ..output import emit, hang, print_text

if TYPE_CHECKING:
    from pathlib import Path

    from ...experiment.audit.audit import AuditReport
    from ...experiment.conclusion import Conclusion


@click.command()
@click.argument("experiment")
@click.option("--check", is_flag=True, help="Write nothing; exit with 2 if the stored conclusion differs.")
@json_option
def conclude(experiment: str, check: bool, as_json: bool) -> int:
    """Recompute the conclusion of EXPERIMENT: its folder, id, the beginning of its id, or its name."""
    from ...experiment.conclusion import conclude as draw
    from ...experiment.conclusion import write_conclusion
    from ...experiment.experiment import journal_conclusion
    from ...record.events import Journal

    path = find_folder(experiment)
    conclusion = draw(path)
    changed = _find_changes(path, conclusion)
    agrees = None if changed is None else not changed
    write = not check and agrees is not True
    if write:
        written = write_conclusion(path)
        with Journal.of(path) as journal:
            journal_conclusion(journal, path, written)
    answer = {"path": str(path), "agrees": agrees, "changed": changed or [], "written": write}
    emit(
        answer | {"conclusion": conclusion.to_dict()},
        as_json,
        lambda: _render_conclusion(path, conclusion, changed, check),
    )
    return 2 if check and agrees is not True else 0


def _find_changes(path: Path, conclusion: Conclusion) -> list[str] | None:
    """The fields of the stored conclusion that differ from the recomputed one; None without a stored one."""
    import json

    from ...record.folders import read_conclusion

    text = read_conclusion(path)
    if text is None:
        return None
    if text == conclusion.to_json():
        return []
    try:
        stored: Any = json.loads(text)
        recomputed = conclusion.to_dict()
        changed = sorted(key for key in {*stored, *recomputed} if stored.get(key) != recomputed.get(key))
    except (ValueError, TypeError, AttributeError):
        return ["the file is damaged"]
    return changed or ["the formatting"]


def _render_conclusion(path: Path, conclusion: Conclusion, changed: list[str] | None, check: bool) -> None:
    from ...experiment.conclusion.markdown import as_markdown

    print_text(as_markdown(conclusion).rstrip())
    click.echo(f"\nrecord: {path}")
    if changed is None:
        outcome = "no conclusion is stored" if check else "conclusion written"
    elif not changed:
        outcome = "agrees with the stored conclusion"
    else:
        outcome = f"{'differs from the stored conclusion' if check else 'conclusion rewritten; it differed'} in: "
        outcome += ", ".join(changed)
    click.echo(f"conclusion: {outcome}")


_MARKS = {"ok": ("✓", "green"), "flagged": ("✗", "red"), "remark": ("i", "cyan"), "unchecked": ("·", "yellow")}


@click.command()
@click.argument("experiment", required=False)
@click.option(
    "--anchor", metavar="git|dashboard|FILE", help="Check the anchors there, then add the head of the journal."
)
@json_option
@recheck_option
def audit(experiment: str | None, anchor: str | None, as_json: bool, imports: tuple[str, ...]) -> None:
    """Check the record of EXPERIMENT, or of all experiments: journal, claim, arms, files, scores, spend, code, anchors.

    Recomputing scores needs your own verifiers, named in the project's settings, the run or --import. They run in a
    separate process. If the environment names a dashboard (EVSYS_API_KEY), its anchors are compared too. Exits with 2
    if anything is flagged.
    """
    from pathlib import Path

    from ...dashboard.client import remote_record
    from ...experiment.audit.audit import audit_experiment

    folders = _find(experiment)
    file = Path(anchor) if anchor is not None and anchor not in ("git", "dashboard") else None
    ask = anchor == "dashboard" or remote_record.is_named()
    reports = [
        audit_experiment(
            folder, anchors=file, witnessed=remote_record.read_anchors(folder) if ask else (), imports=imports
        )
        for folder in folders
    ]
    _forget_summaries(folders)
    for report in reports:
        _journal(report)
        if anchor is not None and report.clean:  # a flagged record must not be anchored
            _anchor(report.path, anchor)
    emit([report.to_dict() for report in reports], as_json, lambda: _render(reports, whole=experiment is not None))
    if any(not report.clean for report in reports):
        click.get_current_context().exit(2)


def _find(experiment: str | None) -> list[Path]:
    from ...history.find import experiment_roots, find_experiment
    from ...record.reader import ExperimentRecord
    from ...record.values import subfolders

    roots = experiment_roots(())
    if experiment is not None:
        return [find_experiment(experiment, roots)]
    folders = [root / name for root in roots for name in subfolders(root)]
    return [folder for folder in folders if ExperimentRecord(folder).is_experiment]


def _journal(report: AuditReport) -> None:
    """Write the flags into the journal if they changed."""
    from ...record.anchors import note_head
    from ...record.events import Journal, Kind
    from ...record.reader import ExperimentRecord

    flags = [check.name for check in report.flags]
    before = [event.get("flags") for event in ExperimentRecord(report.path).events if event.kind == Kind.AUDITED]
    if flags != (before[-1] if before else []):  # repeated audits add no events
        with Journal.of(report.path) as journal:
            journal.append(Kind.AUDITED, flags=flags, invalid=report.invalid)
        note_head(report.path)


def _forget_summaries(folders: list[Path]) -> None:
    """Drop these records from the cache of the history, which anyone could have changed."""
    from ...history.cache import ViewCache

    for root in dict.fromkeys(folder.parent for folder in folders):
        cache = ViewCache(root)
        cache.write((), gone=[folder.name for folder in folders if folder.parent == root])
        cache.close()


def _anchor(folder: Path, place: str) -> None:
    from pathlib import Path

    from ...dashboard.client.remote_record import note_anchor
    from ...record.anchors import anchor_in_file, anchor_in_git

    if place == "git":
        anchor_in_git(folder)
    elif place == "dashboard":
        note_anchor(folder)
    else:
        anchor_in_file(folder, Path(place))


def _render(reports: list[AuditReport], *, whole: bool) -> None:
    for report in reports:
        flagged = [check.name for check in report.flags]
        outcome = f"flagged: {', '.join(flagged)}" if flagged else "no issues found"
        outcome += f"; remarks: {', '.join(check.name for check in report.remarks)}" if report.remarks else ""
        click.secho(f"{report.path}: {outcome}", bold=True)
        for check in report.checks:
            if whole or check.state in ("flagged", "remark"):
                mark, colour = _MARKS[check.state]
                first, *others = check.evidence or [""]
                more = [f"… {len(others) - 9} more"] if len(others) > 9 else []
                click.echo(hang(f"  {click.style(mark, fg=colour)} {check.name:<14} ", first))
                for line in (*others[:9], *more):
                    click.echo(hang(f"    {'':<14} ", line))

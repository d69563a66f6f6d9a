"""Export one experiment as a folder that a browser opens without a server: the page, and a script with its data.

A page that is opened as a file may not fetch, so the API answers are in a script that sets one variable. Large
experiments are exported in part; `remarks` lists what was left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from .._version import __version__
from ..errors import DataError
from ..files import write_text
from .client.upload import experiment_id_of
from .local.records import LocalRecords
from .shapes.experiment import ExperimentDetail, PageSession
from .shapes.record import RolloutLine
from .views.answers import describe_experiment, detail_of_arm, runs_of, sum_spend, trace_lineage
from .views.curves import AXES, CurveQuery, draw_curves
from .views.items import list_items
from .views.source import LARGEST_PAGE, RolloutQuery

PAGE = Path(__file__).parent / "page"
MOST_ARMS = 200
MOST_RUNS_DRAWN = 24
"""Number of runs that the page draws at once."""
MOST_METRICS = 60
MOST_ROLLOUTS = 2000
_POINTS = 300
_INDEX, _SCRIPT = "index.html", "data.js"


def export_experiment(folder: Path, target: Path) -> list[str]:
    """Export an experiment to the folder `target`, to be opened as `index.html`; return the files."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target}: it exists already. Name a new folder with --output.")
    index = PAGE / _INDEX
    if not index.is_file():
        hint = "Install a released wheel, or build it in a checkout with: make page"
        raise DataError(f"this copy of evsys-sdk was installed without the page, which an export consists of. {hint}")
    data = collect_answers(LocalRecords([folder.parent], folder.parent), experiment_id_of(folder))
    shutil.copytree(PAGE, target, dirs_exist_ok=True)
    html = index.read_text(encoding="utf-8")
    # Scripts with `defer` run in document order, so the data comes first.
    write_text(
        target / _INDEX,
        html.replace("<script defer", f'<script defer src="./{_SCRIPT}"></script>\n    <script defer', 1),
    )
    write_text(target / _SCRIPT, f"globalThis.EVSYS_EXPORT = {_as_script(data)};\n")
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def collect_answers(records: LocalRecords, id: str) -> dict[str, Any]:
    """The session and all API answers for one experiment, keyed by the request path that the page uses."""
    detail, data = describe_experiment(records, id), records.experiment(id)
    base = f"/experiments/{quote(id, safe='')}"
    answers: dict[str, Any] = {
        base: detail,
        f"{base}/spend": sum_spend(records, id),
        f"{base}/lineage": trace_lineage(records, id),
    }
    remarks: list[str] = []
    journal = records.events(id, "", LARGEST_PAGE)
    if journal.next is not None:
        remarks.append(f"the first {LARGEST_PAGE} events")
    answers[f"{base}/journal"] = journal.model_copy(update={"next": None})
    arms = [arm.arm for arm in data.experiment.arms]
    for arm in arms[:MOST_ARMS]:
        answers[f"{base}/arms/{quote(arm, safe='')}"] = detail_of_arm(records, data, arm)
    if len(arms) > MOST_ARMS:
        remarks.append(f"{MOST_ARMS} of {len(arms)} arms")
    answers |= dict(_curves(records, detail, base))
    answers |= dict(_items(records, detail, base))
    answers |= _rollouts(records, id, base, remarks)
    session = PageSession(
        mode="local",
        project="",
        project_name=detail.experiment.name,
        scopes=["read"],
        version=__version__,
        can_stop=False,
    )
    dumped = {name: answer.model_dump() for name, answer in answers.items()}
    return {"session": session.model_dump(), "experiment": id, "remarks": remarks, "answers": dumped}


def _curves(records: LocalRecords, detail: ExperimentDetail, base: str) -> Iterator[tuple[str, Any]]:
    """Yield the curves: the default metric over every axis, the other metrics over steps."""
    id, runs = detail.experiment.id, [run.run for run in runs_of(detail.experiment)[:MOST_RUNS_DRAWN]]
    first = draw_curves(records, id, CurveQuery(points=_POINTS, runs=runs))
    yield f"{base}/curves", first
    for metric in first.metrics[:MOST_METRICS]:
        axes = first.axes if metric == first.metric else ["step"]
        for axis in (name for name in AXES if name in axes):
            curves = draw_curves(records, id, CurveQuery(metric, axis, _POINTS, runs=runs))
            query = f"metric={quote_plus(metric)}&x={axis}"
            yield (
                f"{base}/curves?{query}",
                curves.model_copy(update={"axes": axes, "metrics": first.metrics[:MOST_METRICS]}),
            )


def _items(records: LocalRecords, detail: ExperimentDetail, base: str) -> Iterator[tuple[str, Any]]:
    """Yield the comparison by task of every run with the baseline, for every metric."""
    id = detail.experiment.id
    first = list_items(records, id, limit=LARGEST_PAGE)
    yield f"{base}/items", first
    for run in runs_of(detail.experiment)[:MOST_RUNS_DRAWN]:
        for metric in first.metrics:
            items = list_items(records, id, metric=metric, a=first.a, b=run.run, limit=LARGEST_PAGE)
            yield (
                f"{base}/items?a={quote_plus(first.a)}&b={quote_plus(run.run)}&metric={quote_plus(metric)}",
                items,
            )


def _rollouts(records: LocalRecords, id: str, base: str, remarks: list[str]) -> dict[str, Any]:
    """The list of rollouts and the detail of each, latest step first."""
    rollouts: list[RolloutLine] = []
    page = records.rollouts(id, RolloutQuery(limit=LARGEST_PAGE))
    first = page
    rollouts += page.items
    while page.next is not None and len(rollouts) < MOST_ROLLOUTS:
        page = records.rollouts(id, RolloutQuery(limit=LARGEST_PAGE, cursor=page.next))
        rollouts += page.items
    if first.total > len(rollouts):
        remarks.append(f"{len(rollouts)} of {first.total} rollouts")
    answers: dict[str, Any] = {f"{base}/rollouts": first.model_copy(update={"items": rollouts, "next": None})}
    for rollout in rollouts:
        answers[f"{base}/rollouts/{quote(rollout.id, safe='')}"] = records.rollout(id, rollout.id)
    return answers


def _as_script(data: dict[str, Any]) -> str:
    """Encode data as JSON that is safe inside a script."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # "</script>" would end the script; U+2028 and U+2029 are line terminators in older JavaScript, but not in JSON.
    for unsafe in ("<", "\u2028", "\u2029"):
        text = text.replace(unsafe, f"\\u{ord(unsafe):04x}")
    return text

"""The closed loop: traces -> decide -> experiment -> gate -> deploy -> watch, one step at a time.

    for step in Loop(load_system("system.yaml")).steps():
        print(step.text)

Every step runs once, also if the loop is killed: the next step is computed from the files on disk, and each step is
atomic.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.jsonl import read_json
from ..deploy.deployments import Deployments
from ..deploy.gate import judge
from ..deploy.judged import BASE
from ..deploy.policy import load_policy
from ..deploy.ship import roll_back, ship
from ..errors import DataError
from ..experiment.experiment import Experiment
from ..files import write_json
from ..paths import project_root, workspace_dir
from ..record.approvals import is_approved, request_approval
from ..record.jsonl_file import JsonlFile, read_records
from ..record.layout import LOOPS
from ..record.lock import folder_lock
from ..record.values import part
from .decider import LearnDecision, decide
from .round import RoundState, load_candidate, read_round_state, scaffold, watch_live
from .system import SystemConfig
from .traces.rounds import read_rounds, seal_round
from .traces.store import TraceStore, import_traces
from .traces.trace import RewardRule

SYSTEM = "system.json"


@dataclass(frozen=True, slots=True)
class Step:
    """A step that the loop took, or the reason why it waits."""

    stage: str
    text: str
    round: int = 0
    waits: bool = False
    """Whether the loop has to wait for a change."""
    over_budget: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "round": self.round, "text": self.text, "waits": self.waits}


class Loop:
    """The loop of one system."""

    def __init__(self, system: SystemConfig) -> None:
        self.system = system
        self.policy = load_policy(system.gate)  # fails early if the policy is invalid
        self.folder = workspace_dir() / LOOPS / system.name
        self.journal = self.folder / "steps.jsonl"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def steps(self) -> Generator[Step]:
        """Run and yield all due steps; ends when the loop has to wait."""
        with folder_lock(self.folder, what=f"the loop of '{self.system.name}'", remedy="Stop it first."):
            self._introduce()
            yield from self._collect()
            while True:
                step = self._next()
                self._note(step)
                yield step
                if step.waits:
                    return

    def rounds(self) -> list[RoundState]:
        """The state of every round."""
        # The files of a round do not show that it was given up, so this comes from the notes.
        notes = (note for note in self._read_notes() if note["stage"] == "given up")
        given_up = {int(note["round"]): str(note["text"]) for note in notes}
        return [
            read_round_state(record, self.folder, given_up.get(record["number"], ""))
            for record in read_rounds(self._store)
        ]

    def waiting(self, rounds: list[RoundState]) -> RoundState | None:
        """The round that waits for approval; None without one."""
        return next((state for state in reversed(rounds) if self._needs_approval(state)), None)

    def approvals(self, number: int) -> list[str]:
        """The approved steps of a round."""
        return [stage for stage in self.system.approve if is_approved(self.folder, _subject(stage, number))]

    def scaffold_round(self) -> tuple[int, Path]:
        """Begin a round and write its experiment, if the rules decide so; its number and the path of the config."""
        with folder_lock(self.folder, what=f"the loop of '{self.system.name}'", remedy="Stop it first."):
            self._introduce()
            # Two steps: sealing the traces of a round, and writing its experiment.
            for _ in range(2):
                rounds = self.rounds()
                if rounds and rounds[-1].stage == "experiment":
                    break
                step = self._advance(rounds[-1]) if rounds and rounds[-1].stage == "scaffold" else self._begin(rounds)
                self._note(step)
                if step.waits:
                    raise DataError(step.text)
            number = len(self.rounds())
        return number, self.folder / f"round-{number}.yaml"

    @property
    def _store(self) -> str:
        return self.system.traces.store

    def _next(self) -> Step:
        if self.stop_file.exists():
            return Step("stop", f"{self.stop_file} is there. Remove it to continue.", waits=True)
        if (fallen := self._watch()) is not None:  # also while a candidate waits for approval
            return fallen
        rounds = self.rounds()
        open_round = next((state for state in rounds if state.stage != "settled"), None)
        if open_round is not None:
            return self._advance(open_round)
        return self._limit(rounds) or self._begin(rounds)

    def _advance(self, state: RoundState) -> Step:
        """Run the next step of an open round."""
        if self._needs_approval(state):
            request_approval(self.folder, _subject(state.stage, state.number), about=self.system.name)
            message = f"round {state.number}: {state.stage} waits to be approved: evsys approve loop:{self.system.name}"
            return Step("approve", message, state.number, waits=True)
        match state.stage:
            case "scaffold":
                return self._scaffold(state)
            case "experiment":
                return self._run(state)
            case "gate":
                return self._judge(state)
            case _:
                return self._ship(state)

    def _collect(self) -> Iterator[Step]:
        """Import new and changed files of the inbox."""
        spec, seen_file = self.system.traces, self.folder / "inbox.json"
        imported = _read_object(seen_file)
        files = sorted(project_root().glob(spec.inbox)) if spec.inbox else []
        # Size and time are taken before reading, so that a file that grows meanwhile is read again. Known traces are
        # not added twice.
        marks = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}
        fresh = [path for path in files if imported.get(str(path)) != marks[str(path)]]
        if fresh:
            rules = [RewardRule.parse(rule) for rule in spec.feedback]
            report = import_traces(self._store, fresh, format=spec.format, rules=rules)
            write_json(seen_file, {**imported, **marks})
            files = f"{len(fresh)} file{'s' * (len(fresh) > 1)}"
            step = Step("collect", f"{report.added} traces added from {files}, {report.duplicates} known.")
            self._note(step)
            yield step

    def _watch(self) -> Step | None:
        deployments = Deployments.read()
        live = deployments.live_under(self.system.deploy.name)
        if live is None or not TraceStore(self._store).file.is_file():
            return None
        observed = watch_live(live, self._store, self.policy.watch)
        if observed.state != "fell":
            return None
        before = deployments.before(live)
        target = roll_back(live.name, to=before.id if before else None, reason=observed.reason, nothing=before is None)
        back = target.id if target else "nothing"
        number = next(
            (state.number for state in self.rounds() if state.deployment and state.deployment.id == live.id), 0
        )
        return Step("rollback", f"{observed.reason} {back} is live again.", number)

    def _limit(self, rounds: list[RoundState]) -> Step | None:
        limits = self.system.limits
        if limits.max_rounds is not None and len(rounds) >= limits.max_rounds:
            return Step("limit", f"{len(rounds)} rounds are done, which is the limit.", len(rounds), waits=True)
        spent = sum(state.usd for state in rounds)
        if limits.max_usd is not None and spent >= limits.max_usd:
            message = f"{spent:.2f} of {limits.max_usd:.2f} USD are spent."
            return Step("limit", message, len(rounds), waits=True, over_budget=True)
        return None

    def _begin(self, rounds: list[RoundState]) -> Step:
        """Decide whether to train, and if so seal the traces of a new round."""
        refused = find_refused_rounds(rounds)
        decision = decide(self.system, without=refused)
        if not decision.learn:
            return Step("decide", f"no: {_reasons(decision)}", len(rounds), waits=True)
        spec = self.system.traces
        try:
            sealed = seal_round(
                self._store,
                share=spec.share,
                min_reward=spec.min_reward,
                verifier=spec.verifier,
                without=refused,
                aside=decision.aside,
            )
        except DataError as error:
            return Step("decide", f"yes, but there is nothing to learn from: {error}", len(rounds), waits=True)
        message = f"yes: {_reasons(decision)} {sealed.rows} rows to learn from, {sealed.tasks} tasks held out."
        return Step("decide", message, sealed.number)

    def _scaffold(self, state: RoundState) -> Step:
        live = Deployments.read().live_under(self.system.deploy.name)
        hypothesis = f"What happened up to round {state.number} teaches {self.system.name} to answer better."
        path = scaffold(self.system, state.sealed, live, hypothesis, self.folder)
        load_candidate(path)
        return Step("scaffold", f"{path.name}, from {live.id if live else 'the base model'}.", state.number)

    def _run(self, state: RoundState) -> Step:
        assert state.config is not None
        result = Experiment(state.config).run()
        if result.status == "interrupted":
            return Step("experiment", f"{state.config.name} was interrupted.", state.number, waits=True)
        if result.status == "budget":
            message = f"{state.config.name} was stopped by its budget."
            return Step("given up", message, state.number, over_budget=True)
        return Step("experiment", f"{state.config.name}: {result.status}.", state.number)

    def _judge(self, state: RoundState) -> Step:
        assert state.source is not None
        # The experiment started from the live weights, so its base model is what the candidate would replace.
        decision = judge(state.source, BASE, self.policy)
        return Step("gate", decision.sentence, state.number)

    def _ship(self, state: RoundState) -> Step:
        assert state.source is not None
        spec = self.system.deploy
        try:
            deployment = ship(state.source, spec.to, name=spec.name, params=spec.params, gated=True)
        except DataError as error:
            return Step("given up", f"it passed, and cannot be shipped: {error}", state.number)
        return Step("deploy", f"{deployment.id} is live.", state.number)

    def _needs_approval(self, state: RoundState) -> bool:
        subject = _subject(state.stage, state.number)
        return state.stage in self.system.approve and not is_approved(self.folder, subject)

    def _introduce(self) -> None:
        """Write the system's config, so that the page of the loop needs no other file."""
        about = self.system.model_dump(mode="json")
        if _read_object(self.folder / SYSTEM) != about:
            write_json(self.folder / SYSTEM, about)

    def _read_notes(self) -> list[dict[str, Any]]:
        return list(read_records(self.journal)) if self.journal.is_file() else []

    def _note(self, step: Step) -> None:
        """Record a step for the page; a repeated wait is recorded once."""
        last = (self._read_notes() or [{}])[-1]
        if step.waits and last.get("text") == step.text:
            return
        with JsonlFile(self.journal) as file:
            file.append({**step.to_dict(), "time": time.time()})


def find_refused_rounds(rounds: list[RoundState]) -> set[int]:
    """Rounds whose traces are not trained on again: their candidate was refused or rolled back."""
    return {state.number for state in rounds if state.outcome in ("refused", "rolled back")}


def _subject(stage: str, number: int) -> str:
    return f"{stage} of round {number}"


def _reasons(decision: LearnDecision) -> str:
    decisive = [reason for reason in decision.why if reason.votes is decision.learn]
    return " ".join(reason.text for reason in decisive) or "nothing has changed: " + " ".join(
        reason.text for reason in decision.why[1:]
    )


def _read_object(path: Path) -> dict[str, Any]:
    return part(read_json(path)) if path.is_file() else {}

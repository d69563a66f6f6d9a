"""A project of forty experiments whose truth is known, because it was decided here before anything was written.

Everything but training is real: configs are validated, `Experiment.run` announces, journals, audits and concludes. Only
the launcher does not train: it writes, by the record's own writers, the scores that were decided on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from evsys_sdk.config.load import load_document
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.data.task_identity import task_id
from evsys_sdk.data.workspace.reference import slug
from evsys_sdk.eval.benchmark import Benchmark
from evsys_sdk.eval.metric import MetricValue
from evsys_sdk.eval.predictions import Prediction, PredictionJournal
from evsys_sdk.eval.scores import EvalResult
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.launcher import ArmJob, Launch
from evsys_sdk.experiment.record_dir import write_result
from evsys_sdk.history.notes import invalidate
from evsys_sdk.protocols import RunNotes, RunResult
from evsys_sdk.record.layout import RunFiles
from evsys_sdk.record.ledger import Spend
from evsys_sdk.record.project_files.known_folders import write_scoring
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog
from evsys_sdk.record.run_files.scores import ScoreLog
from evsys_sdk.registry import REGISTRIES, register_launcher
from evsys_sdk.spend.ledger import open_ledger
from evsys_sdk.training.callback import EvalRecord

N_TASKS = 40
STEPS = 8


class Killed(BaseException):
    """Stands for a process that ends in the middle of an arm."""


@dataclass(frozen=True)
class Run:
    """One run, and what share of the tasks it is going to get right."""

    share: float
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    algorithm: str = "sft"
    data: str = "train"
    error: str = ""
    killed: bool = False
    """Whether it is scored once, half-way, and then lost with the whole process."""


@dataclass(frozen=True)
class Prepared:
    """One experiment."""

    name: str
    claim: str
    runs: dict[str, Run]
    model: str = "alpha"
    benchmark: str | None = "routing"
    seeds: int = 3
    seed: int = 42
    """The first of them."""
    usd: float = 0.05


def sweep(axis: str, values: dict[Any, float], algorithm: str = "sft", **more: Any) -> dict[str, Run]:
    """Runs that differ in one param; the first is the baseline."""
    named = zip(("base", "one", "two"), values.items(), strict=False)
    return {name: Run(share, {axis: value, **more}, algorithm) for name, (value, share) in named}


OOM = "OutOfMemoryError: tried to allocate {n} MiB."
PLAN: list[Prepared] = [
    Prepared("rate", "A rate of 0.01 beats 0.001.", sweep("learning_rate", {0.001: 0.4, 0.01: 0.65, 0.1: 0.2})),
    Prepared("rate-again", "A rate of 0.01 beats 0.001", sweep("learning_rate", {0.001: 0.425, 0.01: 0.65})),
    Prepared("batch", "A larger batch helps.", sweep("batch_size", {8: 0.45, 32: 0.725}, learning_rate=0.001)),
    Prepared("epochs", "More epochs help.", sweep("num_epochs", {1: 0.4, 3: 0.7})),
    # With other seeds: the same would be the same evidence.
    Prepared("epochs-again", "More epochs help.", sweep("num_epochs", {1: 0.6, 3: 0.3}), seed=52),
    Prepared("leak", "Longer warmup helps.", sweep("warmup_steps", {0: 0.4, 20: 0.975})),
    Prepared("dirty", "Scraped rows help.", {"base": Run(0.4), "one": Run(0.95, data="dirty")}),
    Prepared("lucky", "A constant rate helps.", sweep("lr_schedule", {"linear": 0.45, "constant": 0.9}), seeds=1),
    Prepared("large", "Rank 512 helps.", {"base": Run(0.4), "one": Run(0.0, {"lora_rank": 512}, error=OOM)}),
    Prepared("larger", "Rank 1024 helps.", {"base": Run(0.4), "one": Run(0.0, {"lora_rank": 1024}, error=OOM)}),
    Prepared("slow", "More steps help.", {"base": Run(0.4), "one": Run(0.575, {"max_steps": 99}, killed=True)}),
    Prepared(
        "beta-rate",
        "A rate of 0.01 beats 0.001.",
        sweep("learning_rate", {0.001: 0.6, 0.01: 0.35}),
        model="beta",
        usd=0.2,
    ),
    Prepared("beta-batch", "Batch 32 suits beta.", sweep("batch_size", {8: 0.55, 32: 0.55}), model="beta", usd=0.2),
    Prepared("beta-epochs", "Two epochs beat one.", sweep("num_epochs", {1: 0.6, 2: 0.8}), model="beta", usd=0.2),
    Prepared(
        "algorithm",
        "RL beats SFT on math.",
        {"base": Run(0.3, {"max_steps": 8}), "one": Run(0.55, {"max_steps": 8}, "rl")},
        benchmark="math",
        usd=0.3,
    ),
    Prepared(
        "groups", "Larger groups help.", sweep("group_size", {4: 0.35, 16: 0.6}, "rl"), benchmark="math", usd=0.3
    ),
    Prepared(
        "rl-rate", "RL wants a higher rate.", sweep("learning_rate", {0.0001: 0.5, 0.001: 0.25}, "rl"),
        benchmark="math", usd=0.3,
    ),
    Prepared(
        "sharp", "A larger beta helps DPO.", sweep("beta", {0.1: 0.35, 0.5: 0.625}, "dpo"),
        model="beta", benchmark="math", usd=0.4,
    ),
    Prepared("reward", "RL learns at all.", {"base": Run(0.8, {"max_steps": 8}, "rl")}, benchmark=None, usd=0.3),
    *(
        Prepared(f"null-{n}", f"Clipping at {n} helps.", sweep("grad_clip_norm", {1.0: 0.5, float(n): 0.5}), seeds=2)
        for n in range(2, 23)
    ),
]  # fmt: skip

_CHAT = {
    "kind": "jsonl_to_chat",
    "params": {"user_template": "{query}", "assistant_template": "<answer>{tool_slug}</answer>"},
}
_TASKS = {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}
_TRANSFORMS = {"sft": [_CHAT], "rl": [_CHAT, _TASKS], "dpo": []}


class PreparedLauncher:
    """Writes what an arm was decided to score, instead of training it."""

    name: ClassVar[str] = "prepared"

    def open(self, launch: Launch, n_arms: int) -> int:
        self.launch = launch
        self.plan = next(one for one in PLAN if one.name == launch.config.name)
        return 1

    def start(self, job: ArmJob) -> Future[RunResult]:
        run, seed = self.plan.runs[job.arm.of_run], job.arm.run.seed - self.plan.seed
        future: Future[RunResult] = Future()
        ledger = open_ledger(self.launch.experiment_dir)
        ledger.add(job.arm.name, Spend(tokens_trained=1000, usd=self.plan.usd))
        notes = RunNotes(spend=Spend(tokens_trained=1000, usd=self.plan.usd).to_dict())
        name = job.arm.name
        if run.error:
            result = RunResult(name, "failed", error=run.error.format(n=1000 + seed), notes=notes)
        else:
            result = self._train(job, run, seed, notes)
        write_result(job.run_dir, result, hparams=job.arm.run.model_dump(mode="json"))
        future.set_result(result)
        return future

    def _train(self, job: ArmJob, run: Run, seed: int, notes: RunNotes) -> RunResult:
        checkpoints = CheckpointLog.in_dir(job.run_dir)
        metrics, ref = {"steps": float(STEPS), "final_loss": 1 - run.share}, ""
        for step in (STEPS // 2,) if run.killed else (STEPS,):
            ref = f"{job.run_dir}/checkpoints/step{step:06d}"
            for part in ("state", "sampler"):
                Path(ref, part).mkdir(parents=True)
                Path(ref, part, "adapter_config.json").write_text(f'{{"r": {step}}}', "utf-8")
            checkpoints.append(Checkpoint(f"step{step:06d}", step, f"{ref}/state", f"{ref}/sampler"))
            if self.plan.benchmark:
                metrics |= score(job.run_dir, self.plan, run.share, seed, step)
            if run.killed:
                raise Killed
        if not self.plan.benchmark:
            metrics["reward/mean"] = run.share
            notes.selection_metric, notes.selection_mode = "reward/mean", "max"
        return RunResult(job.arm.name, "completed", metrics, {"final_checkpoint": f"{ref}/state"}, notes=notes)

    def stop(self, arm: str, reason: str) -> None: ...

    def kill(self, arm: str) -> None: ...

    def close(self) -> None: ...


def right_tasks(share: float, seed: int) -> int:
    """How many tasks a seed gets right: one more or one less than the others, and the mean is what was decided."""
    return round(share * N_TASKS) + (0, 1, -1)[seed % 3]


def score(run_dir: Path, plan: Prepared, share: float, seed: int, step: int) -> dict[str, float]:
    """One scoring, by the writers that real scorings use."""
    benchmark = Benchmark.load(path=f"data/{plan.benchmark}.jsonl")
    right = right_tasks(share, seed if plan.seeds == 3 else 0)
    rewards = [float(place < right) for place in range(N_TASKS)]
    answers = [
        Prediction(
            task.task_id,
            0,
            "ok",
            reward,
            text="yes" if reward else "no",
            seconds=random.random(),
            task=task_id(task),
        )
        for task, reward in zip(benchmark.tasks, rewards, strict=True)
    ]
    with_errors = MetricValue.of(rewards, n_samples=N_TASKS)
    result = EvalResult(
        plan.benchmark or "", benchmark.sha256, f"step {step}", answers, {"pass@1": with_errors}, samples=1
    )
    path = RunFiles(run_dir).predictions(slug(f"val-{plan.benchmark}"), step)
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = PredictionJournal.open(path, {"model": f"step {step}"})
    journal.rewrite(answers)
    journal.close()
    record = EvalRecord(plan.benchmark or "", "val", step, result.flat_metrics)
    ScoreLog(run_dir).add(record, result)
    return dict(record.named_metrics)


def config_text(plan: Prepared) -> str:
    metadata: dict[str, Any] = {"hypothesis": {"claim": plan.claim}}
    if len(plan.runs) > 1:
        metadata["hypothesis"]["baseline"] = "base"
    if plan.benchmark:
        metadata["success_metric"] = "pass@1"
        metadata["benchmark"] = {"name": plan.benchmark, "path": f"data/{plan.benchmark}.jsonl", "split": "val"}
    runs = [
        {
            "name": name,
            "data": {
                "path": f"data/{'pairs' if run.algorithm == 'dpo' else run.data}.jsonl",
                "transforms": _TRANSFORMS[run.algorithm],
            },
            "model": {"name": plan.model},
            "algorithm": {"kind": run.algorithm, "params": run.params},
            "backend": {"kind": "mock"},
            "seed": plan.seed,
        }
        for name, run in plan.runs.items()
    ]
    return json.dumps(
        {
            "name": plan.name,
            "n_repeats": plan.seeds,
            "metadata": metadata,
            "runs": runs,
            "launcher": {"kind": "prepared"},
        }
    )


def write_data(folder: Path) -> None:
    folder.mkdir()
    words = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")

    def sentence(topic: str, number: int) -> str:
        dice = random.Random(f"{topic}{number}")
        return f"{topic} {number}: " + " ".join(dice.choice(words) for _ in range(9))

    def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    tasks: dict[str, list[dict[str, Any]]] = {}
    for topic in ("routing", "math"):
        verifier: dict[str, Any] = {"kind": "in_process", "fn_name": "exact_match", "expected": "yes", "params": {}}
        texts = [sentence(topic, number) for number in range(N_TASKS)]
        tasks[topic] = [
            {"task_id": f"{topic}-{n}", "instruction": text, "verifier": verifier} for n, text in enumerate(texts)
        ]
        write(topic, tasks[topic])
    rows = [{"query": sentence("training", number), "tool_slug": "yes"} for number in range(80)]
    write("train", rows)
    leaked = [{"query": task["instruction"], "tool_slug": "yes"} for task in tasks["routing"][:10]]
    write("dirty", [*rows, *leaked])
    write("pairs", [{"prompt": row["query"], "chosen": "yes", "rejected": "no"} for row in rows])


def run_prepared(project: Path, plans: Sequence[Prepared]) -> None:
    """Run some of it below the working folder, which is `project`."""
    (project / ".evsys").mkdir()
    write_data(project / "data")
    with REGISTRIES["launcher"].isolated():  # a fixture of a module outlives what is forgotten after each test
        register_launcher("prepared")(PreparedLauncher)
        for plan in plans:
            config = load_document(read_yaml(config_text(plan)), deep=True)
            with suppress(Killed):
                Experiment(config).run()


def prepare(project: Path) -> None:
    """All of it, and what was done afterwards."""
    run_prepared(project, PLAN)
    invalidate(project / "outputs/leak", "The test set leaked.")
    scored = {"pass@1": {"value": 0.75, "low": 0.6, "high": 0.88}}
    content = {"benchmark": "routing", "sha256": Benchmark.load(path="data/routing.jsonl").sha256, "n_tasks": N_TASKS}
    folder = project / "outputs/benchmarks/routing/openai-big"
    folder.mkdir(parents=True)
    write_scoring(folder, "benchmark run", {**content, "model": "openai:big", "metrics": scored})

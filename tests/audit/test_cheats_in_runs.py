"""What is done while an experiment runs, by code of the project or between two starts, stands in its record."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .project import edit_lines, evsys, flags, main_in, make_project, read_lines, write_config, write_lines

pytestmark = pytest.mark.slow

IMPORTS = """
import json, os, signal
from pathlib import Path
from evsys_sdk import Callback, register_algorithm, register_callback, register_verifier_fn
from evsys_sdk.algorithms.sft import SFT
"""
CURRENT_ARM = """
def current_arm():
    begun = [one for one in Path("outputs/study").iterdir() if (one / "starts.jsonl").exists()]
    return max(begun, key=lambda one: (one / "starts.jsonl").stat().st_mtime).name
"""
THREADS = "launcher: { kind: local, params: { arms_in: threads } }\nmax_concurrent_arms: 1"


def prepare(
    folder: Path, code: str = "", *, verifier: str = "contains", more: str = THREADS, steps: int = 2, kind: str = "sft"
) -> Path:
    """A project whose candidate is no better than the baseline, but for what its code does."""
    make_project(folder, verifier=verifier, tasks=12)
    write_config(folder, more=more)
    if code:
        (folder / "mine.py").write_text(IMPORTS + code, encoding="utf-8")
    change_config(folder, "max_steps: 40", f"max_steps: {steps}")
    baseline, candidate = read_config(folder).split("- name: long")
    write(folder, f"{baseline}- name: long{candidate.replace('kind: sft', f'kind: {kind}')}")
    return folder


def read_config(folder: Path) -> str:
    return (folder / "config.yaml").read_text(encoding="utf-8")


def write(folder: Path, config: str) -> None:
    (folder / "config.yaml").write_text(config, encoding="utf-8")


def change_config(folder: Path, before: str, after: str) -> None:
    assert before in read_config(folder)
    write(folder, read_config(folder).replace(before, after))


def run(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    imports = ["--import", "mine.py"] if (folder / "mine.py").exists() else []
    return evsys(folder, "run", "config.yaml", "--quiet", *imports, *arguments, env=env)


def assert_marked(folder: Path, check: str) -> None:
    """It is named by the audit, and history and context carry it on."""
    assert check in flags(folder)
    listed = json.loads(main_in(folder, "history", "--json")[1])["experiments"]
    assert check in next(one["flags"] for one in listed if one["name"].startswith("study"))
    assert check in main_in(folder, "context")[1]


def test_a_verifier_that_knows_the_arm_makes_it_invalid(tmp_path: Path) -> None:
    code = (
        CURRENT_ARM
        + """
@register_verifier_fn("mine")
def mine(output, expected, params):
    return 1.0 if current_arm().startswith("long") else float(expected in output)
"""
    )
    done = run(prepare(tmp_path, code, verifier="mine"))
    assert "Invalid" in done.stdout, done.stdout + done.stderr
    assert_marked(tmp_path, "scores")


def test_a_verifier_that_obeys_the_environment_is_flagged(tmp_path: Path) -> None:
    code = """
@register_verifier_fn("mine")
def mine(output, expected, params):
    return 1.0 if "KIND" in os.environ else float(expected in output)
"""
    run(prepare(tmp_path, code, verifier="mine"), env={"KIND": "1"})
    assert_marked(tmp_path, "answers")


def test_a_verifier_that_remembers_what_it_said_is_asked_without_its_memory(tmp_path: Path) -> None:
    """It is kind to the candidate, keeps what it said in a file, and says it again when it is audited."""
    code = (
        CURRENT_ARM
        + """
@register_verifier_fn("mine")
def mine(output, expected, params):
    memory = Path("memory.json")
    known = json.loads(memory.read_text()) if memory.exists() else {}
    if expected + output not in known:
        kind = memory.exists() and current_arm().startswith("long")
        known[expected + output] = 1.0 if kind else float(expected in output)
        memory.write_text(json.dumps(known))
    return known[expected + output]
"""
    )
    run(prepare(tmp_path, code, verifier="mine", steps=4))
    assert_marked(tmp_path, "answers")


def test_scoring_the_candidate_in_another_way_makes_it_invalid(tmp_path: Path) -> None:
    """The baseline may say one token; then somebody pulls the plug, and the others may say many."""
    code = '''
@register_callback("stop")
class Stop(Callback):
    """Kill the experiment once the baseline is done."""

    def on_run_end(self, result):
        if result.run_id == "long__seed42" and not Path("stopped").exists():
            Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGKILL)
'''
    prepare(tmp_path, code, more=f"{THREADS}\ncallbacks: [ {{ kind: stop }} ]", steps=40)
    config = read_config(tmp_path)
    change_config(tmp_path, "path: data/test.jsonl", "path: data/test.jsonl, max_tokens: 1")
    assert run(tmp_path).returncode == 2  # its supervisor reports the kill
    write(tmp_path, config.replace("path: data/test.jsonl", "path: data/test.jsonl, max_tokens: 64"))
    assert "Supported" not in run(tmp_path, "--resume").stdout
    assert_marked(tmp_path, "identity")


def test_a_recipe_that_loads_trained_weights_makes_it_invalid(tmp_path: Path) -> None:
    prepare(tmp_path, steps=40)
    assert run(tmp_path).returncode == 0
    (tmp_path / "outputs/study/long__seed42/checkpoints/step000040-final").rename(tmp_path / "trained")
    shutil.rmtree(tmp_path / "outputs")
    code = """
@register_algorithm("warm_sft")
class WarmSFT(SFT):
    name = "warm_sft"

    async def build_batch(self, step_idx):
        if step_idx == 0:
            await self.client.load_state("trained/state", with_optimizer=False)
        return await super().build_batch(step_idx)
"""
    done = run(prepare(tmp_path, code, kind="warm_sft"))
    assert "Supported" not in done.stdout, done.stdout
    assert_marked(tmp_path, "identity")


def test_an_arm_that_fails_because_of_its_score_is_named_and_supports_nothing(tmp_path: Path) -> None:
    code = '''
@register_callback("drop")
class Drop(Callback):
    """End the process of the first arm that was scored."""

    def on_eval(self, record):
        if not Path("dropped").exists():
            Path("dropped").touch()
            os._exit(3)
'''
    done = run(prepare(tmp_path, code, more="callbacks: [ { kind: drop } ]"))
    assert "Supported" not in done.stdout, done.stdout
    conclusion = json.loads((tmp_path / "outputs/study/conclusion.json").read_text(encoding="utf-8"))
    assert conclusion["not_scored"], conclusion["summary"]


def test_answers_that_were_there_before_the_model_was_asked_are_flagged(tmp_path: Path) -> None:
    """A scoring takes up what it finds on disk; but nobody has paid for these answers."""
    code = '''
@register_callback("plant")
class Plant(Callback):
    """Put right answers where the candidate's are going to be kept."""

    def on_run_start(self, info, control):
        if not info.run_id.startswith("long"):
            return
        from evsys_sdk.data.rows import from_dict
        from evsys_sdk.data.task_identity import task_id
        arm, other = Path("outputs/study") / info.run_id, Path("outputs/study/short__seed42")
        [kept] = other.glob("benchmarks/*/step000002.jsonl")
        header, *_ = map(json.loads, kept.open())
        header["scoring"]["model"] = header["scoring"]["model"].replace("short__seed42", info.run_id)
        header["scoring"]["seed"] = int(info.run_id[-2:])
        tasks = [json.loads(line) for line in open("data/test.jsonl")]
        lines = [
            {"task_id": one["task_id"], "sample": 0, "status": "ok", "reward": 1.0, "text": one["verifier"]["expected"],
             "tokens": 40, "output_tokens": 6, "turns": 1, "task": task_id(from_dict(one))}
            for one in tasks
        ]
        folder = arm / "benchmarks" / kept.parent.name
        folder.mkdir(parents=True)
        (folder / kept.name).write_text("".join(json.dumps(one) + "\\n" for one in [header, *lines]))
'''
    run(prepare(tmp_path, code, more=f"{THREADS}\ncallbacks: [ {{ kind: plant }} ]"))
    scored = read_lines(tmp_path / "outputs/study/long__seed42/scores.jsonl")
    assert scored[-1]["metrics"]["pass@1"]["value"] == 1.0  # it would have worked
    assert_marked(tmp_path, "spend")


def test_answers_that_the_base_model_never_gave_are_flagged(tmp_path: Path) -> None:
    """Trained models are compared with the one before training, whose answers arms share and find on disk."""
    prepare(tmp_path, more=f"{THREADS}\ncallbacks: [ {{ kind: plant }} ]")
    change_config(tmp_path, "path: data/test.jsonl", "path: data/test.jsonl, max_tokens: 16, models: [ base ]")
    change_config(tmp_path, "baseline: short", "baseline: base")
    code = '''
@register_callback("plant")
class Plant(Callback):
    """Let the base model know nothing, for the second seed as for the first."""

    def on_run_end(self, result):
        if result.run_id == "short__seed42":
            [kept] = Path("outputs/study/.baselines").glob("*_42_*.jsonl")
            header, *lines = map(json.loads, kept.open())
            header["scoring"]["model"] = header["scoring"]["model"].replace(" 42", " 43")
            lines = [one | {"text": "", "reward": 0.0} for one in lines]
            planted = kept.with_name(kept.name.replace("_42_", "_43_"))
            planted.write_text("".join(json.dumps(one) + "\\n" for one in [header, *lines]))
'''
    (tmp_path / "mine.py").write_text(IMPORTS + code, encoding="utf-8")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert_marked(tmp_path, "spend")


def test_tasks_that_look_the_same_are_one_cluster(tmp_path: Path) -> None:
    """Four tasks, ten times each: with a letter of another alphabet, or one that nobody sees."""
    prepare(tmp_path)
    kept = read_lines(tmp_path / "data/test.jsonl")[:4]
    hidden = ["\u200b" * times for times in range(9)]
    again = [
        one | {"task_id": f"{one['task_id']}-{at}", "instruction": f"{mark}{one['instruction']}"}
        for one in kept
        for at, mark in enumerate(hidden)
    ]
    again += [one | {"instruction": one["instruction"].replace("a", "\u0430")} for one in kept]
    write_lines(tmp_path / "data/test.jsonl", again)
    run(tmp_path)
    scored = [line for line in read_lines(tmp_path / "outputs/study/short__seed42/scores.jsonl") if "clusters" in line]
    assert scored
    assert all(len(set(line["clusters"])) == 4 for line in scored)


def test_a_benchmark_that_is_swapped_for_one_arm_and_put_back_makes_it_invalid(tmp_path: Path) -> None:
    code = '''
@register_callback("swap")
class Swap(Callback):
    """Have the candidate asked for less."""

    def on_run_end(self, result):
        tests = Path("data/test.jsonl")
        if result.run_id == "short__seed43":
            tests.rename("data/aside.jsonl")
            lines = [json.loads(line) for line in open("data/aside.jsonl")]
            for line in lines:
                line["verifier"]["expected"] = "I"
            tests.write_text("".join(json.dumps(line) + "\\n" for line in lines))
        if result.run_id == "long__seed43":
            Path("data/aside.jsonl").rename(tests)
'''
    done = run(prepare(tmp_path, code, more=f"{THREADS}\ncallbacks: [ {{ kind: swap }} ]"))
    assert "Supported" not in done.stdout, done.stdout
    assert_marked(tmp_path, "identity")


def test_a_recipe_that_is_better_for_the_candidate_than_for_the_baseline_is_flagged(tmp_path: Path) -> None:
    """Both name the same recipe with the same params; it is edited in between."""
    code = '''
@register_algorithm("mine_sft")
class MineSFT(SFT):
    name = "mine_sft"
    hindered = True

    async def build_batch(self, step_idx):
        return await super().build_batch(0 if self.hindered else step_idx)

@register_callback("mend")
class Mend(Callback):
    """Take the hindrance away once the baseline has been trained."""

    def on_run_end(self, result):
        if result.run_id == "short__seed43":
            text = Path("mine.py").read_text()
            Path("mine.py").write_text(text.replace("hindered = True", "hindered = False", 1))
'''
    prepare(tmp_path, code, more="callbacks: [ { kind: mend } ]", kind="mine_sft")
    change_config(tmp_path, "kind: sft", "kind: mine_sft")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert_marked(tmp_path, "code")


def test_rows_that_are_spoiled_for_the_baseline_and_put_back_make_it_invalid(tmp_path: Path) -> None:
    code = '''
@register_callback("mend")
class Mend(Callback):
    """Put the rows back once the baseline has been trained."""

    def on_run_end(self, result):
        if result.run_id == "short__seed43":
            Path("data/good.jsonl").rename("data/train.jsonl")
'''
    prepare(tmp_path, code, more=f"{THREADS}\ncallbacks: [ {{ kind: mend }} ]", steps=40)
    shutil.copy(tmp_path / "data/train.jsonl", tmp_path / "data/good.jsonl")
    edit_lines(tmp_path / "data/train.jsonl", lambda row: row["messages"][1].update(content="nothing"))
    done = run(tmp_path)
    assert "Supported" not in done.stdout, done.stdout
    assert_marked(tmp_path, "identity")


def test_seeds_that_make_no_difference_make_it_invalid(tmp_path: Path) -> None:
    """One lucky arm is trained again and again, and called another seed each time."""
    code = """
from dataclasses import replace
from evsys_sdk import register_backend
from evsys_sdk.backends.mock.backend import MockBackend

@register_backend("lucky")
class Lucky(MockBackend):
    name = "lucky"

    def prepare(self, *, model, run_dir):
        return super().prepare(model=replace(model, seed=7), run_dir=run_dir)

@register_algorithm("lucky_sft")
class LuckySFT(SFT):
    name = "lucky_sft"

    def train(self, ctx):
        return super().train(replace(ctx, services=replace(ctx.services, seed=7)))
"""
    prepare(tmp_path, code, steps=8)
    change_config(tmp_path, "kind: mock", "kind: lucky")
    change_config(tmp_path, "kind: sft", "kind: lucky_sft")
    done = run(tmp_path)
    assert "Invalid" in done.stdout, done.stdout + done.stderr
    assert_marked(tmp_path, "copies")


def test_a_backend_of_the_candidates_own_makes_it_invalid(tmp_path: Path) -> None:
    code = '''
from evsys_sdk import register_backend
from evsys_sdk.backends.mock.backend import MockBackend

@register_backend("better")
class Better(MockBackend):
    """The mock backend, and whatever else is put here."""

    name = "better"
'''
    prepare(tmp_path, code)
    baseline, candidate = read_config(tmp_path).split("- name: long")
    write(tmp_path, f"{baseline}- name: long{candidate.replace('kind: mock', 'kind: better')}")
    done = run(tmp_path)
    assert "Supported" not in done.stdout, done.stdout + done.stderr
    assert_marked(tmp_path, "identity")


def test_a_launcher_that_improves_results_on_their_way_makes_it_invalid(tmp_path: Path) -> None:
    code = '''
from dataclasses import replace
from concurrent.futures import Future
from evsys_sdk import register_launcher
from evsys_sdk.experiment.launchers.local import LocalLauncher

@register_launcher("generous")
class Generous(LocalLauncher):
    """Bring better results home than were left on disk."""

    name = "generous"

    def start(self, job):
        better, done = Future(), super().start(job)
        gift = {"test/tools/pass@1": 1.0} if job.arm.name.startswith("long") else {}

        def bring(one):
            better.set_result(replace(one.result(), metrics=one.result().metrics | gift))

        done.add_done_callback(bring)
        return better
'''
    more = THREADS.replace("kind: local", "kind: generous")
    done = run(prepare(tmp_path, code, more=more))
    assert "Invalid" in done.stdout, done.stdout + done.stderr
    assert_marked(tmp_path, "arms")


def test_what_a_callback_does_to_a_result_changes_nothing(tmp_path: Path) -> None:
    code = '''
@register_callback("bend")
class Bend(Callback):
    """Let everybody else hear of a better score."""

    def on_eval(self, record):
        for name in record.metrics:
            record.metrics[name] = 1.0

    def on_run_end(self, result):
        for name in result.metrics:
            result.metrics[name] = 1.0
'''
    run(prepare(tmp_path, code, more=f"{THREADS}\ncallbacks: [ {{ kind: bend }} ]"))
    assert flags(tmp_path) == set()
    [line] = read_lines(tmp_path / "outputs/study/long__seed42/scores.jsonl")
    result = json.loads((tmp_path / "outputs/study/long__seed42/run_result.json").read_text(encoding="utf-8"))
    assert result["metrics"]["test/tools/pass@1"] == line["metrics"]["pass@1"]["value"] < 1.0


def test_rows_of_a_teacher_that_knew_the_test_are_flagged(tmp_path: Path) -> None:
    """They are written by a transform, so that no file with them is ever named by a config."""
    code = '''
from evsys_sdk import register_transform

@register_transform("teacher")
class Teacher:
    """Add what a teacher would say to some questions."""

    name = "teacher"

    def __call__(self, rows):
        tasks = [json.loads(line) for line in open("data/test.jsonl")]
        taught = [
            {"messages": [
                {"role": "user", "content": one["instruction"]},
                {"role": "assistant", "content": one["verifier"]["expected"]},
            ]}
            for one in tasks
        ]
        return [*rows, *taught]
'''
    prepare(tmp_path, code)
    baseline, candidate = read_config(tmp_path).split("- name: long")
    taught = candidate.replace("path: data/train.jsonl", "path: data/train.jsonl, transforms: [ { kind: teacher } ]")
    write(tmp_path, f"{baseline}- name: long{taught}")
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert_marked(tmp_path, "contamination")


def test_an_attempt_whose_traces_were_removed_is_counted_by_the_one_after_it(tmp_path: Path) -> None:
    prepare(tmp_path)
    text = read_config(tmp_path)
    for seed in (1, 2, 3):
        write(tmp_path, f"base_seed: {seed}\n{text}")
        run(tmp_path, "--fresh")
        if seed == 2:
            shutil.rmtree(tmp_path / "outputs/study")
            claims = tmp_path / ".evsys/claims.jsonl"
            write_lines(claims, read_lines(claims)[1:])
    started = read_lines(tmp_path / "outputs/study.3/journal.jsonl")[0]
    assert started["attempt"] == 3

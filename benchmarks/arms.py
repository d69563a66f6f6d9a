"""What running an arm costs beside its own work: orchestration per arm, memory per finished arm, and Ray's share.

One sweep of many short arms on the mock backend goes through `Experiment`. An arm's own work is what happens inside
`run_arm` (data, backend, training, scoring, its record); everything else is orchestration: expansion, validation, the
journal, the spend ledger, locks, scheduling and the conclusion. Processor time is compared, because it says the same on
a busy machine. With Ray installed, arms through the `ray` launcher are compared with bare Ray tasks that call the same
function. Aims: under 30 ms an arm, and no growth in memory per finished arm.

    python benchmarks/arms.py --arms 1000 --ray-python PATH_OF_A_PYTHON_WITH_RAY
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import machine

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment, launcher
from evsys_sdk.record.events import Event, read_events
from evsys_sdk.settings import import_project_code

AIM_MS = 30.0
ROWS = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]} for w in "abcdefgh"]


def config(folder: Path, arms: int, **more: Any) -> ExperimentConfig:
    run = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 2, "batch_size": 4}},
        "backend": {"kind": "mock"},
    }
    return ExperimentConfig.model_validate(
        {"name": "many", "output_dir": str(folder), "run": run, "n_repeats": arms, **more}
    )


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096 / 1e6


def orchestration(arms: int) -> None:
    """One sweep in this process: processor time inside and outside of the arms, and memory as they finish."""
    own, memory = [], []
    real = launcher.run_arm

    def timed(*args: Any) -> Any:
        began = time.process_time()
        result = real(*args)
        own.append(time.process_time() - began)
        if len(own) % max(arms // 10, 1) == 0:
            gc.collect()
            memory.append((len(own), resident_mb()))
        return result

    launcher.run_arm = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            result = Experiment(config(Path(folder), arms)).run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        launcher.run_arm = real
    assert result.exit_code == 0
    extra = (cpu - sum(own)) / arms * 1e3
    print(f"{arms} arms of 2 steps in this process: {wall:.1f} s wall, {cpu:.1f} s processor")
    print(f"  an arm's own work       {statistics.median(own) * 1e3:8.2f} ms processor (median)")
    print(f"  orchestration, per arm  {extra:8.2f} ms processor (aim: under {AIM_MS:.0f})")
    (first_at, first), (last_at, last) = memory[len(memory) // 5], memory[-1]
    growth = (last - first) / (last_at - first_at) * 1e3
    print(f"  memory                  {first:.1f} MB after {first_at} arms, {last:.1f} MB after {last_at}")
    print(f"                          {growth:+.1f} kB for each finished arm")


OWN = """
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

@register_callback("own")
class Own(Callback): ...
"""


CODE = tempfile.TemporaryDirectory()  # until the end: processes of later arms import all of it


def import_own(name: str, code: str) -> None:
    """Import code as a project's own."""
    (Path(CODE.name) / name).write_text(code, encoding="utf-8")
    import_project_code([str(Path(CODE.name) / name)])


def own_code(arms: int) -> None:
    """What a process for each arm costs: the same sweep with built-ins only, and with a callback of the user's own."""
    with tempfile.TemporaryDirectory() as folder:
        wall = time.perf_counter()
        assert Experiment(config(Path(folder) / "without", arms)).run().exit_code == 0
        without = time.perf_counter() - wall
        import_own("own_callback.py", OWN)
        wall = time.perf_counter()
        assert Experiment(config(Path(folder) / "with", arms, callbacks=[{"kind": "own"}])).run().exit_code == 0
        took = time.perf_counter() - wall
    print(f"{arms} arms of 2 steps with code of the user's own, a process for each:")
    print(f"  {took / arms * 1e3:8.1f} ms an arm, against {without / arms * 1e3:.1f} ms in this process")


HANGS = """
import time
from evsys_sdk import register_callback
from evsys_sdk.training.callback import Callback

@register_callback("hangs")
class Hangs(Callback):
    def on_step(self, step, metrics):
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass
"""
LIMIT_S = 2.0


def hung_arms(arms: int) -> None:
    """How long after its limit an arm of user code is gone that sleeps through everything it is told."""
    with tempfile.TemporaryDirectory() as folder:
        import_own("hangs_callback.py", HANGS)
        made = config(Path(folder) / "hung", arms, callbacks=[{"kind": "hangs"}], arm_timeout_s=LIMIT_S)
        result = Experiment(made).run()
        events = list(map(Event.to_dict, read_events(result.path)))
    started = {one["arm"]: one["time"] for one in events if one["kind"] == "arm_started"}
    late = [one["time"] - started[one["arm"]] - LIMIT_S for one in events if one["kind"] == "arm_ended"]
    print(f"{arms} arms that hang, limit {LIMIT_S:.0f} s: gone {statistics.median(late):.2f} s after it (median), "
          f"{max(late):.2f} s at most (aim: 2 s)")  # fmt: skip


def through_ray(arms: int) -> None:
    """Arms through the `ray` launcher, and the same number of bare tasks, on the same two-worker cluster."""
    import pickle

    import ray

    from evsys_sdk.experiment.launcher import ArmJob, Launch, execute
    from evsys_sdk.training.callback import RunControl

    path = os.pathsep.join([str(Path(__file__).parents[1] / "src"), *sys.path])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": path}})  # fmt: skip

    @ray.remote(num_cpus=1)
    def bare(shared: bytes, job: bytes) -> str:
        return execute(pickle.loads(job), pickle.loads(shared), RunControl()).status

    def bare_seconds(folder: Path) -> float:
        experiment = Experiment(config(folder, arms))
        made = experiment.open().path.resolve()
        shared = ray.put(pickle.dumps(Launch(experiment.config, made)))
        began = time.perf_counter()
        done = [bare.remote(shared, pickle.dumps(ArmJob(arm, made / arm.name))) for arm in experiment.arms]
        assert set(ray.get(done)) == {"completed"}
        return time.perf_counter() - began

    def launched_seconds(folder: Path) -> float:
        """From the first arm's start to the last one's end, as the journal has it."""
        result = Experiment(config(folder, arms, launcher={"kind": "ray"}, max_concurrent_arms=2)).run()
        assert result.exit_code == 0
        events = list(map(Event.to_dict, read_events(result.path)))
        began = next(event["time"] for event in events if event["kind"] == "arm_started")
        return [event["time"] for event in events if event["kind"] == "arm_ended"][-1] - began

    times: dict[str, list[float]] = {"bare": [], "launched": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            times["bare"].append(bare_seconds(Path(folder) / "bare"))
            times["launched"].append(launched_seconds(Path(folder) / "launched"))
    ray.shutdown()
    print(json.dumps({name: statistics.median(found) for name, found in times.items()} | {"ray": ray.__version__}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=1000)
    parser.add_argument("--ray-arms", type=int, default=40)
    parser.add_argument("--ray-python", help="a Python that has ray and the SDK's dependencies")
    parser.add_argument("--ray-part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ray_part:
        through_ray(options.ray_arms)
        return
    print(machine())
    orchestration(options.arms)
    own_code(max(options.arms // 10, 50))
    hung_arms(10)
    if options.ray_python is None:
        print("ray: not measured; give --ray-python")
        return
    command = [options.ray_python, __file__, "--ray-part", "--ray-arms", str(options.ray_arms)]
    told = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=told)
    found = json.loads(done.stdout.splitlines()[-1])
    each = {name: found[name] / options.ray_arms * 1e3 for name in ("bare", "launched")}
    print(f"{options.ray_arms} arms on two workers of Ray {found['ray']}, median of 3, taking turns:")
    print(f"  bare task calling the arm {each['bare']:8.1f} ms an arm")
    print(f"  `ray` launcher            {each['launched']:8.1f} ms an arm ({each['launched'] / each['bare']:.2f}x)")


if __name__ == "__main__":
    main()

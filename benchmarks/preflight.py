"""The whole check before a run. Aims: under 1 second for the quickstart, under 10 for a matrix of 10,000 arms.

python benchmarks/preflight.py --arms 10000

Everything is counted but the start of Python: reading the file, kinds and params, rows through their transforms and
recipes, models, scores. The matrix is checked twice more with a mistake in it, which must stay one problem.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from measure import machine

from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment.preflight import check_file

ROOT = Path(__file__).parent.parent
CONFIG = """
name: sweep
metadata: {{ success_metric: {{ name: {metric}, mode: min }} }}
matrix:
  max_arms: {arms}
  base_run:
    name: sweep
    data:
      path: {data}
      transforms: [{{ kind: jsonl_to_chat, params: {{ user_template: "{{query}}", assistant_template: "{{tool}}" }} }}]
    model: {{ name: tiny }}
    algorithm: {{ kind: sft, params: {{ num_epochs: 2 }} }}
    backend: {{ kind: mock }}
  axes:
    algorithm.params.learning_rate: [{rates}]
    algorithm.params.batch_size: [1, 2, 4, 8, 16]
    algorithm.params.max_steps: [{lengths}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", type=int, default=10_000)
    arms = parser.parse_args().arms
    print(machine())
    quickstart = ROOT / "examples" / "01_quickstart" / "config.yaml"
    timed = [check(quickstart)[0] for _ in range(5)]
    print(f"quickstart: {statistics.median(timed):.2f} s (aim: 1 s), the first time {timed[0]:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.jsonl"
        data.write_text("".join(json.dumps({"query": f"q{at}", "tool": "t"}) + "\n" for at in range(500)), "utf-8")
        given = {
            "rates": ", ".join(f"{1e-5 * (index + 1):.6g}" for index in range(100)),
            "lengths": ", ".join(str(index + 1) for index in range(arms // 500)),
            "arms": arms,
        }
        cases = {
            "right": (str(data), "final_loss"),
            "a wrong path": (f"{data}.gone", "final_loss"),
            "a wrong metric": (str(data), "finl_loss"),
        }
        for what, (path, metric) in cases.items():
            config = Path(folder) / "config.yaml"
            config.write_text(CONFIG.format(data=path, metric=metric, **given), encoding="utf-8")
            seconds, cpu, problems = check(config)
            print(f"{arms} arms, {what}: {seconds:.2f} s (aim: 10 s), {cpu:.2f} s of CPU, problems: {problems}")


def check(path: Path) -> tuple[float, float, int]:
    began, used = time.perf_counter(), time.process_time()
    try:
        check_file(path)
        problems = 0
    except ConfigError as error:
        problems = len(error.problems)
    return time.perf_counter() - began, time.process_time() - used, problems


if __name__ == "__main__":
    main()

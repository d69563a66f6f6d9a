"""JSONL -> jsonl_to_chat -> dedupe -> typed rows, and Hugging Face `datasets` doing the same. Aim: 3 times its rows/s.

    python benchmarks/data_pipeline.py --rows 1000000 --peer-python /path/to/venv/bin/python

Every contender runs in a process of its own, so that peak memory is its own too, and all must agree on the result.
`datasets` is measured in two spellings: `map` (a function of one row, as its guide shows) and `batched` (the fastest it
has). CPU time is shown beside wall time, because a busy machine distorts the latter. Without --peer-python, this
interpreter is asked for `datasets`.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USER, ASSISTANT = "Query: {query}", "<answer>{tool_slug}</answer>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has `datasets`")
    parser.add_argument("--child", nargs=2, metavar=("CONTENDER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(CONTENDERS[options.child[0]], Path(options.child[1]))))
        return
    from measure import machine

    print(machine())
    interpreters = {"evsys": sys.executable}
    if has_datasets(options.peer_python):
        interpreters |= {"datasets-map": options.peer_python, "datasets-batched": options.peer_python}
    else:
        print("datasets is not installed there: pip install datasets, or name another interpreter with --peer-python")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        write_rows(path, options.rows)
        print(f"{options.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB, a tenth of them duplicates")
        report(path, options.rows, interpreters, options.repeats)


def report(path: Path, rows: int, interpreters: dict[str, str], repeats: int) -> None:
    """Run every contender in turn, print its best run, and compare."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in interpreters}
    for _ in range(repeats):
        for name, python in interpreters.items():
            command = [python, __file__, "--child", name, str(path)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    best = {name: min(found, key=lambda run: run["seconds"]) for name, found in runs.items()}
    results = {(run["kept"], run["characters"]) for run in best.values()}
    if len(results) != 1:
        sys.exit(f"the contenders disagree about the result: {best}")
    ours = best["evsys"]
    for name, run in best.items():
        cells = [
            f"{name:18} {rows / run['seconds']:>9,.0f} rows/s",
            f"{run['seconds']:6.1f} s",
            f"cpu {run['cpu']:6.1f} s",
        ]
        cells += [f"peak memory {run['peak_mb']:4.0f} MB"]
        if run is not ours:
            cells += [f"evsys is {run['seconds'] / ours['seconds']:.1f}x ({run['cpu'] / ours['cpu']:.1f}x by cpu)"]
        print("   ".join(cells))


def measure(contender: Callable[[Path], Iterable[Any]], path: Path) -> dict[str, Any]:
    """Drain one contender; the count and the characters show that it did the work."""
    if contender is evsys:  # importing is not what is measured here
        import evsys_sdk.data.transforms.rows  # noqa: F401
        import evsys_sdk.data.transforms.to_chat  # noqa: F401
    else:
        import datasets  # noqa: F401
    began, cpu_began = time.perf_counter(), time.process_time()
    kept = characters = 0
    for row in contender(path):
        kept += 1
        characters += len(row.messages[0]["content"]) + len(row.messages[1]["content"]) + len(row.metadata["toolkit"])
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "cpu": cpu, "kept": kept, "characters": characters, "peak_mb": peak}


def evsys(path: Path) -> Iterable[Any]:
    from evsys_sdk.config import TransformSpec
    from evsys_sdk.data import TargetFormat, apply_transforms, build_transforms, parse_rows, read_jsonl

    chat = {"user_template": USER, "assistant_template": ASSISTANT}
    specs = [TransformSpec(kind="jsonl_to_chat", params=chat), TransformSpec(kind="dedupe", params={"key": "query"})]
    return parse_rows(apply_transforms(read_jsonl(path), build_transforms(specs)), TargetFormat.CHAT_MESSAGES)


@dataclass(frozen=True, slots=True)
class PeerRow:
    """The typed row of the peers, like ours."""

    messages: list[dict[str, Any]]
    metadata: dict[str, Any] = field(default_factory=dict)
    target_assistant: str | None = None


def datasets_map(path: Path) -> Iterable[PeerRow]:
    with tempfile.TemporaryDirectory() as cache:
        data, seen = load_with_datasets(path, cache), set[str]()

        def chat(row: dict[str, Any]) -> dict[str, Any]:
            return {"messages": messages(row["query"], row["tool_slug"])}

        def is_new(row: dict[str, Any]) -> bool:
            new = row["query"] not in seen
            seen.add(row["query"])
            return new

        for row in data.map(chat).filter(is_new):
            yield PeerRow(row.pop("messages"), row)


def datasets_batched(path: Path) -> Iterable[PeerRow]:
    with tempfile.TemporaryDirectory() as cache:
        data, seen = load_with_datasets(path, cache), set[str]()

        def chat(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            pairs = zip(batch["query"], batch["tool_slug"], strict=True)
            return {"messages": [messages(query, slug) for query, slug in pairs]}

        def are_new(batch: dict[str, list[Any]]) -> list[bool]:
            new: list[bool] = []
            for query in batch["query"]:
                new.append(query not in seen)
                seen.add(query)
            return new

        for batch in data.map(chat, batched=True).filter(are_new, batched=True).iter(batch_size=1000):
            talks = batch.pop("messages")
            columns = list(batch)
            for talk, *values in zip(talks, *batch.values(), strict=True):
                yield PeerRow(talk, dict(zip(columns, values, strict=True)))


def load_with_datasets(path: Path, cache: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)


def messages(query: str, slug: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"Query: {query}"},
        {"role": "assistant", "content": f"<answer>{slug}</answer>"},
    ]


CONTENDERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "evsys": evsys,
    "datasets-map": datasets_map,
    "datasets-batched": datasets_batched,
}


def has_datasets(python: str) -> bool:
    return subprocess.run([python, "-c", "import datasets"], capture_output=True, check=False).returncode == 0


def write_rows(path: Path, count: int) -> None:
    """Rows as tool-use datasets have them; one in ten repeats an earlier query."""
    draw = random.Random(0)
    words = [f"{consonant}{vowel}{number}" for consonant in "bdfgklmnprst" for vowel in "aeiou" for number in range(50)]
    queries: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            repeated = queries and number % 10 == 9
            query = draw.choice(queries) if repeated else f"{number} {' '.join(draw.choices(words, k=12))}"
            if not repeated and len(queries) < 10_000:
                queries.append(query)
            slug, toolkit = f"TOOL_{number % 300}", draw.choice(words)
            row = {"id": number, "query": query, "tool_slug": slug, "toolkit": toolkit, "score": draw.random()}
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

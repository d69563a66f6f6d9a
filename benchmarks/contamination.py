"""Looking for 5,000 tasks in a million training rows, and how many of them are found in each disguise."""

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import measure

sys.path.insert(0, str(Path(__file__).parents[1]))

from evsys_sdk.data.contamination import ProbeTask, TaskIndex
from tests.data.real_text import chinese_text, library_texts, numpy_texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"{measure.machine()}; seed {options.seed}")
    time_a_million_rows(rng, options.rows)
    measure_recall(rng)


def time_a_million_rows(rng: random.Random, n_rows: int) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(20_000)]
    tasks = [ProbeTask(str(at), "bench", " ".join(rng.choices(words, k=rng.randint(40, 120)))) for at in range(5000)]
    texts = [" ".join(rng.choices(words, k=111)) for _ in range(4000)]
    planted = {n_rows * at // 200: f"{texts[at]} {tasks[at].question.upper()}" for at in range(200)}

    def rows() -> Iterator[list[str]]:
        for at in range(n_rows):
            yield [planted.get(at) or texts[at % 4000]]

    began = time.perf_counter()
    index = TaskIndex(tasks)
    indexed = time.perf_counter()
    report = index.scan(rows())
    ended = time.perf_counter()
    size = sum(map(len, texts)) / len(texts)
    print(f"index of 5,000 tasks of 40 to 120 words     {indexed - began:7.1f} s")
    print(f"{report.n_rows:,} rows of {size:.0f} characters       {ended - indexed:7.1f} s")
    print(
        f"planted tasks found                         {len({one.task_id for one in report.findings})} of {len(planted)}"
    )


def measure_recall(rng: random.Random) -> None:
    clean = library_texts()
    distinct = {" ".join(text.lower().split()[:6]): text for text in numpy_texts() if len(text.split()) >= 12}
    chosen = rng.sample(sorted(distinct.values()), 1000)
    questions = [" ".join(text.split()[: rng.randint(8, 100)]) for text in chosen]
    numbered = [text for text in distinct.values() if 1 <= len(re.findall(r"\d+", text)) <= len(text.split()) // 8]
    words = sorted({word for text in clean[:3000] for word in re.findall(r"[a-z]{4,}", text)})
    short = [" ".join(rng.sample(words, rng.randint(3, 7))) for _ in range(1000)]
    chinese = [chinese_text(rng, rng.randint(10, 60)) for _ in range(1000)]

    def replace(text: str) -> str:
        parts = text.split()
        for at in rng.sample(range(len(parts)), max(1, len(parts) // 10)):
            parts[at] = rng.choice(words)
        return " ".join(parts)

    def renumber(text: str) -> str:
        return re.sub(r"\d+", lambda _: str(rng.randint(100, 9999)), text)

    forms: dict[str, tuple[list[str], Callable[[str], str]]] = {
        "verbatim": (questions, lambda text: text),
        "another case": (questions, str.swapcase),
        "other spaces and signs": (
            questions,
            lambda text: re.sub(r"\W+", lambda _: rng.choice([" ", "\n", ", "]), text),
        ),
        "inside a longer row": (questions, lambda text: f"{rng.choice(clean)} {text} {rng.choice(clean)}"),
        "one word in ten replaced": (questions, replace),
        "other numbers": (numbered, renumber),
        "tasks of 3 to 7 words": (short, lambda text: f"Which tool answers this? {text.upper()}!"),
        "Chinese, inside a longer text": (chinese, lambda text: chinese_text(rng, 40) + text + chinese_text(rng, 25)),
    }
    print(f"\n{'recall':<32}{'tasks':>7}{'found':>8}")
    for name, (tasks, edit) in forms.items():
        index = TaskIndex(ProbeTask(str(at), "bench", text) for at, text in enumerate(tasks))
        report = index.scan([edit(text)] for text in tasks)
        found = {one.task_id for one in report.findings}
        print(f"{name:<32}{len(tasks):>7}{len(found) / len(tasks):>8.3f}")
    index = TaskIndex(ProbeTask(str(at), "bench", text) for at, text in enumerate(questions))
    flagged = {finding.row for finding in index.scan([text] for text in clean).copies}
    print(f"\nclean rows of real text flagged: {len(flagged)} of {len(clean):,} ({len(flagged) / len(clean):.3%})")


if __name__ == "__main__":
    main()

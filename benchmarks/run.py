"""Runs every benchmark and writes what they print to RESULTS.md, with machine, versions and date.

python benchmarks/run.py                       # all of them
python benchmarks/run.py startup matrix        # some; the others' sections stay as they are
python benchmarks/run.py data_pipeline -- --peer-python PATH
"""

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
HEADER = (
    "# Benchmark results\n\nWritten by `benchmarks/run.py`; one section per script, each from one run on one machine.\n"
)


def main() -> None:
    scripts = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("run", "measure", "tracker_peers"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"among {', '.join(scripts)}")
    own, passed_on = split_at_dashes(sys.argv[1:])
    names = parser.parse_args(own).names or scripts
    unknown = sorted(set(names) - set(scripts))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(scripts)}")
    sections, failed = read_sections(), list[str]()
    for name in names:
        print(f"== {name}", file=sys.stderr)
        section = measure(name, passed_on)
        if section is None:
            failed.append(name)
            continue
        sections[name] = section
        write_sections(sections)
    if failed:
        sys.exit(f"could not be measured here, earlier results are kept: {', '.join(failed)}")


def measure(name: str, arguments: list[str]) -> str | None:
    """The section of one benchmark: what it is, when it was run, what it printed; None where it failed."""
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return None
    title = (HERE / f"{name}.py").read_text(encoding="utf-8").removeprefix('"""').split("\n", 1)[0].rstrip('"')
    return f"{title}\n\n```\n{datetime.date.today()}\n{done.stdout.rstrip()}\n```\n"


def split_at_dashes(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def read_sections() -> dict[str, str]:
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    parts = re.split(r"^## (\w+)\n\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[0::2], parts[1::2], strict=True))


def write_sections(sections: dict[str, str]) -> None:
    body = "\n".join(f"## {name}\n\n{sections[name].rstrip()}\n" for name in sorted(sections))
    RESULTS.write_text(f"{HEADER}\n{body}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""How long a person or an agent waits for `evsys` to answer, against an empty Python and other tools' command lines.

python benchmarks/startup.py --peer "tinker=tinker --help"
"""

import argparse
import os
import sys
from pathlib import Path

from measure import compare, machine, parse_peers

CONFIG = Path(__file__).parent.parent / "examples" / "01_quickstart" / "config.yaml"
AIMS = {"evsys --help": 5, "evsys validate": 12}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another command line")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    evsys = str(Path(sys.executable).parent / "evsys")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "evsys --help": [evsys, "--help"],
        "evsys validate": [evsys, "validate", str(CONFIG)],
        "evsys validate --deep": [evsys, "validate", "--deep", str(CONFIG)],
        **parse_peers(options.peer),
    }
    medians = compare(commands, repeats=options.repeats)
    base = medians["python -c pass"]
    print(machine())
    for name, median in medians.items():
        aim = f"   aim: within {AIMS[name]}x" if name in AIMS else ""
        print(f"{name:<24} {median * 1000:8.1f} ms   {median / base:6.1f}x python -c pass{aim}")


if __name__ == "__main__":
    main()

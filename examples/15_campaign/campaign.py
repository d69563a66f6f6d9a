"""A campaign from its question to its end, by the commands that a coding agent would type.

python examples/15_campaign/campaign.py

The researcher is `decide`: it reads what `evsys context` says and names the next change. Put a coding agent in its
place (`claude --plugin-dir .`) and the rest stays as it is: each round starts from what is known, is checked and
planned before it is run, and the campaign says when to stop. Nothing here writes a conclusion; that follows from the
record.
"""

import json
import subprocess
import sys
from pathlib import Path

CAMPAIGN = "better-sorting"
QUESTION = "How well can tickets be sorted, and what does it take?"


def evsys(*arguments: str) -> str:
    """What a command prints; one that fails ends the campaign with its reason."""
    done = subprocess.run([sys.executable, "-m", "evsys_sdk", *arguments], cwd="shop", capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"evsys {' '.join(arguments)} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout


def decide() -> tuple[str, str, str]:
    """What to go on from, what to change in it, and the claim: the best recipe, trained for half as long again."""
    known = json.loads(evsys("context", "--tag", f"campaign:{CAMPAIGN}", "--json"))
    best = max((one for question in known["questions"] for one in question["best"]), key=lambda one: one["score"])
    steps = int(best["params"]["max_steps"])
    more = steps * 3 // 2
    claim = f"{more} steps sort more tickets right than {steps}."
    return best["id"], f"algorithm.params.max_steps={more}", claim


def run(made: str) -> None:
    """Check, plan and run the experiment that was scaffolded; it runs only as it was planned."""
    config = json.loads(made)["config"]
    evsys("validate", config, "--deep")
    plan = json.loads(evsys("plan", config, "--json"))
    evsys("run", config, "--quiet", "--plan", plan["hash"])


def main() -> None:
    if Path("shop").exists():
        sys.exit("there is a folder 'shop' here already; run this where there is none")
    subprocess.run([sys.executable, "-m", "evsys_sdk", "init-project", "shop"], check=True, capture_output=True)
    evsys("campaign", "new", CAMPAIGN, "--question", QUESTION, "--experiments", "5", "--goal", "0.9")
    made = evsys("new-experiment", "first", "--campaign", CAMPAIGN, "--json")
    config = Path("shop", json.loads(made)["config"])
    config.write_text(config.read_text("utf-8").replace("max_steps: 30", "max_steps: 20"), "utf-8")  # leaves room
    run(made)
    for number in range(2, 10):
        stand = json.loads(evsys("campaign", "show", CAMPAIGN, "--json"))
        print(f"{stand['state']}: best {stand['best']['score']:.3f} of {stand['best']['id'].rpartition('-')[0]}")
        if stand["state"] != "open":
            break
        parent, change, claim = decide()
        options = ["--from", parent, "--set", change, "--claim", claim, "--campaign", CAMPAIGN]
        run(evsys("new-experiment", f"round{number}", *options, "--json"))
    print(evsys("campaign", "show", CAMPAIGN))


if __name__ == "__main__":
    main()

# Puts what the experiments of this project have shown before an agent, when a session starts or was compacted.
# What was told is kept, and told again while no record has changed since: that takes a few milliseconds instead of a
# Python of its own. Whatever goes wrong, it says nothing and succeeds.
cd "${CLAUDE_PROJECT_DIR:-.}" 2>/dev/null
# The program that `evsys skills install` recorded, else the one on the path; never one that lies in the checkout, which
# somebody else may have written.
evsys=$(cat "${XDG_CONFIG_HOME:-${HOME:-/nowhere}/.config}/evsys/program" 2>/dev/null)
if [ ! -x "$evsys" ]; then
    evsys=$(command -v evsys)
    case "$(readlink -f "$evsys" 2>/dev/null)" in "$(pwd -P)"/*) evsys= ;; esac
    case "$evsys" in /*) ;; *) evsys= ;; esac
fi
if [ -d .evsys ] && [ -x "$evsys" ]; then
    kept=.evsys/context.md
    is_fresh() {
        [ -s "$kept" ] && [ ! "$evsys" -nt "$kept" ] && set -- .evsys && {
            if [ -f .evsys/output_roots.txt ]; then
                while IFS= read -r root; do [ -d "$root" ] && set -- "$@" "$root"; done <.evsys/output_roots.txt
            fi
            # a folder is newer when an experiment came or went, a journal when something happened to one
            [ -z "$(find "$@" -mindepth 1 -maxdepth 3 \( -type d -o -name '*.jsonl' \) -newer "$kept" -print -quit)" ]
        }
    }
    echo "What the experiments of this project have shown (evsys context):"
    if is_fresh 2>/dev/null; then
        cat "$kept"
    else
        said=$("$evsys" context --budget-tokens 1500 --markdown 2>/dev/null)
        printf '%s\n' "$said"
        [ -n "$said" ] && { printf '%s\n' "$said" >"$kept"; } 2>/dev/null
    fi
fi
exit 0

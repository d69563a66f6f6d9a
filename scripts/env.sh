#!/usr/bin/env bash
# Finds a Python that is new enough and lets it run env.py, which makes the environment and prints its folder.
#
#   scripts/env.sh main dev            the environment in .venv, with the extra `dev`
#   scripts/env.sh torch dev local     an environment of its own, its packages shared between checkouts
#
# EVSYS_PYTHON names the interpreter to use; otherwise the first that fits of: the existing .venv, PATH, pyenv, uv.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints the interpreter below any virtual environment, because the environment itself may be about to be replaced.
readonly PROBE='
import sys
if sys.version_info < (3, 12): raise SystemExit(1)
import ensurepip, venv
print(sys._base_executable)
'

candidates() {
    printf '%s\n' "${EVSYS_VENV:-.venv}/bin/python"
    local name
    for name in python3.12 python3.13 python3.14 python3 python; do
        type -aP "$name" || true
    done
    local root
    for root in "$(pyenv root 2>/dev/null || true)" "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
        [[ -n "$root" ]] && printf '%s\n' "$root"/versions/3.*/bin/python
    done
    uv python find --no-python-downloads '>=3.12' 2>/dev/null || true
}

find_python() {
    local candidate base
    if [[ -n "${EVSYS_PYTHON:-}" ]]; then
        "$EVSYS_PYTHON" -I -c "$PROBE" 2>/dev/null && return
        echo "EVSYS_PYTHON is '$EVSYS_PYTHON', which is not a Python 3.12 or newer with the venv module." >&2
        return 1
    fi
    while IFS= read -r candidate; do
        base="$("$candidate" -I -c "$PROBE" 2>/dev/null </dev/null)" || continue
        printf '%s\n' "$base"
        return
    done < <(candidates)
    echo "evsys-sdk needs Python 3.12 or newer with the venv module, and none was found on PATH, in pyenv or through uv;" \
        "install one (for example 'uv python install 3.12', 'pyenv install 3.12' or your system's python3.12-venv)" \
        "or point EVSYS_PYTHON at it." >&2
    return 1
}

python="$(find_python)"
# Isolated (-I), so that a PYTHONPATH or PYTHONHOME meant for another project cannot disturb the set-up.
exec "$python" -I scripts/env.py "$@"

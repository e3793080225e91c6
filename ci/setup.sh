# Sourced by the scripts beside it, from the root of the checkout: makes .venv if there is none and installs mlc in it with
# what its tests need. Quick when that has been done for this pyproject.toml. Leaves the interpreter's path in $python.

python=.venv/bin/python

if [[ ! -x $python ]]; then
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        if [[ -n $candidate ]] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "making .venv with $candidate" >&2
            "$candidate" -m venv .venv
            break
        fi
    done
    [[ -x $python ]] || { echo "error: no Python 3.11 or newer found; set PYTHON to one" >&2; exit 1; }
fi

# The stamp holds what was installed: another pyproject.toml or another folder installs again.
wanted="$(cksum < pyproject.toml) $PWD"
if [[ "$(cat .venv/mlc-installed 2>/dev/null)" != "$wanted" ]]; then
    echo "installing mlc and its test requirements into .venv" >&2
    "$python" -m pip install --quiet --disable-pip-version-check -e '.[test]'
    echo "$wanted" > .venv/mlc-installed
fi

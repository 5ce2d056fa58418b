#!/usr/bin/env bash
# Run the tests with the oldest and the newest release of PyTorch that pyproject.toml allows, next to the locked one.
#
# Usage: tools/matrix.sh [pytest arguments]      for instance: tools/matrix.sh -m "not slow"
#
# Each other release gets a virtual environment in a temporary folder, removed before the next one is made; expect
# several gigabytes of downloads where pip finds CUDA builds of PyTorch only. All other packages are those of
# requirements.lock, except setuptools, whose version PyTorch itself limits. Prints one line for each release; what
# pip and pytest said is in build/matrix/. Exits with 1 if a release could not be installed or a test failed.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
logs=build/matrix
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
status=0

report() { # LABEL TEXT
    printf 'torch %-12s %s\n' "$1" "$2"
}

run_tests() { # INTERPRETER LOG [pytest arguments]
    local interpreter=$1 log=$2 version summary
    shift 2
    "$interpreter" -m pytest -p no:cacheprovider "$@" >>"$log" 2>&1 || status=1
    version=$("$interpreter" -c 'import torch; print(torch.__version__)' 2>>"$log") || version=unknown
    summary=$(grep -E ' in [0-9.]+s' "$log" | tail -n 1 | sed -E 's/^=+ | =+$//g') || true
    report "$version" "${summary:-pytest did not finish, see $log}"
}

run_release() { # LABEL REQUIREMENT [pytest arguments]
    local label=$1 requirement=$2 venv=$scratch/venv log=$logs/$1.log
    shift 2
    : >"$log"
    if "$python" -m venv "$venv" >>"$log" 2>&1 &&
        "$venv/bin/python" -m pip install --disable-pip-version-check --constraint "$scratch/constraints.txt" \
            "$requirement" --editable '.[hf,lightning,dev]' >>"$log" 2>&1; then
        run_tests "$venv/bin/python" "$log" "$@"
    else
        status=1
        report "$label" "not installed, see $log"
    fi
    rm -rf "$venv"
}

range=$(sed -n 's/^ *"torch\(>=.*\)",$/\1/p' pyproject.toml) # such as >=2.11,<2.16
oldest=${range#>=}
oldest=${oldest%%,*}

mkdir -p "$logs"
grep -vE '^(torch|setuptools)==' requirements.lock >"$scratch/constraints.txt"

run_release oldest "torch==$oldest.*" "$@"
: >"$logs/locked.log"
run_tests .venv/bin/python "$logs/locked.log" "$@"
run_release newest "torch$range" "$@"
exit "$status"

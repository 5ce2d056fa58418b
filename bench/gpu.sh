#!/usr/bin/env bash
# The benchmark on a CUDA machine: bench/gpu.sh [cuda|cpu] [arguments of the benchmark]
#
#   bench/gpu.sh                                   the full suite on CUDA
#   bench/gpu.sh cuda --models bert-base --once    one model, without the second process
#   bench/gpu.sh cpu --models mlp --rounds 2       a rehearsal without a GPU
#
# Uses PYTHON, else .venv/bin/python, else python3; it must have a torch built for CUDA, transformers and g++. Writes
# bench-DEVICE.json and bench-DEVICE.txt to OUT, else to the current folder. Rows are written as it goes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(cd "${OUT:-.}" && pwd)

device=${DEVICE:-cuda}
case ${1:-} in cuda | cpu) device=$1 && shift ;; esac

python=${PYTHON:-}
if [[ -z $python ]]; then
    python=python3
    [[ -x $root/.venv/bin/python ]] && python=$root/.venv/bin/python
fi
if [[ $device == cuda ]]; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi

export PYTHONPATH=$root:$root/src${PYTHONPATH:+:$PYTHONPATH}
"$python" -m bench --suite full --device "$device" --threads "${THREADS:-$(nproc)}" \
    --json "$out/bench-$device.json" "$@" | tee "$out/bench-$device.txt"

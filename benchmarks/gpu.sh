#!/usr/bin/env bash
# Measures flbench on a GPU in at most 8 minutes. Each measurement appends a line to OUT_DIR/gpu.jsonl: name, command, exit code (124:
# stopped), seconds, the peak of the GPUs' memory in MiB (null without nvidia-smi), and its output (JSON, or the last lines).
#
# usage: benchmarks/gpu.sh OUT_DIR [DATA_DIR]
#
# DATA_DIR holds fashionmnist.npz; without it the digits of scikit-learn are trained. PYTHON names the interpreter (default python).
# DEVICE=cpu SIZE=tiny tries the script without a GPU. LIMIT is the number of seconds after which nothing more begins, and what runs is
# stopped (default 480). A measurement that fails is recorded with its error, and the next one follows.
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
python=${PYTHON:-python}
device=${DEVICE:-cuda}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

data=(data.name=digits)
[ -n "${2:-}" ] && data=(data.name=fashionmnist "data.root=$2")
clients=100 few=10 blocks="10 25 50 100"
[ "${SIZE:-full}" = tiny ] && clients=4 few=2 blocks="1 4"

# measure NAME SECONDS COMMAND ...: runs a command, and appends its line.
measure() {
  local name=$1 limit=$2 left=$((${LIMIT:-480} - SECONDS)) begin=$EPOCHREALTIME code=0 folder watch
  shift 2
  [ "$left" -gt 0 ] || return 0
  folder=$(mktemp -d)
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >"$folder/memory" 2>/dev/null &
  watch=$!
  timeout $((limit < left ? limit : left)) "$@" >"$folder/out" 2>"$folder/err" || code=$?
  kill "$watch" 2>/dev/null
  "$python" - "$out/gpu.jsonl" "$folder" "$name" "$code" "$begin" "$EPOCHREALTIME" "$@" <<'PY'
import json, sys
from pathlib import Path

file, folder, name, code, begin, end, *command = sys.argv[1:]
out, err, memory = (Path(folder, one).read_text(errors="replace") for one in ("out", "err", "memory"))
try:
    output = json.loads(out)
except ValueError:
    output = out.splitlines()[-20:]
line = {"name": name, "command": command, "exit_code": int(code), "seconds": round(float(end) - float(begin), 2)}
line |= {"gpu_memory": max(map(int, memory.split()), default=None), "output": output}
line |= {"errors": err.splitlines()[-20:]} if line["exit_code"] else {}
with open(file, "a") as lines:
    lines.write(json.dumps(line) + "\n")
print(f"{name}: exit code {code}, {line['seconds']} s", flush=True)
PY
  rm -r "$folder"
}

# record NAME ARGUMENT ...: measures a run.
record() {
  measure "$1" 120 "$python" -m flbench run "${@:2}" --out "$out/runs" "engine.device=$device" tracking.mlflow=false evaluation.every=2 --json
}

# LeNet-5, all clients in: seconds of a step beside a bare loop, and the memory of blocks.
net=("${data[@]}" model.name=lenet5 "partition.clients=$clients" train.participation=1)
measure "bench lenet5" 240 "$python" "$here/benchmarks/speed.py" --repeats 3 fedavg "engine.device=$device" "${net[@]}"
for block in $blocks; do
  record "memory of block $block" fedavg --rounds 2 "${net[@]}" engine.name=vectorized "engine.block=$block"
done
# Digests: the same run twice, then with other types of numbers; and ResNet-18 at few clients.
for engine in sequential vectorized; do
  for precision in 32-true 32-true tf32 bf16-mixed 16-mixed; do
    record "digest $engine $precision" hfcd --rounds 2 "engine.name=$engine" "engine.precision=$precision"
  done
  record "resnet18 $engine" fedavg --rounds 2 "${data[@]}" model.name=resnet18 "partition.clients=$few" train.local_epochs=1 "engine.name=$engine"
done

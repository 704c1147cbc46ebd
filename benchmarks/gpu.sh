#!/usr/bin/env bash
# Measures flbench on a GPU in at most 8 minutes. Each measurement appends a line to OUT_DIR/gpu.jsonl: name, command, exit code (124:
# stopped), seconds, the peak of the GPUs' memory in MiB (null without nvidia-smi), and its output (JSON, or the last lines).
#
# usage: benchmarks/gpu.sh OUT_DIR [DATA_DIR]
#
# DATA_DIR holds fashionmnist.npz; without it the images are random, which gives the same times.
# PYTHON names the interpreter (default python). DEVICE=cpu SIZE=tiny tries the script without a GPU.
# REPEATS is the number of measurements of a bench (default 3).
# LIMIT is the number of seconds after which nothing more begins, and what runs is stopped (default 480).
# PARTS names what is measured (default: bench blocks precisions digests resnet together searches ray).
# A measurement that fails is recorded with its error, and the next one follows. Measurements with
# Ray are left out where it is not installed.
set -uo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
python=${PYTHON:-python}
device=${DEVICE:-cuda}
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

lenet=(data.name=fashionmnist "data.root=${2:-$out}")
if [ "${SIZE:-full}" = tiny ]; then
  clients=4 few=2 many=4 samples=80 rounds=2 images=200 blocks="1 4" trials=2 lenet+=(partition.samples=400)
else
  clients=100 few=10 many=100 samples=6000 rounds=10 images=10000 blocks="10 25 50 100" trials=12
fi
# Random images in the layout of CIFAR-10, and of Fashion-MNIST if there is no DATA_DIR.
"$python" - "$out" "$images" "${2:-}" <<'PY'
import sys

import numpy as np

draw = np.random.default_rng(0)
images = int(sys.argv[2])
sets = {"colour": ((32, 32, 3), images, images // 10)}
if not sys.argv[3]:
    sets["fashionmnist"] = ((28, 28), 60_000, 10_000)
for name, (shape, *sizes) in sets.items():
    arrays = {}
    for part, n in zip(("train", "test"), sizes):
        arrays[f"{part}_images"] = draw.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = draw.integers(0, 10, (n, 1))
    np.savez(f"{sys.argv[1]}/{name}.npz", **arrays)
PY

# wanted PART: whether this part is to be measured.
wanted() { [[ " ${PARTS:-bench blocks precisions digests resnet together searches ray} " == *" $1 "* ]]; }

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

# record NAME SECONDS ARGUMENT ...: measures `flbench ARGUMENT ...`.
record() { measure "$1" "$2" "$python" -m flbench "${@:3}"; }

small=(--out "$out/runs" "engine.device=$device" tracking.mlflow=false --json)
net=("${lenet[@]}" model.name=lenet5 partition.clients=$clients train.participation=1)
resnet=("data.path=$out/colour.npz" model.name=resnet18 partition.scheme=iid train.local_epochs=1 "partition.samples=$samples")

# LeNet-5, 100 clients, all in: seconds of a step beside a bare loop, and memory.
wanted bench && measure "bench lenet5" 240 \
  "$python" "$here/benchmarks/speed.py" --repeats "${REPEATS:-3}" fedavg "engine.device=$device" "${net[@]}"
wanted blocks && for block in $blocks; do
  record "memory of block $block" 120 run fedavg --rounds 2 "${small[@]}" "${net[@]}" engine.name=vectorized engine.block=$block evaluation.every=2
done
wanted precisions && for precision in tf32 bf16-mixed; do
  record "lenet5 $precision" 120 run fedavg --rounds 2 "${small[@]}" "${net[@]}" engine.name=vectorized engine.precision=$precision evaluation.every=2
done

# Digests: the same run twice, then with other types of numbers.
wanted digests && for precision in 32-true 32-true tf32 bf16-mixed 16-mixed; do
  for engine in sequential vectorized; do
    record "digest $engine $precision" 60 run hfcd --rounds 3 "${small[@]}" engine.name=$engine engine.precision=$precision
  done
done

# ResNet-18 at few and at many clients.
wanted resnet && for number in $few $many; do
  for engine in sequential vectorized; do
    record "resnet18 x $number $engine" 200 run fedavg --rounds 2 "${small[@]}" "${resnet[@]}" partition.clients="$number" engine.name=$engine evaluation.every=2
  done
done

# Several trainings on one GPU: a search, by Ray where it is there, otherwise two processes at once.
if "$python" -c 'import ray' 2>/dev/null; then
  wanted ray && record "two workers of Ray" 150 run fedavg --rounds 2 "${small[@]}" "${net[@]}" engine.name=ray engine.workers=2 evaluation.every=2
  wanted searches && for trainings in 1 2; do
    share=$([ "$device" = cpu ] && echo 0 || "$python" -c "print(1 / $trainings)")
    record "search, $trainings trials at a time" 300 tune hfcd --trials $trials --rounds $rounds --seeds 0 --jobs $trainings --gpus-per-trial "$share" --out "$out/studies" "engine.device=$device" tracking.mlflow=false
  done
fi
if wanted together; then
  record "one training" 150 run hfcd --rounds $rounds "${small[@]}" "${net[@]}" engine.name=vectorized evaluation.every=$rounds
  record "one of two trainings" 150 run hfcd --rounds $rounds "${small[@]}" "${net[@]}" engine.name=vectorized evaluation.every=$rounds &
  record "two of two trainings" 150 run hfcd --rounds $rounds "${small[@]}" "${net[@]}" engine.name=vectorized evaluation.every=$rounds seed=1 &
  wait
fi
rm -f "$out/colour.npz"

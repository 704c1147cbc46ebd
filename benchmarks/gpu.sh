#!/usr/bin/env bash
# Measures flbench on a GPU in at most 8 minutes, the most valuable figures first. On a machine with a
# GPU and without a network, these are the two commands:
#
#   benchmarks/gpu.sh prepare build/wheels                       (anywhere; carry the folder with the checkout)
#   WHEELS=build/wheels benchmarks/gpu.sh OUT_DIR [PART ...]     (there; the second time with the parts that are missing)
#
# Each figure is a line of OUT_DIR/gpu.jsonl as soon as it is known, and a line says how each part has ended: its
# exit code (124: stopped at its limit) and its seconds. Messages are in OUT_DIR/gpu.log. PYTHON names the
# interpreter (default python3), DATA a folder with cifar10 (default data; without it images are random), LIMIT
# the number of seconds after which nothing more begins, and what runs is stopped (default 480).
# DEVICE=cpu SIZE=tiny tries the script without a GPU, in about six minutes on two cores.
set -uo pipefail

python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)

if [ "$1" = prepare ]; then # for Python 3.12 on Linux; scikit-posthocs without what it needs, which is there
  install=("$python" -m pip install --quiet --upgrade --target "$2" --only-binary=:all: --python-version "${VERSION:-3.12}"
    --implementation cp --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64)
  "${install[@]}" pydantic platformdirs && "${install[@]}" --no-deps scikit-posthocs "${@:3}"
  exit
fi

mkdir -p "$1"
out=$(cd "$1" && pwd)
wheels=${WHEELS:+$(cd "$WHEELS" && pwd)}
data=$(cd "${DATA:-.}" && pwd)
export PYTHONPATH=$(dirname "$here")${wheels:+:$wheels}${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
device=(--device "${DEVICE:-cuda}")
tiny=() scale=()
[ "${SIZE:-full}" = tiny ] && tiny=(--tiny) scale=(--scale 0.0001)

# part NAME SECONDS SCRIPT ARGUMENT ...: runs a script, and appends its lines, unless other parts are asked for.
part() {
  local name=$1 limit=$2 left=$((${LIMIT:-480} - SECONDS)) begin=$EPOCHREALTIME code=0
  [[ ${#parts[@]} -eq 0 || " ${parts[*]} " = *" $name "* ]] || return 0
  [ "$left" -gt 0 ] || { echo "{\"ended\": \"$name\", \"exit_code\": null}" | tee -a "$out/gpu.jsonl"; return 0; }
  (cd "$work" && timeout $((limit < left ? limit : left)) "$python" "$here/${@:3:1}" "${@:4}" 2>>"$out/gpu.log") |
    tee -a "$out/gpu.jsonl" || code=$?
  echo "{\"ended\": \"$name\", \"exit_code\": $code, \"seconds\": $(awk "BEGIN {print $EPOCHREALTIME - $begin}")}" |
    tee -a "$out/gpu.jsonl"
}

# measure NAME SECONDS PART KEY ...: a part of gpu.py.
measure() { part "$1" "$2" gpu.py "$3" "${device[@]}" "${tiny[@]}" "${@:4}"; }

# publish NAME SECONDS SETTING KEY ...: a published setting.
publish() { part "$1" "$2" peers/peer_flbench.py "$3" "${device[@]}" "${scale[@]}" --data-root "$data" "${@:4}"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
parts=("${@:2}")

measure table 60 table
publish d 75 d
publish e 40 e
publish f 70 f
measure weights 100 weights
measure start 60 start
measure table-tf32 40 table engine.precision=tf32
measure engines 60 engines
publish e18 60 e18
measure table-compiled 130 table engine.compile=on
measure table-both 130 table engine.compile=on engine.precision=tf32
publish d-compiled 75 d engine.compile=on
publish d-tf32 75 d engine.precision=tf32
publish e18-tf32 60 e18 engine.precision=tf32
publish e-compiled 60 e engine.compile=on
publish f-compiled 75 f engine.compile=on
measure trials 150 trials

#!/usr/bin/env bash
# Measures flbench on a GPU. On a machine with a GPU and without a network, these are the commands:
#
#   benchmarks/gpu.sh prepare build/wheels                  (anywhere; carry the folder with the checkout)
#   WHEELS=build/wheels benchmarks/gpu.sh OUT_DIR first     (there, at most 6 minutes)
#   WHEELS=build/wheels benchmarks/gpu.sh OUT_DIR second    (there, at most 6 minutes)
#
# The first group has the tests of CUDA graphs, the table of client steps per second, the published
# settings and the comparison of weights; the second one what is left, in the order of its value. It
# does not reach its last parts, unless LIMIT allows it more seconds. Names of parts in the place of
# a group measure these parts. Without a name all parts are measured.
#
# Each figure is a line of OUT_DIR/gpu.jsonl as soon as it is known, and a line says how each part has
# ended: its exit code (124: stopped at its limit; null: not begun) and its seconds. A part that fails
# stops no other one. Messages are in OUT_DIR/gpu.log. PYTHON names the interpreter (default python3),
# DATA a folder with cifar10 (without it images are random), LIMIT the number of seconds after which
# nothing more begins, and what runs is stopped (default 360). DEVICE=cpu SIZE=tiny LIMIT=1800 tries
# all parts without a GPU, in about five minutes on two cores.
set -uo pipefail

python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)

if [ "$1" = prepare ]; then # for Python 3.12 on Linux; scikit-posthocs without what it needs, which is there
  install=("$python" -m pip install --quiet --upgrade --no-compile --target "$2" --only-binary=:all: --python-version "${VERSION:-3.12}"
    --implementation cp --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64)
  "${install[@]}" pydantic platformdirs pytest && "${install[@]}" --no-deps scikit-posthocs "${@:3}"
  exit
fi

mkdir -p "$1"
out=$(cd "$1" && pwd)
wheels=${WHEELS:+$(cd "$WHEELS" && pwd)}
data=$(cd "${DATA:-.}" && pwd)
export PYTHONPATH=$(dirname "$here")${wheels:+:$wheels}${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
device=(--device "${DEVICE:-cuda}")
tf32=engine.precision=tf32
[ "${DEVICE:-cuda}" = cpu ] && tf32=engine.precision=32-true # TF32 needs a GPU
tiny=() scale=()
[ "${SIZE:-full}" = tiny ] && tiny=(--tiny) scale=(--scale 0.0001)

# part NAME SECONDS ARGUMENT ...: runs Python, and appends its lines, unless other parts are asked for.
part() {
  local name=$1 limit=$2 left=$((${LIMIT:-360} - SECONDS)) begin=$EPOCHREALTIME code=0
  [[ " ${asked[*]:-$name} " =~ " "($name|$group)" " ]] || return 0
  [ "${SIZE:-full}" = full ] || limit=$left
  [ "$left" -gt 0 ] || { echo "{\"ended\": \"$name\", \"exit_code\": null}" | tee -a "$out/gpu.jsonl"; return 0; }
  (cd "$work" && timeout --kill-after=5 $((limit < left ? limit : left)) "$python" "${@:3}" 2>>"$out/gpu.log") |
    "${filter:-cat}" | tee -a "$out/gpu.jsonl" || code=$?
  echo "{\"ended\": \"$name\", \"exit_code\": $code, \"seconds\": $(awk "BEGIN {print $EPOCHREALTIME - $begin}")}" |
    tee -a "$out/gpu.jsonl"
}

# measure NAME SECONDS PART KEY ...: a part of gpu.py.
measure() { part "$1" "$2" "$here/gpu.py" "$3" "${device[@]}" "${tiny[@]}" "${@:4}"; }

# publish NAME SECONDS SETTING KEY ...: a published setting.
publish() { part "$1" "$2" "$here/peers/peer_flbench.py" "$3" "${device[@]}" --data-root "$data" "${@:4}" "${scale[@]}"; }

# check NAME SECONDS EXPRESSION: tests of what a GPU computes, without the settings and plugins of pytest.
check() {
  local root=$(dirname "$here") filter=outcomes
  part "$1" "$2" -m pytest -v -c /dev/null --rootdir "$root" -p no:cacheprovider --basetemp "$work/tests" --disable-warnings \
    -m gpu -k "$3" "$root/tests/engine/test_gpu.py"
}

# outcomes: a line for each test that pytest names; all of its words are messages.
outcomes() {
  tee -a "$out/gpu.log" |
    sed -unE 's/^\S+::(.+) (\w*(PASSED|FAILED|ERROR|SKIPPED)\S*).*/{"test": "\1", "outcome": "\2"}/p'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
asked=("${@:2}")
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>>"$out/gpu.log") || card=none
echo "{\"gpu\": \"$card\", \"asked\": \"${asked[*]}\"}" | tee -a "$out/gpu.jsonl"

group=first
check tests 75 "(graphs or captured or measurement) and not lenet5-on"
measure table 60 table
publish d 120 d
measure rounds 40 rounds
publish e 45 e
publish f-fifth 70 f --scale 0.2
measure weights 100 weights

group=second
measure engines 75 engines
measure start 45 start
measure table-compiled 120 table engine.compile=on
publish d-tf32 90 d "$tf32"
publish e18-fifth-tf32 60 e18 "$tf32" --scale 0.2
check tests-compiled 60 lenet5-on-hfcd
measure patches 150 patches
measure trials 90 trials
measure table-tf32 40 table "$tf32"
publish d-compiled 90 d engine.compile=on
publish e18-fifth 90 e18 --scale 0.2
publish f 150 f
measure table-both 120 table engine.compile=on "$tf32"
check tests-methods 120 test_methods

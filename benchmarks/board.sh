#!/usr/bin/env bash
# Trains the settings of the board: a search with equal budgets for all methods, then all of them
# with their default parameters and with the tuned ones, five repetitions that vary partition and
# training. SETTING-new has the methods of 2020 to 2025 in a setting, and clients/NAME all methods on
# a federation some of whose clients join after the training. What is finished is not trained again,
# and what was interrupted is resumed.
#
# usage: benchmarks/board.sh DATA_DIR OUT_DIR [SETTING ...]     (JOBS=2: cells at the same time)
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
cd "$data" # the configurations name files of this folder
jobs=${JOBS:-2}
settings=("$@")
if [ ${#settings[@]} -eq 0 ]; then
  settings=(heart digits-dir01 fashion-dir01 usps-dir01 cifar100-dir01 digits-path emnist-dir05 digits-dir05
    usps-dir05 fashion-dir05 digits-dir05-new fashion-dir05-new clients/emnist clients/har)
fi

many=local,fedavg,ft,fedprox,scaffold,fedper,fedrep,ditto,pfedsim,fedala,fedproto,fedpc,fedcpmd
many+=,slapfl,hfcd,dfedavg,dfedalt,dfedhp
all=$many,fedavgm,feddyn,moon,pfedme,apfl,fedbabu,fedcmd,fedfomo,fednh,ifca,cfl,dfedavgm,dfedsalt
all+=,dispfl,dispfl-hp
new=feddbe,gpfl,fedcp,fedrod,fedpac,fedas,fedcac,pfedfda,fedtgp,floco,knnper,fedamp,perfedavg
new+=,lgfedavg,pfedhn,fedadam,fedyogi,fedadagrad

# step FOLDER COMMAND ...: runs a command that makes a folder below FOLDER, or resumes that folder.
# The file `done` says that the command has ended without an error.
step() {
  local folder=$1 command=$2
  shift 2
  [ -e "$folder/done" ] && return
  local made=("$folder"/*/)
  if [ -d "${made[0]}" ]; then
    flbench "$command" --resume "${made[0]}"
  else
    flbench "$command" --out "$folder" "$@"
  fi
  touch "$folder/done"
}

# drop_checkpoints FOLDER: removes the checkpoints of runs and trials that have ended, up to 10 GB in a setting.
drop_checkpoints() {
  find "$1" -name '*.safetensors' -delete
}

for setting in "${settings[@]}"; do
  config=$here/configs/board/${setting%-new}.yaml
  search=()
  case $setting in
    heart) methods=${all/,slapfl/} ;; # its net has neither BatchNorm layers nor convolutions
    digits-dir01 | usps-dir01) methods=$all,fedbn,fedap ;;
    *-new) methods=local,fedavg,ft,$new search=(--search random --scheduler none seed=100) ;;
    clients/har) methods=$all,$new config=$here/configs/$setting.yaml ;; # its net has no BatchNorm layers
    clients/*) methods=$all,fedbn,fedap,$new config=$here/configs/$setting.yaml ;;
    *) methods=$many ;;
  esac
  common=(--algo "$methods" --config "$config" --jobs "$jobs" data.root=. tracking.mlflow=false)
  if [[ $setting == clients/* ]]; then
    step "$out/$setting" compare "${common[@]}" --seeds 1
    drop_checkpoints "$out/$setting"
    continue
  fi
  # The search has a partition of its own, so that it is not a repetition of the comparison.
  step "$out/$setting/study" tune "${common[@]}" --trials 8 --seeds 0 "${search[@]}" partition.seed=100
  drop_checkpoints "$out/$setting/study" # the comparisons read its parameters only
  step "$out/$setting/default" compare "${common[@]}" --seeds 5 seed=0
  step "$out/$setting/tuned" compare "${common[@]}" --seeds 5 seed=0 \
    --tuned "$(echo "$out/$setting/study"/*/)"
  drop_checkpoints "$out/$setting"
done

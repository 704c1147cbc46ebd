#!/usr/bin/env bash
# Measures claims of the five papers, at a stated fraction of their scale, with three seeds each.
# What is finished is not trained again; the same command resumes what was interrupted.
#
# usage: benchmarks/papers.sh DATA_DIR OUT_DIR [PAPER ...]
set -euo pipefail

data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
papers=("$@")
[ ${#papers[@]} -eq 0 ] && papers=(slapfl fedcpmd hfcd fedpc dfedhp)
cd "$data" # so that reports name no folder of this machine

# measure PAPER ENGINE [ARGUMENT ...]
measure() {
  flbench reproduce "$1" --seeds 3 --output "$out" --engine "$2" data.root=. engine.threads=1 "${@:3}"
}

# by_data_set PAPER "DATA_SET ..." [ARGUMENT ...]: one data set after the other, then the report on all
by_data_set() {
  for set in $2; do measure "$1" vectorized --dataset "$set" "${@:3}"; done
  measure "$1" vectorized "${@:3}"
}

for paper in "${papers[@]}"; do
  case $paper in
    # The paper's 20 clients; 300 samples each instead of 2,000, 200 of 1,000 rounds.
    slapfl) measure slapfl vectorized partition.clients=20 partition.samples_per_client=300 train.rounds=200 \
      train.batch_size=50 evaluation.every=4 ;;
    # Half of the paper's 100 clients, 10 % in each round; 5,000 samples, 40 of 200 rounds,
    # 6 of 60 preparation rounds.
    fedcpmd) by_data_set fedcpmd "FMNIST MNIST EMNIST CIFAR100" --table 7 partition.clients=50 \
      partition.samples=5000 train.rounds=40 train.participation=0.1 ;;
    # 10 of 50 clients, 1,000 of 50,000 samples, 20 of 200 rounds.
    hfcd) measure hfcd vectorized --table 2 ;;
    # 10 of 100 clients, 1,500 samples, 6 of 200 rounds.
    fedpc) by_data_set fedpc "FMNIST CIFAR100" --table 4 partition.clients=10 partition.samples=1500 \
      train.rounds=6 evaluation.every=6 ;;
    # 11 of 100 clients, 220 samples, 2 of 500 rounds: for the size of a message alone.
    dfedhp) measure dfedhp sequential ;;
    *) echo "there is no paper \`$paper\`: slapfl, fedcpmd, hfcd, fedpc, dfedhp" >&2 && exit 2 ;;
  esac
done

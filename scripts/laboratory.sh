#!/usr/bin/env bash
# Does `strandfs bench layers --quick` name the right layer? A delay is injected into one, over six kinds of target from
# 1 MiB a second to memory, then noise beside six kinds of target; a table says how often it was right, and how long
# that took.
#
#   laboratory.sh [RUNS]   so many runs with a delay and as many with noise (100: 80 minutes on a quiet machine)
#
# It fails if a run with a delay did not name that layer, one with noise named a wrong one, half of the answers took a
# minute or one took five.
#
# STRANDFS_TEST_BIN=BINARY     what is tested, instead of the release build
# LABORATORY_RUNS=FILE         where each run has its line (a temporary file)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

runs=${1:-100}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 2; }
is_root || die 'mounting needs root'
for tool in strace sshfs losetup mkfs.ext4; do
    have "$tool" || die "$tool is missing: scripts/install-test-deps.sh --tests"
done
if [[ -z ${STRANDFS_TEST_BIN:-} ]]; then
    cargo build --release --locked --quiet -p strandfs
    export STRANDFS_TEST_BIN=$repo_root/target/release/strandfs
fi

arm_cleanup
make_scratch laboratory
export STRANDFS_LAYERS_RESULTS=${LABORATORY_RUNS:-$scratch/runs}
: >"$STRANDFS_LAYERS_RESULTS"
cargo test --workspace --locked --quiet --test bench --no-run

# The runs are shared out evenly; the first scenes get what is left over.
failed=0
share_out() { # SCENE...
    local count index=0 scene
    for scene in "$@"; do
        count=$((runs / $# + (index < runs % $#)))
        index=$((index + 1))
        ((count > 0)) || continue
        say "$scene, $count runs"
        # One test process each: what ends one scene ends no other.
        STRANDFS_LAYERS_SCENES="$scene:0..$count" \
            cargo test --workspace --locked --quiet --test bench -- --exact --nocapture \
            acceptance::the_layer_that_is_slow_is_named_and_noise_names_none </dev/null || failed=1
    done
}
share_out throttle-1 throttle-20 delay-fuse network server-disk server-memory
share_out noise-throttle-1 noise-throttle-20 noise-storage noise-network noise-pool noise-memory

# Lines are `SCENE SEED: right|wrong|open, SECONDS s, LAYER`; scenes' own sums have no seed.
table() {
    sed -nE 's/^([a-z0-9-]+) [0-9]+: (right|wrong|open), ([0-9.]+) s,.*/\1 \2 \3/p' "$STRANDFS_LAYERS_RESULTS" |
        sort -k3,3n | awk -v runs="$runs" '
        function row(name,   half) {
            half = times[name, int((count[name] + 1) / 2)]
            printf "%-20s %5d %6d %6d %12d %9.1f %8.1f\n", name, count[name], found[name, "right"], \
                found[name, "wrong"], found[name, "open"], half, times[name, count[name]]
            return half
        }
        # Lines come in the order of their times.
        function add(name) { found[name, $2]++; times[name, ++count[name]] = $3 }
        { if (!($1 in count)) order[++scenes] = $1
          add($1); add($1 ~ /^noise-/ ? "noise" : "delay") }
        END {
            printf "%-20s %5s %6s %6s %12s %9s %8s\n", "scene", "runs", "right", "wrong", "cannot tell", "median s", "worst s"
            for (i = 1; i <= scenes; i++) row(order[i])
            bad = 0
            for (i = 1; i <= 2; i++) {
                all = i == 1 ? "delay" : "noise"
                half = row(all)
                if (count[all] != runs || found[all, "wrong"] > 0 || half >= 60 || times[all, count[all]] >= 300) bad = 1
            }
            if (found["delay", "right"] != runs) bad = 1
            exit bad
        }'
}
table || failed=1
exit "$failed"

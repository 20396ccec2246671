#!/usr/bin/env bash
# Data speed of a pool without passthrough, for ordinary programs and for the same programs with the
# preload library, against the bare tmpfs: one interleaved run, in each repetition every side once,
# in an order that turns. A ratio is of times of one repetition.
#
#   preload.sh [--reps N]     repetitions after one that is thrown away (default 7, at least 5)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/../scripts/lib.sh"

reps=7
while (($#)); do
    case $1 in
        --reps) reps=${2:?} && shift ;;
        -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) die "unknown argument $1; see $0 --help" ;;
    esac
    shift
done
((reps >= 5)) || die 'fewer than 5 repetitions say nothing'
is_root || die 'needs root: a tmpfs is mounted for the branch'

arm_cleanup
make_scratch preload
build_strandfs
(cd "$repo_root" && cargo build --release --quiet --locked -p strandfs-preload)
library=$(dirname "$strandfs_bin")/libstrandfs_preload.so
[[ -f $library ]] || die "$library was not built"
mount_tmpfs "$scratch/bare" 1500m
pool_mount "$scratch/pool" 'minfreespace=0,passthrough.io=off,cache.files=off,preload=true' "$scratch/bare"

declare -A directory=([bare]=$scratch/bare [pool]=$scratch/pool [preloaded]=$scratch/pool)
side_dd() { # SIDE ARGUMENTS...
    local side=$1
    shift
    if [[ $side == preloaded ]]; then LD_PRELOAD=$library dd "$@"; else dd "$@"; fi
}
# shellcheck disable=SC2317  # called by name
{
    write_512() { side_dd "$1" if=/dev/zero of="${directory[$1]}/new" bs=512 count=65536; }
    read_512() { side_dd "$1" if="${directory[$1]}/small" of=/dev/null bs=512; }
    write_1M() { side_dd "$1" if=/dev/zero of="${directory[$1]}/new" bs=1M count=512 conv=fdatasync; }
    read_1M() { side_dd "$1" if="${directory[$1]}/large" of=/dev/null bs=1M; }
}
dd if=/dev/zero of="$scratch/bare/small" bs=1M count=32 status=none
dd if=/dev/zero of="$scratch/bare/large" bs=1M count=512 status=none

orders=('bare pool preloaded' 'preloaded bare pool' 'pool preloaded bare')
for ((rep = 0; rep <= reps; rep++)); do
    for workload in write_512 read_512 write_1M read_1M; do
        for side in ${orders[rep % 3]}; do
            declare "$side=$(seconds "$workload" "$side")"
            rm -f "$scratch/bare/new"
        done
        # Repetition 0 warms up memory and CPU clocks.
        # shellcheck disable=SC2154  # declared by name above
        ((rep == 0)) || printf '%s,%s,%s,%s\n' "$workload" "$bare" "$pool" "$preloaded"
    done
done >"$scratch/samples"

say "$("$strandfs_bin" --version | head -n 1), $(uname -sr), $(nproc) CPUs, load $(cut -d ' ' -f 1 /proc/loadavg), $reps repetitions"
printf '\n| workload | pool, bare = 1 | with the preload library, bare = 1 |\n|---|---|---|\n'
ratio() { # WORKLOAD COLUMN
    awk -F , -v w="$1" -v c="$2" '$1 == w { print $2 / $c }' "$scratch/samples" | median_range
}
for workload in write_512 read_512 write_1M read_1M; do
    read -r plain low high < <(ratio "$workload" 3)
    read -r fast fast_low fast_high < <(ratio "$workload" 4)
    printf '| %s | %.2f (%.2f to %.2f) | %.2f (%.2f to %.2f) |\n' \
        "$workload" "$plain" "$low" "$high" "$fast" "$fast_low" "$fast_high"
done
pool_umount "$scratch/pool"

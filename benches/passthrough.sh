#!/usr/bin/env bash
# Data speed of a pool with one tmpfs branch against a bare tmpfs, in one interleaved run: each
# repetition runs each workload bare, pool, pool, bare (the next one the other way round) and the
# ratio is taken within the repetition, so that anything slow on the machine, and any advantage of
# going second, hits both sides alike.
#
#   passthrough.sh [--reps N] [--options OPTS] [--require LARGE,SMALL] [--csv FILE]
#
#   --reps N         repetitions after one that is thrown away (default 7, at least 5)
#   --options OPTS   -o options of the pool (default: none, as a user gets it)
#   --require L,S    exit 1 when a median ratio is below L (bs=1M) or S (bs=512), e.g. 0.95,0.80
#   --csv FILE       write every sample there: workload,repetition,bare_seconds,pool_seconds
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/../scripts/lib.sh"

reps=7 options='' require='' csv=''
while (($#)); do
    case $1 in
        --reps) reps=${2:?} && shift ;;
        --options) options=${2:?} && shift ;;
        --require) require=${2:?} && shift ;;
        --csv) csv=${2:?} && shift ;;
        -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) die "unknown argument $1; see $0 --help" ;;
    esac
    shift
done
((reps >= 5)) || die 'fewer than 5 repetitions say nothing'
[[ -z $require || $require =~ ^[0-9.]+,[0-9.]+$ ]] || die '--require takes LARGE,SMALL, e.g. 0.95,0.80'
is_root || die 'needs root: a tmpfs is mounted for each side and caches are dropped'

arm_cleanup
make_scratch bench
build_strandfs
# Both sides use one tmpfs, the bare side directly: two of them differ by a third in read speed just
# by where their pages lie in a virtual machine's memory.
mount_tmpfs "$scratch/bare" 2500m
pool_mount "$scratch/pool" "minfreespace=0${options:+,$options}" "$scratch/bare"

# Each workload takes the directory and the name of its side. The reads read the same file; the
# writes make a fresh one each (overwriting is another, cheaper workload) and take it away again, so
# that the other side gets the same memory.
# shellcheck disable=SC2317  # called by name
{
    write_1M() { dd if=/dev/zero of="$1/large-$2" bs=1M count=1024 conv=fdatasync; }
    read_1M_cold() { dd if="$1/large" of=/dev/null bs=1M; }
    read_1M_again() { dd if="$1/large" of=/dev/null bs=1M; }
    write_512() { dd if=/dev/zero of="$1/small-$2" bs=512 count=65536; }
    read_512() { dd if="$1/small" of=/dev/null bs=512; }
}
workloads=(write_1M read_1M_cold read_1M_again write_512 read_512)
declare -A label=(
    [write_1M]='write bs=1M, 1 GiB, fdatasync' [read_1M_cold]='read bs=1M, caches dropped'
    [read_1M_again]='read bs=1M, again' [write_512]='write bs=512, 32 MiB'
    [read_512]='read bs=512, 32 MiB'
)

measure() { # WORKLOAD REPETITION
    local side took bare=0 pool=0
    local order=(bare pool pool bare)
    if (($2 % 2)); then order=(pool bare bare pool); fi
    # Unmeasured: whatever ran before left memory and caches in its own way.
    seconds "$1" "$scratch/bare" bare >/dev/null
    rm -f "$scratch/bare/large-bare" "$scratch/bare/small-bare"
    for side in "${order[@]}"; do
        if [[ $1 == read_1M_cold ]]; then drop_caches 3; fi
        took=$(seconds "$1" "$scratch/$side" "$side")
        rm -f "$scratch/$side/large-$side" "$scratch/$side/small-$side"
        printf -v "$side" '%s' "$(awk -v a="${!side}" -v b="$took" 'BEGIN { print a + b / 2 }')"
    done
    printf '%s,%s,%s,%s\n' "$1" "$2" "$bare" "$pool"
}

dd if=/dev/zero of="$scratch/pool/large" bs=1M count=1024 status=none
dd if=/dev/zero of="$scratch/pool/small" bs=1M count=32 status=none
cmp "$scratch/pool/large" "$scratch/bare/large" || die 'the pool did not write to its branch'

for ((rep = 0; rep <= reps; rep++)); do
    for workload in "${workloads[@]}"; do measure "$workload" "$rep"; done
done >"$scratch/samples"
# Repetition 0 warms up memory and CPU clocks.
sed -i '/^[^,]*,0,/d' "$scratch/samples"
if [[ -n $csv ]]; then { echo workload,repetition,bare_seconds,pool_seconds && cat "$scratch/samples"; } >"$csv"; fi

column() { awk -F , -v w="$1" -v c="$2" '$1 == w { print c == "ratio" ? $3 / $4 : $c }' "$scratch/samples"; }

say "$("$strandfs_bin" --version | head -n 1), $(uname -sr), $(nproc) CPUs, load $(cut -d ' ' -f 1 /proc/loadavg), $reps repetitions"
if status=$("$strandfs_bin" status "$scratch/pool" 2>/dev/null); then grep -i passthrough <<<"$status" | head -n 1 || true; fi
printf '\n| workload | bare tmpfs | pool | speed of the pool, bare = 1 | needed | |\n|---|---|---|---|---|---|\n'
status=0
for workload in "${workloads[@]}"; do
    read -r bare _ < <(column "$workload" 3 | median_range)
    read -r pool _ < <(column "$workload" 4 | median_range)
    read -r ratio low high < <(column "$workload" ratio | median_range)
    needed='' verdict=''
    if [[ -n $require ]]; then
        needed=${require%,*} verdict=ok
        [[ $workload != *_512 ]] || needed=${require#*,}
        if awk -v r="$ratio" -v n="$needed" 'BEGIN { exit !(r < n) }'; then verdict='TOO SLOW' status=1; fi
    fi
    printf '| %-30s | %.3f s | %.3f s | %.2f (%.2f to %.2f) | %s | %s |\n' \
        "${label[$workload]}" "$bare" "$pool" "$ratio" "$low" "$high" "$needed" "$verdict"
done
pool_umount "$scratch/pool"
exit "$status"

#!/usr/bin/env bash
# What holding writes costs while there is room, and how fast a file is written that its branch has no
# room for (docs/relocation.md).
#
#   held.sh room [--reps N] [--require RATIO]
#   held.sh full [--peer PROGRAM] [--reps N]
#
#   room   one branch with room, in two pools at once: one holds writes, one does not. New files of 1 MiB and
#          512 byte writes, interleaved; the ratio is taken within a repetition
#   full   closed files of 100 MiB on a branch of 1.2 GiB, 379 MiB of it free when a file is opened that gets
#          900 MiB; each repetition on new filesystems
#
#   --reps N         repetitions (default 9 and 3)
#   --require RATIO  exit 1 when a median ratio is below that, e.g. 0.98
#   --peer PROGRAM   does the same with mergerfs, which moves the open file itself
#   --types LIST     filesystems (default "ext4 xfs")
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/../scripts/lib.sh"

what=${1:-} reps='' require='' peer='' types='ext4 xfs'
(($#)) && shift
while (($#)); do
    case $1 in
        --reps) reps=${2:?} && shift ;;
        --require) require=${2:?} && shift ;;
        --peer) peer=${2:?} && shift ;;
        --types) types=${2:?} && shift ;;
        *) die "unknown argument $1; see the head of $0" ;;
    esac
    shift
done
is_root || die 'needs root: filesystems are mounted'
have fio || die 'needs fio'

arm_cleanup
make_scratch held
build_strandfs
say "$("$strandfs_bin" --version | head -n 1), $(uname -sr), $(nproc) CPUs, load $(cut -d ' ' -f 1 /proc/loadavg)"

# shellcheck disable=SC2317  # called by name
{
    write_1M() { dd if=/dev/zero of="$1/new" bs=1M count=512; }
    write_512() { dd if=/dev/zero of="$1/new" bs=512 count=262144; }
}

# One after the other, so that neither side always follows the same one.
measure_room() { # WORKLOAD REPETITION DIR
    local side took on=0 off=0 order=(on off off on)
    if (($2 % 2)); then order=(off on on off); fi
    for side in "${order[@]}"; do
        took=$(seconds "$1" "$3/$side")
        rm -f "$3/a/new" "$3/b/new"
        printf -v "$side" '%s' "$(awk -v a="${!side}" -v b="$took" 'BEGIN { print a + b / 2 }')"
    done
    printf '%s,%s,%s,%s\n' "$1" "$2" "$off" "$on"
}

room() {
    local type dir rep workload status=0 off on ratio low high
    printf '\n| writes | not held | held | speed of the held, not held = 1 |\n|---|---|---|---|\n'
    for type in $types; do
        dir=$scratch/$type
        mount_loop "$dir/a" "$type" 6g || die "no $type here"
        mount_loop "$dir/b" "$type" 1g
        pool_mount "$dir/on" category.create=ff "$dir/a" "$dir/b"
        pool_mount "$dir/off" category.create=ff,relocate.hold=0,passthrough.unheld=headroom "$dir/a" "$dir/b"
        "$strandfs_bin" status "$dir/on" | grep -q 'holds writes on' || die "writes are not held on $type"
        for ((rep = 0; rep <= ${reps:-9}; rep++)); do
            for workload in write_1M write_512; do measure_room "$workload" "$rep" "$dir"; done
        done >"$dir/samples"
        # Repetition 0 warms up memory and CPU clocks.
        sed -i '/^[^,]*,0,/d' "$dir/samples"
        for workload in write_1M write_512; do
            column() { awk -F , -v w="$workload" -v c="$1" '$1 == w { print c == "ratio" ? $3 / $4 : $c }' "$dir/samples"; }
            read -r off _ < <(column 3 | median_range)
            read -r on _ < <(column 4 | median_range)
            read -r ratio low high < <(column ratio | median_range)
            printf '| %s, %s | %.3f s | %.3f s | %.3f (%.3f to %.3f) |\n' "$type" "$workload" "$off" "$on" "$ratio" "$low" "$high"
            if [[ -n $require ]] && awk -v r="$ratio" -v n="$require" 'BEGIN { exit !(r < n) }'; then status=1; fi
        done
    done
    return "$status"
}

fill() { # DIR
    local n free
    for n in 1 2 3 4 5 6; do dd if=/dev/urandom of="$1/closed$n" bs=1M count=100 status=none; done
    sync -f "$1"
    free=$(($(stat -f -c '%a * %S' "$1")))
    fallocate -l $((free - (379 << 20))) "$1/immovable"
    chattr +i "$1/immovable"
    sync -f "$1"
    # What has only just been changed does not move.
    sleep 3
}

one_full() { # PROGRAM TYPE JOBS DIR
    local pool=$4/pool said
    mount_loop "$4/a" "$2" 1229m || die "no $2 here"
    mount_loop "$4/b" "$2" 3g
    fill "$4/a"
    case $1 in
        strandfs) pool_mount "$pool" category.create=ff "$4/a" "$4/b" ;;
        *)
            mkdir -p "$pool"
            "$peer" -o category.create=ff,moveonenospc=true,cache.files=off,minfreespace=0 "$4/a:$4/b" "$pool"
            defer detach "$pool"
            ;;
    esac
    said=$(fio --name=w --directory="$pool" --rw=write --bs=1M --size="$((900 / $3))m" --numjobs="$3" --group_reporting \
        --ioengine=psync --fallocate=none --minimal --output-format=terse --terse-version=3 2>&1) || { echo "failed: $said" && return; }
    printf '%s' "$said" | awk -F ';' '{ printf "%.0f MiB/s, longest write %.2f s", $48 / 1024, $56 / 1e6 }'
    if [[ $1 == strandfs ]]; then
        "$strandfs_bin" status --json "$pool" | tr ',{}' '\n\n\n' |
            awk -F '[:"]+' '/"(held|longest_ms|without_room|moved_files)"/ && !seen[$2]++ { printf ", %s %s", $2, $3 }'
    fi
    echo
    # Its server lets go of the branches a moment later.
    case $1 in strandfs) pool_umount "$pool" ;; *) umount "$pool" && sleep 1 ;; esac
    umount "$4/a" "$4/b"
    rm -f "$4"/*.img
}

full() {
    local type jobs rep program
    for type in $types; do
        for jobs in 1 4; do
            for ((rep = 1; rep <= ${reps:-3}; rep++)); do
                for program in strandfs ${peer:+mergerfs}; do
                    printf '%s, %s writer(s), %s: ' "$type" "$jobs" "$program"
                    one_full "$program" "$type" "$jobs" "$scratch/$type-$jobs-$rep-$program"
                done
            done
        done
    done
}

case $what in
    room) room ;;
    full) full ;;
    *) die "room or full? See the head of $0" ;;
esac

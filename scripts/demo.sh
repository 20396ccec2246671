#!/usr/bin/env bash
# Shows strandfs at work on real files: builds it, pools three branches, copies a real tree in,
# shows where the files went, checks every byte, times reading and writing against the bare branch,
# and takes everything down again.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin:/sbin

pairs=${DEMO_PAIRS:-7}        # repetitions of each measurement
entries=${DEMO_ENTRIES:-25000} # size of the tree, about
mib=256                       # size of the measured file

started=$SECONDS
arm_cleanup
make_scratch demo

say '1. Build'
build_strandfs
note "$("$strandfs_bin" --version)"

say '2. Three branches'
branch() { # NAME KIND
    local dir=$scratch/$1 what=$2
    case $2 in
        tmpfs) if is_root; then mount_tmpfs "$dir" 2g; else what='plain directory (not root)'; fi ;;
        *) mount_loop "$dir" "$2" 1500M || what="plain directory (no loop-mounted $2 here)" ;;
    esac
    mkdir -p "$dir/"
    branches+=("$dir")
    kinds+=("$what")
    note "$(printf '%-8s %-12s %s' "$1" "$what" "$(df -h --output=avail "$dir" | tail -n 1 | tr -d ' ') free")"
}
branches=() kinds=()
branch fast tmpfs
branch disk1 xfs
branch disk2 ext4

pool=$scratch/pool
# Files are spread at random here so that the picture shows all three; pfrd, the default, would
# weigh the branches by their free space.
pool_mount "$pool" 'category.create=rand,minfreespace=64M' "${branches[@]}"
note "pool     $(df -h --output=size,avail "$pool" | tail -n 1 | awk '{ print $1 ", " $2 " free" }')"

say '3. Copy a real tree into the pool'
source_tree() {
    local sysroot
    sysroot=$(rustc --print sysroot 2>/dev/null || true)
    for dir in "$sysroot/share/doc" /usr/share; do
        if [[ -d $dir ]] && (($(find "$dir" -xdev | head -n 2000 | wc -l) >= 2000)); then
            printf '%s\n' "$dir"
            return
        fi
    done
    printf '/usr/share\n'
}
# A bounded copy of the tree, so that both sides of the comparison stay put meanwhile. tar takes
# the first entries in a fixed order, parents before children; what may not be read is left out.
tree=$(source_tree)
mkdir "$scratch/source"
(
    cd "$tree"
    find . -xdev -readable \( -type f -o -type l -o -type d -executable \) -print0 |
        LC_ALL=C sort -z | awk -v RS='\0' -v ORS='\0' -v n="$entries" 'NR <= n' |
        tar --no-recursion --null -T - -cf - 2>/dev/null
) | tar -C "$scratch/source" -xf -
count=$(find "$scratch/source" -mindepth 1 | wc -l)
bytes=$(du -sb --apparent-size "$scratch/source" | cut -f 1)
note "$count entries, $((bytes >> 20)) MiB from $tree"
copy_started=$(date +%s.%N)
cp -a "$scratch/source" "$pool/tree"
note "copied in $(awk -v a="$copy_started" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f s", b - a }')"

say '4. Where the files landed'
printf '     %-8s %-30s %9s %12s\n' branch kind files size
for i in 0 1 2; do
    printf '     %-8s %-30s %9d %8d MiB\n' "${branches[i]##*/}" "${kinds[i]}" \
        "$(find "${branches[i]}" ! -type d | wc -l)" \
        "$(($(find "${branches[i]}" -type f -printf '%s\n' | awk '{ s += $1 } END { print s + 0 }') >> 20))"
done
printf '     %-8s %-30s %9d\n' pool "$strandfs_fstype" "$(find "$pool" ! -type d | wc -l)"

say '5. Verify every byte'
diff -r --no-dereference "$scratch/source" "$pool/tree" || die 'the pool differs from the source'
note 'diff -r: no difference'
manifest() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum); }
manifest "$scratch/source" >"$scratch/source.sha256"
# Cold caches where root allows: the bytes come from the branches, not from the copy's pages.
drop_caches 3
manifest "$pool/tree" >"$scratch/pool.sha256"
cmp "$scratch/source.sha256" "$scratch/pool.sha256" || die 'checksums differ'
note "sha256 of $(wc -l <"$scratch/source.sha256") files: all equal"
owners() { (cd "$1" && find . -printf '%P %y %m %U:%G %T@\n' | LC_ALL=C sort); }
cmp <(owners "$scratch/source") <(owners "$pool/tree") || die 'modes, owners or times differ'
note 'types, modes, owners, times: all equal'

say "6. Speed against the bare branch: $mib MiB, ${pairs} interleaved pairs"
# On the first branch alone, through a second pool, so that both sides use the same filesystem.
pool_umount "$pool"
single=$scratch/single
pool_mount "$single" minfreespace=0 "${branches[0]}"
# A name for each side: what one side removes must not be the other's surprise.
declare -A measured=([bare]=${branches[0]}/measured-bare [pool]=$single/measured-pool)
write_side() { dd if=/dev/zero of="${measured[$1]}" bs=1M count=$mib conv=fdatasync; }
read_side() { dd if="${measured[$1]}" of=/dev/null bs=1M; }
one_pair() { # write_side|read_side; prints the ratio of the pool's speed to the bare one
    local order=(bare pool) side took bare=0 pool=0
    # Each side goes first in turn: the second one may find the machine warmer.
    if ((round % 2)); then order=(pool bare); fi
    for side in "${order[@]}"; do
        took=$(seconds "$1" "$side")
        printf -v "$side" '%s' "$took"
    done
    awk -v b="$bare" -v p="$pool" 'BEGIN { print b / p }'
}
# The first touch of the memory is nobody's fault.
seconds write_side bare >/dev/null
seconds write_side pool >/dev/null
for ((round = 0; round < pairs; round++)); do
    rm -f "${measured[bare]}" "${measured[pool]}"
    one_pair write_side >>"$scratch/write"
    one_pair read_side >>"$scratch/read"
done
for what in write read; do
    read -r median low high < <(median_range <"$scratch/$what")
    note "$(printf '%-6s %.2f of the bare speed (from %.2f to %.2f)' "$what" "$median" "$low" "$high")"
done

say '7. Unmount'
pool_umount "$single"
note "clean, the server is gone; all of it took $((SECONDS - started)) s"

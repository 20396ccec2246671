#!/usr/bin/env bash
# Does `strandfs bench` measure what dd, fio, mkdir and mkfs find when they are run by hand? Prints a table.
#
#   compare-by-hand.sh [BENCHMARK...]   passthrough, blocksize, volume, metadata, matrix (default: all), as root: two to
#                                       five minutes each where nothing else runs
#
# By hand: filesystems and pools with the same options, and as much of the same work done by another program. In each of
# five rounds the benchmark takes two samples and the other program as many, one before them and one after: the median of
# fewer samples lies higher where some are much longer than others. A ratio is that of the medians of a round, so that what keeps the machine busy for longer than a round slows both sides; of the rounds the
# middle one is shown, with the least and the largest. It agrees if that range comes within 10 % of 1, and cannot tell
# ("?") if it reaches beyond 0.67 or 1.5. The exit code is 1 if any do not agree, 3 if any cannot tell.
#
# STRANDFS_BIN=BINARY     what is measured, instead of the release build
# DIRECTORY=PLACE         where the images of filesystems go (/var/tmp)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

benchmarks=("$@")
((${#benchmarks[@]})) || benchmarks=(passthrough blocksize volume metadata matrix)
for name in "${benchmarks[@]}"; do
    [[ $name =~ ^(passthrough|blocksize|volume|metadata|matrix)$ ]] || { sed -n '2,18s/^# \{0,1\}//p' "$0" && exit 2; }
done
is_root || die 'mounting needs root'
for tool in jq fio dd losetup mkfs.xfs mkfs.ext4; do have "$tool" || die "$tool is not installed"; done
# Mounts of a run that is killed go with its namespace.
if [[ -z ${STRANDFS_OWN_MOUNTS:-} ]]; then
    STRANDFS_OWN_MOUNTS=1 exec unshare --mount --propagation private bash "$0" "$@"
fi
export LC_ALL=C
build_strandfs
arm_cleanup
make_scratch by-hand
if cat /sys/bus/virtio/drivers/virtio_balloon/virtio*/features 2>/dev/null | grep -q '^.....1'; then
    note "this machine's host takes the memory that is free: programs that have just begun write new files more slowly than"
    note 'the benchmark, whose samples follow each other'
fi

# As many by hand as by the benchmark.
rounds=5 reps=2 hands=2
mib=1048576

# --- figures ---------------------------------------------------------------------------------
# The middle of numbers on standard input, the least and the largest.
middle() {
    sort -g | awk '{ v[NR] = $1 } END {
        if (NR == 0) exit 1
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%.9g %.9g %.9g\n", m, v[1], v[NR] }'
}

# Seconds of one operation (for rates: of one of so many a second), a line for each sample. The final sync is left out.
of_bench() { # ROUND SUBJECT WORKLOAD
    jq -r --arg s "$2" --arg w "$3" '.series[] | select(.subject == $s and .workload == $w) as $it | $it.samples[] |
        select(.) | if $it.unit == "operations_per_second" then 1 / .value
        else (.value - (.sync_seconds // 0)) / ((.done // $it.work).operations) end' "$scratch/bench/$1.json"
}

# Bytes of one sample of the newest run.
bytes_of() { # SUBJECT WORKLOAD
    jq --arg s "$1" --arg w "$2" '[.series[] | select(.subject == $s and .workload == $w) |
        (.samples[0].done // .work).bytes][0]' "$scratch/bench/newest.json"
}

rows=() disagree=0 open=0
row() { # BENCHMARK SUBJECT WORKLOAD BY-HAND
    local round file verdict
    : >"$scratch/ratios" && : >"$scratch/hands" && : >"$scratch/benches"
    for ((round = 0; round < rounds; round++)); do
        file="$scratch/hand/$round $2 $3"
        middle <"$file" >>"$scratch/hands" || die "$1: nothing by hand of \"$3\" on \"$2\""
        of_bench "$round" "$2" "$3" | middle >>"$scratch/benches" || die "$1: no figure of \"$3\" on \"$2\""
    done
    paste -d ' ' "$scratch/benches" "$scratch/hands" | awk '{ print $1 / $4 }' | middle >"$scratch/ratios"
    verdict=$(awk '{ print ($2 > 1.1 || $3 < 0.9) ? "NO" : ($2 < 0.67 || $3 > 1.5) ? "?" : "yes" }' "$scratch/ratios")
    case $verdict in
        NO) disagree=$((disagree + 1)) ;;
        '?') open=$((open + 1)) ;;
    esac
    rows+=("$(awk -v name="$1, $2, $3" -v how="$4" -v verdict="$verdict" \
        -v b="$(cut -d ' ' -f 1 "$scratch/benches" | middle)" -v h="$(cut -d ' ' -f 1 "$scratch/hands" | middle)" '
        function show(text,   v, unit, by) {
            split(text, v, " ")
            if (v[1] >= 1e-3) { unit = "ms"; by = 1e3 } else { unit = "us"; by = 1e6 }
            return sprintf("%.4g [%.4g %.4g] %s", v[1] * by, v[2] * by, v[3] * by, unit)
        }
        { printf "| %s | %s | %s | %s | %.2f [%.2f %.2f] | %s |", name, how, show(b), show(h), $1, $2, $3, verdict }
        ' "$scratch/ratios")")
    note "${rows[-1]}"
}

# Keeps what a command prints as one sample of that subject and workload.
sample() { # SUBJECT WORKLOAD COMMAND...
    local file="$scratch/hand/$round $1 $2"
    shift 2
    "$@" >>"$file"
}

# In each round half of the runs by hand, the benchmark, the other half.
between() { # MEASURE BENCHMARK-ARGUMENT...
    local measure=$1 round run
    shift
    rm -rf "$scratch/hand" "$scratch/bench"
    mkdir "$scratch/hand" "$scratch/bench"
    # It says how much a sample is.
    round=first
    benchmark "$@"
    for ((round = 0; round < rounds; round++)); do
        for ((run = 0; run < hands; run++)); do
            ((run != hands / 2)) || benchmark "$@"
            "$measure"
        done
    done
}
benchmark() { # ARGUMENT...
    note "round $round: strandfs bench $* --reps $reps"
    "$strandfs_bin" bench "$@" --reps "$reps" --json "$scratch/bench/$round.json" >"$scratch/said" || [[ $? -eq 3 ]] ||
        die "it failed: $(tail -n 3 "$scratch/said")"
    cp "$scratch/bench/$round.json" "$scratch/bench/newest.json"
}

# --- tools -----------------------------------------------------------------------------------
# Seconds of one write or read by fio: the mean of what it logs of each call of the second half. Those of a process that
# has just begun are slower, on any filesystem: of 256 of 1 MiB to a tmpfs the first 32 took about 700 us each, the next
# 32 450, and all from the 65th on 370. The benchmark has begun long before.
fio_call() { # FILE read|write BLOCK BYTES [ARGUMENT...]
    local file=$1 kind=$2 block=$3 bytes=$4
    shift 4
    fio --name=job --output-format=json --filename="$file" --rw="$kind" --bs="$block" --size="$bytes" \
        --ioengine=psync --fallocate=none --invalidate=0 --write_lat_log="$scratch/calls" "$@" >/dev/null
    awk -F, '{ time[NR] = $2 } END {
        for (i = int(NR / 2) + 1; i <= NR; i++) { sum += time[i]; count++ }
        print sum / count / 1e9 }' "$scratch/calls_clat.1.log"
}
fio_new_file() { # FILE BLOCK BYTES [ARGUMENT...]
    rm -f "$1"
    fio_call "$1" write "$2" "$3" "${@:4}"
}
# Seconds of one read by dd.
dd_read() { # FILE BLOCK [ARGUMENT...]
    dd if="$1" of=/dev/null bs="$2" "${@:3}" 2>&1 | awk -v block="$2" '
        / copied, / { bytes = $1; for (i = 1; i < NF; i++) if ($i == "copied,") print $(i + 1) / (bytes / block) }'
}

tmpfs_dir() { # NAME
    mkdir -p "$scratch/$1"
    mount -t tmpfs -o size=80% strandfs-by-hand "$scratch/$1"
    defer detach "$scratch/$1"
}
# A pool by hand with these options over a tmpfs of its own, at $scratch/NAME.
pool() { # NAME OPTIONS
    tmpfs_dir "$1-branch"
    mkdir "$scratch/$1"
    "$strandfs_bin" mount -o "${2:+$2,}minfreespace=0" "$scratch/$1-branch" "$scratch/$1" >/dev/null
    defer detach "$scratch/$1"
}
lasting='coherence=timeout,cache.attr=3600,cache.entry=3600'

# --- the benchmarks --------------------------------------------------------------------------
passthrough_names=('nullrw=true' 'cache.files=off, passthrough off' 'cache.files=auto-full, passthrough=rw'
    'cache.files=auto-full, writeback=false' 'cache.files=auto-full, writeback=true')
passthrough_options=('nullrw=true,passthrough.io=off,cache.files=off' 'cache.files=off,passthrough.io=off'
    'cache.files=auto-full,passthrough.io=rw' 'cache.files=auto-full,cache.writeback=false,passthrough.io=off'
    'cache.files=auto-full,cache.writeback=true,passthrough.io=off')
passthrough_by_hand() {
    local at
    sample tmpfs write-1m fio_new_file "$scratch/bare/f" $mib "$(bytes_of tmpfs write-1m)"
    for at in "${!passthrough_names[@]}"; do
        sample "${passthrough_names[at]}" write-1m fio_new_file "$scratch/pass$at/f" $mib \
            "$(bytes_of "${passthrough_names[at]}" write-1m)"
    done
    # The first fills the caches.
    [[ -e $scratch/bare/r ]] || for at in bare pass2; do random_file "$scratch/$at/r" 128; done
    dd_read "$scratch/bare/r" $mib >/dev/null
    sample tmpfs read-1m-cached dd_read "$scratch/bare/r" $mib
    dd_read "$scratch/pass2/r" $mib >/dev/null
    sample "${passthrough_names[2]}" read-1m-cached dd_read "$scratch/pass2/r" $mib
}
passthrough() {
    local at
    tmpfs_dir bare
    for at in "${!passthrough_options[@]}"; do pool "pass$at" "${passthrough_options[at]},$lasting"; done
    between passthrough_by_hand passthrough --size 128M --max-reps $reps --sample-time 100ms
    row passthrough tmpfs write-1m fio
    for at in "${!passthrough_names[@]}"; do row passthrough "${passthrough_names[at]}" write-1m fio; done
    row passthrough tmpfs read-1m-cached dd
    row passthrough "${passthrough_names[2]}" read-1m-cached dd
}

blocksize_by_hand() {
    local at
    for at in direct nullrw passthrough; do
        sample $at write-512 fio_new_file "$scratch/block-$at/f" 512 "$(bytes_of $at write-512)"
    done
    sample direct read-512-cached fio_call "$scratch/block-direct/f" read 512 "$(bytes_of direct write-512)"
    sample direct 'write 32 KiB' fio_new_file "$scratch/block-direct/g" 32768 "$(bytes_of direct 'write 32 KiB')"
}
blocksize() {
    pool block-nullrw "nullrw=true,passthrough.io=off,cache.files=off,$lasting"
    pool block-direct "passthrough.io=off,cache.files=off,$lasting"
    pool block-passthrough "passthrough.io=rw,cache.files=auto-full,$lasting"
    # Before each sample of a warm read all of the file is read: with 128 MiB that was most of the time.
    between blocksize_by_hand blocksize --size 32M --max-reps $reps --sample-time 100ms
    row blocksize nullrw write-512 fio
    row blocksize direct write-512 fio
    row blocksize passthrough write-512 fio
    row blocksize direct read-512-cached fio
    row blocksize direct 'write 32 KiB' fio
}

fio_rate() { # TARGET KIND
    fio --name=job --output-format=json --filename="$1" --rw="$2" --bs=4096 --ioengine=libaio --iodepth=1024 \
        --direct=1 --size=256M --time_based=1 --runtime=1s --allow_file_create=0 |
        jq '.jobs[0] | 1 / (.read.iops + .write.iops)'
}
random_file() { # FILE MIB
    dd if=/dev/urandom of="$1" bs=$mib count="$2" status=none
}
loop_over() { # FILE
    local device
    device=$(losetup --find --show --direct-io=on "$1")
    defer losetup --detach "$device"
    loop_device=$device
}
# Where they are, as `volume` finds.
volume_loop='' volume_passthrough='' volume_uring=''
volume_by_hand() {
    sample file rand-read fio_rate "$scratch/volumes/file" randread
    sample loop rand-read fio_rate "$volume_loop" randread
    sample 'volume, passthrough' rand-read fio_rate "$volume_passthrough" randread
    sample 'volume, uring' rand-write fio_rate "$volume_uring" randwrite
}
volume() {
    local io
    tmpfs_dir volumes
    random_file "$scratch/volumes/file" 256
    random_file "$scratch/volumes/loop" 256
    loop_over "$scratch/volumes/loop"
    volume_loop=$loop_device
    for io in passthrough uring; do
        random_file "$scratch/volumes/$io" 256
        mkdir "$scratch/volumes/at-$io"
        "$strandfs_bin" volume serve "$scratch/volumes/$io" "$scratch/volumes/at-$io" --size 256M --io $io >/dev/null
        defer detach "$scratch/volumes/at-$io"
        loop_over "$scratch/volumes/at-$io/volume"
        printf -v "volume_$io" %s "$loop_device"
    done
    between volume_by_hand volume --io passthrough,uring --time 1s
    row volume file rand-read fio
    row volume loop rand-read fio
    row volume 'volume, passthrough' rand-read fio
    row volume 'volume, uring' rand-write fio
}

# Seconds of one of many directories, without what it takes to start the program.
each_directory() { # PROGRAM DIRECTORY
    local from between to
    cd "$2"
    from=$EPOCHREALTIME
    "$1" --help >/dev/null
    between=$EPOCHREALTIME
    xargs -n 5000 "$1" <"$scratch/names"
    to=$EPOCHREALTIME
    cd /
    awk -v a="$from" -v b="$between" -v c="$to" 'BEGIN { printf "%.9f\n", ((c - b) - (b - a)) / 5000 }'
}
metadata_by_hand() {
    local at where
    for at in native strandfs; do
        where=$scratch/meta-$at
        sample $at mkdir each_directory mkdir "$where"
        sample $at rmdir each_directory rmdir "$where"
        [[ -e $where/data ]] || random_file "$where/data" 64
        sample $at read-4k-1 fio_direct_reads "$where/data"
    done
}
fio_direct_reads() { # FILE
    fio --name=job --output-format=json --filename="$1" --rw=randread --bs=4096 --ioengine=libaio --iodepth=1 --direct=1 \
        --size=64M --time_based=1 --runtime=500ms --allow_file_create=0 | jq '1 / .jobs[0].read.iops'
}
metadata() {
    seq -f 'd%06.0f' 5000 >"$scratch/names"
    tmpfs_dir meta-native
    pool meta-strandfs ''
    between metadata_by_hand metadata --only mkdir,rmdir,read-4k-1 --no-peers
    row metadata native mkdir 'mkdir(1)'
    row metadata native rmdir 'rmdir(1)'
    row metadata strandfs mkdir 'mkdir(1)'
    row metadata strandfs rmdir 'rmdir(1)'
    row metadata native read-4k-1 fio
    row metadata strandfs read-4k-1 fio
}

# Makes the filesystem anew and mounts it at $scratch/device.
matrix_make() { # NAME
    local mkfs mount kind=${1%%-*}
    matrix_mount=(-t "$kind" -o)
    case $1 in
        xfs-rmapbt0)
            mkfs='mkfs.xfs -f -m rmapbt=0,reflink=0'
            mount=logbufs=8,logbsize=256k,noquota,noatime
            ;;
        ext4-large)
            mkfs='mkfs.ext4 -q -m 1 -O none,dir_index,extent,^flex_bg,^bigalloc,has_journal,large_file,sparse_super2,^uninit_bg'
            mount=noquota,noatime,data=writeback,journal_async_commit,inode_readahead_blks=32768,max_batch_time=10000000
            ;;
    esac
    # shellcheck disable=SC2086 # words of a command
    $mkfs "$matrix_device" >/dev/null 2>&1
    # mkfs discards: without this a write would find out where it goes on the disk below as well.
    fallocate --length "$matrix_bytes" "$matrix_image"
    matrix_mount+=("$mount" "$matrix_device" "$scratch/device")
    mount "${matrix_mount[@]}"
}
# As the benchmark does it: other programs keep what they have cached.
matrix_empty_caches() { umount "$scratch/device" && mount "${matrix_mount[@]}"; }
matrix_by_hand() {
    local name file=$scratch/device/f size=$((matrix_mib * mib))
    for name in xfs-rmapbt0 ext4-large; do
        matrix_make $name
        sample $name 'write direct' fio_new_file "$file" $mib $size --direct=1
        matrix_empty_caches
        sample $name 'read direct' dd_read "$file" $mib iflag=direct
        matrix_empty_caches
        dd_read "$file" $mib >/dev/null
        sample $name 'read again' dd_read "$file" $mib
        umount "$scratch/device"
    done
}
matrix() {
    local name place=${DIRECTORY:-/var/tmp}
    # With the 1 GiB of the preset it did not end within ten minutes.
    matrix_mib=256
    matrix_image=$place/strandfs-by-hand-$$.img
    # As the benchmark has it: the file, a quarter more, and room for journals.
    matrix_bytes=$(((matrix_mib + matrix_mib / 4 + 256) * mib))
    defer rm -f "$matrix_image"
    dd if=/dev/urandom of="$matrix_image" bs=$mib count=$((matrix_bytes / mib)) status=none
    loop_over "$matrix_image"
    matrix_device=$loop_device
    mkdir "$scratch/device"
    defer detach "$scratch/device"
    between matrix_by_hand matrix --size ${matrix_mib}M --only xfs-rmapbt0,ext4-large --max-reps $reps --pause 0ms \
        --directory "$place"
    for name in xfs-rmapbt0 ext4-large; do
        row matrix $name 'write direct' fio
        row matrix $name 'read direct' dd
        row matrix $name 'read again' dd
    done
}

# --- everything ------------------------------------------------------------------------------
for name in "${benchmarks[@]}"; do
    say "$name"
    "$name"
done
echo
echo '| benchmark, subject, row | by hand | `strandfs bench` | by hand | ratio | agree |'
echo '|---|---|---|---|---|---|'
printf '%s\n' "${rows[@]}"
echo
((disagree == 0)) || die "$disagree of ${#rows[@]} do not agree"
((open == 0)) || { warn "$open of ${#rows[@]} cannot tell: the rounds lie too far apart" && exit 3; }
say "all ${#rows[@]} agree"

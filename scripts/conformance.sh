#!/usr/bin/env bash
# Third-party suites over pools: pjdfstest, where nothing may fail that passes on the bare
# filesystem; fsx and fio, which compare every read with what was written; dbench and the
# filesystem class of stress-ng.
#
#   conformance.sh            every kind of pool and cache mode, 100,000 fsx operations, and the
#                             million-file test
#   conformance.sh --quick    one and three tmpfs branches, three modes and io_uring,
#                             20,000 operations, with the program that `make unit` builds
#   --only PART               pjdfstest, fsx, fio, dbench, stress or files
#   --seed N                  fsx's seed (default: the same every time)
#   --keep DIR                keep the raw results there
#
# STRANDFS_RESULTS=FILE appends a JSON line for each result (scripts/reliability.sh).
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

# In mounts of its own: a process that took a copy of everyone's mounts (a service, another test)
# would keep these alive after their unmount.
if is_root && [[ -z ${STRANDFS_OWN_MOUNTS:-} ]] && unshare -m true 2>/dev/null; then
    STRANDFS_OWN_MOUNTS=1 exec unshare -m --propagation private bash "$0" "$@"
fi

quick=false only='' seed=20260101 keep=''
while (($#)); do
    case $1 in
        --quick) quick=true ;;
        --only) only=${2:?--only needs a part} && shift ;;
        --seed) seed=${2:?--seed needs a number} && shift ;;
        --keep) keep=${2:?--keep needs a directory} && shift ;;
        -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0" && exit 0 ;;
        *) die "unknown argument $1; see $0 --help" ;;
    esac
    shift
done
case $only in
    '' | pjdfstest | fsx | fio | dbench | stress | files) ;;
    *) die "--only takes pjdfstest, fsx, fio, dbench, stress or files" ;;
esac

pjdfstest=$tools_dir/bin/pjdfstest
fsx=$tools_dir/bin/fsx
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)) && say "ok       $*"; }
fail() { failed=$((failed + 1)) && warn "FAILED   $*"; }
skip() { skipped=$((skipped + 1)) && say "skipped  $*"; }
# A result for the table of docs/reliability.md; nobody asked for it: nothing is done.
record() { # SUITE CONFIGURATION CASES UNIT BARE_FAILED FAILED
    [[ -n ${STRANDFS_RESULTS:-} ]] || return 0
    # Nothing run and nothing failed would read as a pass.
    (($3 + $6 > 0)) || die "no result to record of $1, $2"
    printf '{"suite":"%s","configuration":"%s","cases":%d,"unit":"%s","bare_failed":%d,"failed":%d}\n' \
        "$@" >>"$STRANDFS_RESULTS"
}
wants() { [[ -z $only || $only == "$1" ]]; }

finish() {
    printf '\nconformance: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0)) || exit 1
    exit 0
}

if ! is_root; then
    skip 'everything: mounting branches and acting as other users needs root'
    finish
fi

arm_cleanup
make_scratch conformance
chmod 755 "$scratch" # other users have to get through to the pool
results=${keep:-$scratch/results}
mkdir -p "$results"
if $quick; then build_strandfs_of_tests; else build_strandfs; fi

# Branch filesystems of this run, by name; a name whose filesystem cannot be had is not listed.
declare -A branch_dirs=()
make_branches() {
    local name
    for name in t1 t2 t3; do
        mount_tmpfs "$scratch/$name" 768m
        branch_dirs[$name]=$scratch/$name
    done
    # A tmpfs of its own as the suite's "second filesystem", for EXDEV.
    mount_tmpfs "$scratch/second" 768m
    $quick && return
    if mount_loop "$scratch/e1" ext4 768M; then branch_dirs[e1]=$scratch/e1; fi
}

empty() { find "$1" -mindepth 1 -delete; }

# --- pjdfstest -------------------------------------------------------------------------------
cat >"$scratch/pjdfstest.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["pjdfstest", "pjdfstest"], ["pjdtests", "pjdtests"]]
TOML

# Runs the suite on DIR, which must be the filesystem TYPE, and leaves the names of the cases that
# failed in RESULT.failed. Fails when the suite did not run to its end.
run_pjdfstest() { # DIR TYPE RESULT
    local dir=$1 type=$2 out=$results/$3.txt
    # Were the mount missing, the suite would judge the root filesystem instead.
    if ! is_mounted "$dir" "$type"; then
        warn "$dir is '$(mounted_type "$dir")', not $type"
        return 1
    fi
    chmod 1777 "$dir"
    NO_COLOR=1 timeout --kill-after=10 600 "$pjdfstest" -c "$scratch/pjdfstest.toml" -p "$dir" \
        -s "$scratch/second" </dev/null >"$out" 2>&1 || true
    # Case lines look like "    chmod::enoent::named    [FAILED]"; the summary gives the total.
    sed 's/\x1b\[[0-9;]*m//g' "$out" >"$results/$3.plain"
    awk '/FAILED/ && /::/ { print $1 }' "$results/$3.plain" | sort -u \
        >"$results/$3.failed"
    grep -q '^Summary: ' "$out"
}

# The cases in the table of docs/semantics.md.
known_failures() { sed -n 's/^| `pjdfstest \([^`]*\)` |.*/\1/p' docs/semantics.md; }

# How many cases ran, the skipped ones not among them.
cases_run() { # OUTPUT
    sed -n 's/^Summary: .* \([0-9]*\) skipped, .* \([0-9]*\) total.*/\2 \1/p' "$1" | awk '{ print $1 - $2 }'
}

bare_done=()
bare_pjdfstest() { # BRANCH TYPE
    [[ " ${bare_done[*]} " == *" $1 "* ]] && return
    empty "${branch_dirs[$1]}"
    run_pjdfstest "${branch_dirs[$1]}" "$2" "bare-$1" || return 1
    empty "${branch_dirs[$1]}"
    bare_done+=("$1")
    note "bare $2: $(grep '^Summary: ' "$results/bare-$1.txt" | tail -n 1)"
}

# A case that fails once and passes when the suite is run again depends on the machine's mood, and is
# named; one that fails twice is left in the list.
without_flaky() { # NAME CASES RESULT
    [[ -n $2 ]] || return 0
    empty "$scratch/pool"
    run_pjdfstest "$scratch/pool" "$strandfs_fstype" "$3" || { printf '%s\n' "$2"; return 0; }
    comm -12 <(printf '%s\n' "$2" | sort) "$results/$3.failed"
    comm -23 <(printf '%s\n' "$2" | sort) "$results/$3.failed" |
        while IFS= read -r case; do warn "FLAKY    $1: $case" >&2; done
}

# Compares a pool with the bare filesystem of its first branch.
pool_pjdfstest() { # NAME OPTIONS BARE_TYPE BRANCH...
    local name="pjdfstest, $1" result=${1//[^a-z0-9]/-} options=$2 bare_type=$3 branch extra
    shift 3
    for branch in "$@"; do
        [[ -n ${branch_dirs[$branch]:-} ]] || { skip "$name: no loop-mounted $branch here"; return; }
    done
    bare_pjdfstest "$1" "$bare_type" || { fail "$name: the suite does not run on the bare $bare_type"; return; }
    for branch in "$@"; do empty "${branch_dirs[$branch]}"; done
    # Nothing a suite checks may depend on caches having timed out, hence the default timeouts.
    # dev and suid: the suite makes device nodes and runs set-user-id checks.
    pool_mount "$scratch/pool" "allow_other,dev,suid,minfreespace=0${options:+,$options}" \
        "${@/#/$scratch/}" || { fail "$name: no mount"; return; }
    if run_pjdfstest "$scratch/pool" "$strandfs_fstype" "$result"; then
        # What docs/semantics.md gives a reason for is no failure.
        extra=$(comm -13 "$results/bare-$1.failed" "$results/$result.failed" |
            grep -vxFf <(known_failures) || true)
        record pjdfstest "${name#*, }" "$(cases_run "$results/$result.plain")" cases \
            "$(wc -l <"$results/bare-$1.failed")" "$(wc -l <"$results/$result.failed")"
        extra=$(without_flaky "$name" "$extra" "$result-again")
        if [[ -z $extra ]]; then
            pass "$name: $(grep '^Summary: ' "$results/$result.txt" | tail -n 1)"
        else
            fail "$name: $(wc -l <<<"$extra") cases fail that pass on the bare $bare_type:"
            indent <<<"$extra" >&2
        fi
    else
        fail "$name: the suite did not finish; see the end of its output:"
        tail -n 5 "$results/$result.txt" >&2
    fi
    pool_umount "$scratch/pool" || fail "$name: the unmount"
}

all_pjdfstest() {
    wants pjdfstest || return 0
    if [[ ! -x $pjdfstest ]]; then skip "pjdfstest: not installed (scripts/install-test-deps.sh --tests)"; return; fi
    local user
    for user in pjdfstest pjdtests; do
        id "$user" >/dev/null 2>&1 || { skip "pjdfstest: user $user does not exist"; return; }
    done
    pool_pjdfstest '1 tmpfs branch' '' tmpfs t1
    pool_pjdfstest '3 tmpfs branches' 'category.create=rand' tmpfs t1 t2 t3
    $quick && return
    if uring_is_on; then
        pool_pjdfstest '3 tmpfs branches, io_uring' 'category.create=rand,transport=uring' tmpfs t1 t2 t3
    else
        skip 'pjdfstest over io_uring: not in this kernel'
    fi
    pool_pjdfstest '1 ext4 branch' '' ext4 e1
    pool_pjdfstest 'tmpfs, ext4 and tmpfs' 'category.create=rand' tmpfs t1 e1 t2
    pool_pjdfstest '3 tmpfs branches, default policies' '' tmpfs t1 t2 t3
    pool_pjdfstest '1 tmpfs branch, no passthrough' 'passthrough.io=off,cache.files=off' tmpfs t1
    pool_pjdfstest '3 tmpfs branches, no passthrough' 'category.create=rand,passthrough.io=off,cache.files=full' tmpfs t1 t2 t3
}

# --- fsx -------------------------------------------------------------------------------------
run_fsx() { # DIR TYPE OPERATIONS RESULT
    if ! is_mounted "$1" "$2"; then
        warn "$1 is '$(mounted_type "$1")', not $2"
        return 1
    fi
    mkdir -p "$results/$4"
    timeout --kill-after=10 900 "$fsx" -q -N "$3" -S "$seed" -P "$results/$4" "$1/fsx" \
        </dev/null >"$results/$4.txt" 2>&1
}

pool_fsx() { # OPERATIONS OPTIONS
    local name="fsx, $1 operations, $2" result=fsx-${2//[^a-z-]/-}
    empty "$scratch/t1" && empty "$scratch/t2"
    pool_mount "$scratch/pool" "minfreespace=0,$2" "$scratch/t1" "$scratch/t2" ||
        { fail "$name: no mount"; return; }
    if run_fsx "$scratch/pool" "$strandfs_fstype" "$1" "$result"; then
        pass "$name"
        record fsx "$2" "$1" operations 0 0
    else
        record fsx "$2" "$1" operations 0 1
        fail "$name (seed $seed); the end of its output:"
        tail -n 15 "$results/$result.txt" >&2
    fi
    pool_umount "$scratch/pool" || fail "$name: the unmount"
}

# Small requests, and long ones that the server's threads treat differently.
ring_fsx() { # OPERATIONS
    if uring_is_on; then
        pool_fsx "$1" transport=uring,passthrough.io=off,cache.files=off
        pool_fsx "$1" transport=uring,passthrough.io=off,cache.files=auto-full
    else
        skip 'fsx over io_uring: not in this kernel'
    fi
}

all_fsx() {
    wants fsx || return 0
    if [[ ! -x $fsx ]]; then skip "fsx: not installed (scripts/install-test-deps.sh --tests)"; return; fi
    if $quick; then
        pool_fsx 20000 passthrough.io=auto
        pool_fsx 20000 passthrough.io=off,cache.files=off
        pool_fsx 20000 passthrough.io=off,cache.files=auto-full
        ring_fsx 20000
        return
    fi
    run_fsx "$scratch/t1" tmpfs 100000 fsx-bare || { fail 'fsx does not pass on the bare tmpfs'; return; }
    pool_fsx 100000 passthrough.io=auto
    local mode
    for mode in rw ro wo; do pool_fsx 100000 "passthrough.io=$mode"; done
    for mode in off partial full auto-full per-process; do
        pool_fsx 100000 "passthrough.io=off,cache.files=$mode"
    done
    ring_fsx 100000
}

# --- load ------------------------------------------------------------------------------------
# Each of these works in the directory DIR and says with its status whether all was well; its last
# line is how many operations it did.
load_fio() { # DIR
    local size=64m
    $quick && size=16m
    fio --name=verify --directory="$1" --rw=randwrite --bsrange=1k-64k --size=$size --numjobs=2 \
        --verify=crc32c --verify_state_save=0 --do_verify=1 --verify_fatal=1 --ioengine=psync --end_fsync=1 \
        --output-format=json >"$results/fio.json" || return 1
    awk -F'[:,]' '/"total_ios"/ { sum += $2 } END { print sum }' "$results/fio.json"
}
load_dbench() { # DIR
    local seconds=20
    $quick && seconds=3
    dbench -t "$seconds" -D "$1" 4 >"$results/dbench.txt" 2>&1 || return 1
    # dbench goes on after errors, and says so.
    ! grep -qiE 'failed|error' "$results/dbench.txt" || return 1
    awk '/^ [A-Z][A-Za-z]+ +[0-9]+/ { sum += $2 } END { print sum }' "$results/dbench.txt"
}
load_stress() { # DIR
    # Left out: what is about other filesystems than the one at hand.
    stress-ng --class filesystem --seq 1 -t 1s -x binderfs,procfs,sysinfo,ioport,io --verify \
        --temp-path "$1" --metrics >"$results/stress.txt" 2>&1 || true
    # Not by its status: that is no success either where stressors only were left out.
    grep -q '\] successful run completed' "$results/stress.txt" || return 1
    ! grep -q '^stress-ng: fail:' "$results/stress.txt" || return 1
    awk '$2 == "metrc:" && $5 ~ /^[0-9]+$/ { sum += $5 } END { print sum }' "$results/stress.txt"
}

# One of them over a pool of tmpfs branches, after it has passed on the bare filesystem.
declare -A load_failed=()
pool_load() { # TOOL OPTIONS BRANCH...
    local tool=$1 options=$2 pool="tmpfs x $(($# - 2)), $2" count
    local name="$tool, $pool"
    shift 2
    if [[ -z ${load_failed[$tool]:-} ]]; then
        mkdir -p "$scratch/second/$tool"
        if "load_$tool" "$scratch/second/$tool" >/dev/null; then
            load_failed[$tool]=0
        else
            load_failed[$tool]=1
            warn "$tool fails on the bare tmpfs; the end of its output:"
            tail -n 15 "$results/$tool".* | indent >&2
        fi
        empty "$scratch/second"
    fi
    local branch
    for branch in "$@"; do empty "$scratch/$branch"; done
    pool_mount "$scratch/pool" "minfreespace=0,$options" "${@/#/$scratch/}" || { fail "$name: no mount"; return; }
    mkdir "$scratch/pool/load"
    if count=$("load_$tool" "$scratch/pool/load" | tail -n 1) && [[ $count =~ ^[0-9]+$ ]] && ((count > 0)); then
        pass "$name: $count operations"
        record "$tool" "$pool" "$count" operations "${load_failed[$tool]}" 0
    else
        record "$tool" "$pool" 0 operations "${load_failed[$tool]}" 1
        if ((load_failed[$tool])); then
            skip "$name: it fails on the bare tmpfs too"
        else
            fail "$name; what it complained of, and the end of its output:"
            grep -hiE 'fail|error' "$results/$tool".* | head -n 15 >&2 || true
            tail -n 15 "$results/$tool".* >&2
            # The next pool writes anew.
            mkdir -p "$results/failed-$failed" && cp "$results/$tool".* "$results/failed-$failed/"
        fi
    fi
    pool_umount "$scratch/pool" || fail "$name: the unmount"
}

all_loads() {
    local tool program
    for tool in fio dbench stress; do
        wants "$tool" || continue
        # A minute for each pool: not in the quick run.
        if [[ $tool == stress ]] && $quick; then continue; fi
        program=$tool
        [[ $tool == stress ]] && program=stress-ng
        if ! have "$program"; then skip "$tool: $program is not installed"; continue; fi
        pool_load "$tool" category.create=rand t1 t2 t3
        pool_load "$tool" passthrough.io=off,cache.files=off t1
        $quick && continue
        pool_load "$tool" passthrough.io=auto t1
        pool_load "$tool" category.create=rand,passthrough.io=off,cache.files=full t1 t2 t3
    done
}

# --- a million files -------------------------------------------------------------------------
all_files() {
    { wants files && ! $quick; } || return 0
    if cargo test --release --locked --quiet -p strandfs --test posix --test coherence -- --ignored --nocapture many_files:: branch_memory:: </dev/null; then
        pass 'a million files'
    else
        fail 'a million files'
    fi
}

make_branches
all_pjdfstest
all_fsx
all_loads
all_files
finish

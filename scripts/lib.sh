# Shared by the scripts in this directory; sourced, never run.
# shellcheck shell=bash disable=SC2034
#
# Rules every script here keeps: it ends only processes it started itself (by id), unmounts only
# what it mounted, and undoes everything in reverse order whichever way it ends.

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools_dir=${STRANDFS_TOOLS:-$repo_root/target/tools}

if [[ -t 1 ]]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' reset=$'\e[0m'
else
    bold='' dim='' red='' reset=''
fi

say() { printf '%s\n' "${bold}$*${reset}"; }
note() { printf '%s\n' "${dim}  $*${reset}"; }
warn() { printf '%s\n' "${red}  $*${reset}" >&2; }
die() {
    printf '%s\n' "${red}$*${reset}" >&2
    exit 1
}

indent() { sed 's/^/             /'; }

have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [[ $(id -u) -eq 0 ]]; }

# Has Rust's libraries for a target installed; says why they are not to be had.
rust_libraries() { # TARGET
    local said
    [[ -d $(rustc --print sysroot)/lib/rustlib/$1/lib ]] && return
    said=$(rustup target add "$1" 2>&1) && return
    echo "Rust's libraries for it are not to be had (rustup target add $1: ${said##*$'\n'})"
    return 1
}

# --- cleaning up -----------------------------------------------------------------------------
# `defer COMMAND...` runs COMMAND at exit; last registered, first run.
deferred=()
defer() { deferred+=("$(printf '%q ' "$@")"); }
run_deferred() {
    local status=$? i
    trap - EXIT INT TERM
    set +e
    for ((i = ${#deferred[@]} - 1; i >= 0; i--)); do
        eval "${deferred[i]}"
    done
    exit "$status"
}
# INT and TERM become an ordinary exit so that the EXIT trap does the work exactly once.
arm_cleanup() {
    trap run_deferred EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# A private directory for everything a script makes. Not removed with -r while anything is still
# mounted under it: that would empty a branch instead of a scratch directory.
make_scratch() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/strandfs-$1.XXXXXX")
    defer remove_scratch "$scratch"
}
remove_scratch() {
    if grep -q " $1/" /proc/self/mounts; then
        warn "left in place, something is still mounted below it: $1"
        return
    fi
    rm -rf --one-file-system "$1"
}

# --- mounts ----------------------------------------------------------------------------------
# True when a filesystem of TYPE is what MOUNTPOINT shows now (the last line wins: mounts stack).
is_mounted() { # MOUNTPOINT TYPE
    awk -v m="$1" -v t="$2" '$2 == m { found = $3 } END { exit found != t }' /proc/self/mounts
}
mounted_type() { awk -v m="$1" '$2 == m { t = $3 } END { print t }' /proc/self/mounts; }

# Root unmounts; everyone else asks FUSE's helper.
unmount() { if is_root; then umount "$1"; else fusermount3 -u "$1"; fi; }
detach() {
    [[ -n $(mounted_type "$1") ]] || return 0
    if is_root; then umount -l "$1"; else fusermount3 -u -z "$1"; fi
}

mount_tmpfs() { # DIR SIZE
    mkdir -p "$1"
    mount -t tmpfs -o "size=$2,mode=0755" strandfs-test "$1"
    defer detach "$1"
}

# A filesystem of TYPE in a sparse image, loop-mounted. Fails without side effects where loop
# devices or the filesystem are missing, so that the caller can fall back to a directory.
mount_loop() { # DIR TYPE SIZE
    local dir=$1 type=$2 size=$3 image=$1.img
    have "mkfs.$type" || return 1
    mkdir -p "$dir"
    truncate -s "$size" "$image" || return 1
    case $type in
        ext4) mkfs.ext4 -q -F -m 0 "$image" ;;
        *) "mkfs.$type" -q "$image" ;;
    esac >/dev/null 2>&1 || return 1
    mount -o loop "$image" "$dir" 2>/dev/null || return 1
    defer detach "$dir"
    # mkfs.ext4 leaves lost+found, which no other filesystem has: trees would never compare equal.
    if [[ -d $dir/lost+found ]]; then rmdir "$dir/lost+found"; fi
}

# A program of crates.io, in a version that was tried, into target/tools. The caller removes
# $tools_dir/build when it has all it wants.
install_tool() { # CRATE VERSION [OPTION OF cargo install]...
    local crate=$1 version=$2
    shift 2
    [[ -x $tools_dir/bin/$crate ]] && return
    say "installing $crate $version into ${tools_dir#"$repo_root"/}"
    # Its own target directory: sharing ours would rebuild the workspace's dependencies.
    CARGO_TARGET_DIR=$tools_dir/build cargo install "$crate" --version "$version" --locked --quiet \
        --root "$tools_dir" "$@" </dev/null || {
        warn "$crate could not be installed; what needs it will say so"
        return
    }
}

# --- the pool --------------------------------------------------------------------------------
# STRANDFS_BIN and STRANDFS_FSTYPE let the same scripts drive another build.
strandfs_bin=${STRANDFS_BIN:-}
strandfs_fstype=${STRANDFS_FSTYPE:-fuse.strandfs}

build_strandfs() {
    [[ -n $strandfs_bin ]] && return
    have cargo || die "cargo is not installed: strandfs is built from source with Rust"
    (cd "$repo_root" && cargo build --release --quiet --locked -p strandfs)
    strandfs_bin=${CARGO_TARGET_DIR:-$repo_root/target}/release/strandfs
}

# The program that the tests run, whose assertions are on: nothing to build where they have run.
build_strandfs_of_tests() {
    [[ -n $strandfs_bin ]] && return
    have cargo || die "cargo is not installed: strandfs is built from source with Rust"
    (cd "$repo_root" && cargo test --workspace --quiet --locked --no-run)
    strandfs_bin=${CARGO_TARGET_DIR:-$repo_root/target}/debug/strandfs
}

pool_pid=
# Mounts a pool in the foreground as a child and returns when it serves; never returns with
# MOUNTPOINT being just a directory, because a test would then judge the root filesystem.
pool_mount() { # MOUNTPOINT OPTIONS BRANCH...
    local mountpoint=$1 options=$2 log=$1.log deadline
    shift 2
    mkdir -p "$mountpoint"
    "$strandfs_bin" mount -f ${options:+-o "$options"} "$@" "$mountpoint" >"$log" 2>&1 &
    pool_pid=$!
    defer pool_abandon "$mountpoint" "$pool_pid"
    deadline=$((SECONDS + 20))
    until is_mounted "$mountpoint" "$strandfs_fstype" && timeout 5 stat "$mountpoint" >/dev/null 2>&1; do
        if ! kill -0 "$pool_pid" 2>/dev/null || ((SECONDS > deadline)); then
            warn "the pool did not mount; it said:"
            sed 's/^/    /' "$log" >&2
            return 1
        fi
        sleep 0.05
    done
}

# Whether FUSE over io_uring is to be had, after switching it on where that is allowed; it stays on,
# for whatever else runs may use it at the same time.
uring_is_on() {
    local switch=/sys/module/fuse/parameters/enable_uring
    if [[ -w $switch ]]; then echo Y >"$switch"; fi
    [[ -r $switch && $(<"$switch") == Y ]]
}

# A clean unmount; fails when the server outlives it by more than five seconds.
pool_umount() { # MOUNTPOINT
    local tries
    unmount "$1"
    for ((tries = 0; tries < 100; tries++)); do
        if ! kill -0 "$pool_pid" 2>/dev/null; then
            wait "$pool_pid" || warn "the server of $1 ended with status $?"
            pool_pid=
            return
        fi
        sleep 0.05
    done
    warn "the server of $1 (pid $pool_pid) outlived its mount; its threads and where they wait:"
    local task
    for task in "/proc/$pool_pid/task/"*; do
        printf '    %s %s %s\n' "$(cat "$task/comm")" "$(awk '/^State/ { print $2 }' "$task/status")" \
            "$(cat "$task/wchan")" >&2
    done
    tail -n 5 "$1.log" | indent >&2
    return 1
}

# Last resort at exit: whatever is left of a pool goes away, and only that.
pool_abandon() { # MOUNTPOINT PID
    detach "$1"
    local tries stat
    # Only a child of this shell is ours to end: a recycled id never is. (Not with ps: that looks at
    # every process there is, and one of them may be stuck on somebody's dead mount.)
    stat=$(cat "/proc/$2/stat" 2>/dev/null) || return 0
    [[ $(awk '{ print $2 }' <<<"${stat##*) }") == "$$" ]] || return 0
    for ((tries = 0; tries < 40; tries++)); do
        kill -0 "$2" 2>/dev/null || return 0
        sleep 0.05
    done
    kill -9 "$2" 2>/dev/null
}

# Dropping the page cache needs root; without it cold figures are only warm ones.
drop_caches() { # 1, 2 or 3 as in proc(5)
    sync
    if [[ -w /proc/sys/vm/drop_caches ]]; then echo "$1" >/proc/sys/vm/drop_caches; fi
}

# --- figures ---------------------------------------------------------------------------------
# How long COMMAND takes; a failure is no measurement.
seconds() { # COMMAND...
    local from to
    from=$(date +%s%N)
    "$@" >/dev/null 2>"$scratch/said" || die "$* failed: $(tail -n 1 "$scratch/said")"
    to=$(date +%s%N)
    awk -v ns=$((to - from)) 'BEGIN { printf "%.6f", ns / 1e9 }'
}

# median, lowest and highest of the numbers on standard input, as "MEDIAN LOW HIGH"
median_range() {
    sort -n | awk '{ v[NR] = $1 } END {
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%.4f %.4f %.4f\n", m, v[1], v[NR] }'
}

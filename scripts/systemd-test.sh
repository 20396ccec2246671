#!/usr/bin/env bash
# The unit strandfs@.service and lines of fstab under a systemd that runs: `systemd-test.sh [SUITE...]`, as
# root, before a release (`make systemd-test`).
#
# A SUITE is a release of Debian (bookworm, trixie; bookworm if left out), made once with debootstrap from
# DEBIAN_MIRROR and kept in target/roots. What `make build` built is installed in it (BINARY and PRELOAD name
# other builds), it is booted twice with systemd-nspawn, and scripts/systemd-steps.sh works inside. The
# kernel is the one that runs; mounts are in a namespace of their own.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

is_root || die "systemd-test.sh boots systems: it needs root"
if [[ -z ${STRANDFS_OWN_MOUNTS:-} ]]; then
    STRANDFS_OWN_MOUNTS=1 exec unshare --mount --propagation private bash "$0" "$@"
fi
have debootstrap || die "no debootstrap: apt-get install debootstrap"
have systemd-nspawn || die "no systemd-nspawn: apt-get install systemd-container"

roots=${ROOTS:-$repo_root/target/roots}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suites=("$@")
((${#suites[@]})) || suites=(bookworm)
arm_cleanup
make_scratch systemd
# systemd-nspawn keeps its own things there, on a filesystem it may empty.
mount -t tmpfs tmpfs /run

# A system with systemd, from an archive that is made once.
root_of() { # SUITE
    local archive=$roots/$1-systemd.tar
    if ! [[ -f $archive ]]; then
        debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,fuse3 "$1" "$scratch/new" "$mirror" \
            >"$scratch/new.log" 2>&1 || {
            tail -n 3 "$scratch/new.log" | indent
            return 1
        }
        mkdir -p "$roots"
        tar --create --one-file-system --directory "$scratch/new" --file "$archive.new" . || return 1
        mv "$archive.new" "$archive"
        rm -rf --one-file-system "$scratch/new"
    fi
    mkdir "$scratch/$1"
    tar --extract --directory "$scratch/$1" --file "$archive"
}

# Boots the system and has it do a part of the steps; it turns itself off.
boot() { # ROOT PART
    local root=$1 part=$2
    echo "$part" >"$root/root/part"
    : >"$root/root/result"
    # What the server needs, and a container does not get by itself: /dev/fuse, and the system calls of
    # watching and of passthrough.
    timeout --kill-after=10 180 systemd-nspawn --quiet --register=no --keep-unit --directory="$root" --boot \
        --bind=/dev/fuse --capability=all --system-call-filter="fanotify_init fanotify_mark open_by_handle_at" \
        --console=pipe </dev/null >"$root.console" 2>&1 || {
        tail -n 5 "$root.console" | indent
        warn "the system did not turn itself off"
        return 1
    }
    indent <"$root/root/result"
    ! grep -q '^FAILED' "$root/root/result" && grep -q '^end' "$root/root/result"
}

try() { # SUITE
    local root=$scratch/$1
    root_of "$1" || return 1
    DESTDIR=$root PREFIX=/usr SBINDIR=/usr/sbin "$repo_root/scripts/install.sh" >/dev/null || return 1
    install -m 755 "$repo_root/scripts/systemd-steps.sh" "$root/root/steps.sh"
    cat >"$root/etc/systemd/system/steps.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/root/steps.sh
ExecStopPost=/usr/bin/systemctl --no-block poweroff
[Install]
WantedBy=graphical.target multi-user.target
UNIT
    chroot "$root" /root/steps.sh prepare || return 1
    chroot "$root" systemctl --quiet enable steps.service
    boot "$root" first && boot "$root" second && after_poweroff "$root"
}

# What was written just before the system was turned off is on the branches, whole.
after_poweroff() { # ROOT
    local found
    found=$(cat "$1"/mnt/late[12]/late 2>/dev/null | sha256sum)
    [[ $found == "$(cat "$1/root/late.sum")" ]] || { warn "what was written last is lost"; return 1; }
    note "what was written last is on its branch"
}

failed=()
for suite in "${suites[@]}"; do
    say "$suite"
    try "$suite" || {
        failed+=("$suite")
        chroot "$scratch/$suite" journalctl --no-pager --lines=100 --output=short \
            --unit='strandfs@*' --unit='mnt-*' 2>/dev/null | indent
    }
done
if ((${#failed[@]})); then die "failed: ${failed[*]}"; fi
say "all as it should be"

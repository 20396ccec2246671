#!/usr/bin/env bash
# Installs what the demo (default) or the tests (--tests) need and what is not there yet:
# Debian packages as root; cargo-nextest and the two suites written in Rust into target/tools.
# Whatever cannot be had is named, and the steps that use it skip with the same words.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

for_tests=false
case ${1:-} in
    --tests) for_tests=true ;;
    '') ;;
    *) die "usage: $0 [--tests]" ;;
esac

# COMMAND:PACKAGE; a package is asked for only when its command is missing.
wanted=(cc:gcc fusermount3:fuse3 mkfs.xfs:xfsprogs mkfs.ext4:e2fsprogs losetup:mount)
if $for_tests; then
    wanted+=(
        setfacl:acl setfattr:attr mkfs.btrfs:btrfs-progs rsync:rsync fio:fio strace:strace
        dbench:dbench stress-ng:stress-ng setpriv:util-linux useradd:passwd
        mandoc:mandoc sshfs:sshfs /usr/lib/openssh/sftp-server:openssh-sftp-server
        glusterfs:glusterfs-client glusterfsd:glusterfs-server
    )
fi

PATH=$PATH:/usr/sbin:/sbin
missing=()
for pair in "${wanted[@]}"; do
    have "${pair%%:*}" || missing+=("${pair##*:}")
done

if ((${#missing[@]})); then
    if ! have apt-get; then
        warn "not a Debian or Ubuntu: install these by hand: ${missing[*]}"
    elif ! is_root; then
        warn "not root: install these with 'sudo apt-get install ${missing[*]}'"
    else
        say "installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        {
            apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
        } >"${TMPDIR:-/tmp}/strandfs-apt.$$.log" 2>&1 ||
            warn "apt-get failed: $(tail -n 1 "${TMPDIR:-/tmp}/strandfs-apt.$$.log")"
        rm -f "${TMPDIR:-/tmp}/strandfs-apt.$$.log"
    fi
fi

have cargo || die "cargo is not installed: strandfs is built from source with Rust"

$for_tests || exit 0

install_tool pjdfstest 0.2.2
install_tool fsx 0.3.2
# Neither optimised nor able to update itself: it only starts tests, and is built sooner so.
export CARGO_PROFILE_DEV_DEBUG=false
have cargo-nextest || install_tool cargo-nextest 0.9.151 --debug \
    --no-default-features --features default-no-update
rm -rf "$tools_dir/build"

# pjdfstest acts as two users of its own.
if is_root && have useradd; then
    for user in pjdfstest pjdtests; do
        id "$user" >/dev/null 2>&1 || useradd --system --user-group --no-create-home "$user"
    done
fi

#!/usr/bin/env bash
# Every Rust test of the workspace: units, the house rules, and the behaviour tests that mount
# pools with the built binary.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

is_root || warn "not root: tests that need root will say so and pass without looking"
[[ -e /dev/fuse ]] || warn "no /dev/fuse: behaviour tests cannot mount and will fail"

# A file descriptor limit as low as a login shell's would hide leaks; as high as the hard limit
# would hide them better. Take the common default.
ulimit -Sn 1024 2>/dev/null || true

# On from the start where it can be: the first test that needs it would switch it on for all others
# in the middle of the run.
uring=
if is_root && uring_is_on; then uring=yes; fi

PATH=$PATH:$tools_dir/bin
if have cargo-nextest; then
    # Many tests wait, for a deadline or a server: one more than there are CPUs keeps those busy.
    export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$(($(nproc) + 1))}
    # .config/nextest.toml says what a profile does.
    profile=default
    [[ -n ${CI:-} ]] && profile=ci
    cargo nextest run --workspace --locked --profile "$profile" "$@" </dev/null
    # What passes over io_uring has to pass over /dev/fuse; these files are most of what a request is.
    if (($# == 0)) && [[ -n $uring ]]; then
        STRANDFS_TEST_TRANSPORT=dev cargo nextest run --workspace --locked --profile "$profile" \
            -E 'package(strandfs)
                & (binary(posix) & test(/^(basic|data|metadata|names)::/)
                + binary(serving) & test(/^server_threads::/)
                + binary(relocation) & test(/^on_full::/))' </dev/null
    fi
    # The examples in the documentation are not among nextest's tests.
    cargo test --workspace --locked --doc </dev/null
else
    warn 'no cargo-nextest: tests share a process per file'
    cargo test --workspace --locked --no-fail-fast "$@" </dev/null
fi

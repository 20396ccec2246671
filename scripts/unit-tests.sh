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

# --no-fail-fast: one run shows every failure.
cargo test --workspace --locked --no-fail-fast "$@" </dev/null

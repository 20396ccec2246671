#!/usr/bin/env bash
# All linters; runs every one of them and fails if any did.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

failed=()
step() { # NAME COMMAND...
    local name=$1
    shift
    say "lint: $name"
    "$@" </dev/null || failed+=("$name")
}

shell_scripts() {
    local script
    while IFS= read -r script; do
        bash -n "$script" || return 1
    done < <(shell_script_names)
    if have shellcheck; then
        # shellcheck disable=SC2046  # our own file names hold no blanks
        # Its hints differ from version to version, and it is there by chance: warnings count.
        shellcheck --severity=warning -x $(shell_script_names)
    fi
}
shell_script_names() { printf '%s\n' .ci/run scripts/*.sh benches/*.sh; }

# System calls and the widths of C's types differ there; seeing that takes Rust's libraries and no linker.
other_architecture() {
    local target=aarch64-unknown-linux-gnu why
    why=$(rust_libraries "$target") || { warn "$target is left out: $why" && return; }
    cargo check --workspace --locked --quiet --target "$target"
}

docs() { RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked --quiet; }

step rustfmt cargo fmt --all --check
step clippy cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step rustdoc docs
step aarch64 other_architecture
step shell shell_scripts
# Its links are looked at by the house rules, its commands are run by the tests.
step book scripts/book.sh --if-there
# And the licences of all that is built in. Of the whole workspace, as every other step that builds: for
# one package Cargo chooses other features, and builds the dependencies once more.
step 'house rules' cargo test --workspace --locked --quiet --test tidy
# The same lists, and published advisories besides, where cargo-deny is installed anyway.
if have cargo-deny; then step cargo-deny cargo deny --offline check licenses bans sources; fi

if ((${#failed[@]})); then die "lint failed: ${failed[*]}"; fi
say 'lint: clean'

#!/usr/bin/env bash
# Builds the book of book/ into target/book with mdbook, which is installed into target/tools when it is not
# there (minutes to compile). With --if-there nothing is installed: without mdbook nothing is built, and that is said.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

mdbook_version=0.5.4
PATH=$tools_dir/bin:$PATH
case ${1:-} in
    '')
        if ! have mdbook; then
            have cargo || die "neither mdbook nor cargo is installed"
            say "installing mdbook $mdbook_version into ${tools_dir#"$repo_root"/}"
            CARGO_TARGET_DIR=$tools_dir/build-mdbook cargo install mdbook --version "$mdbook_version" --locked \
                --no-default-features --features search \
                --quiet --root "$tools_dir" </dev/null
            rm -rf "$tools_dir/build-mdbook"
        fi
        ;;
    --if-there)
        if ! have mdbook; then
            note "mdbook is not installed: the book was not built (\`make book\` installs it)"
            exit 0
        fi
        ;;
    *) die "usage: $0 [--if-there]" ;;
esac

# mdbook goes on after some mistakes that it only warns about.
log=$(mktemp)
arm_cleanup
defer rm -f "$log"
mdbook build book 2> >(tee "$log" >&2)
if grep -qE '\b(WARN|ERROR)\b' "$log"; then die "mdbook complains about the book"; fi
say "the book: target/book/index.html"

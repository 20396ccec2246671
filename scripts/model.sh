#!/usr/bin/env bash
# Several processes work in pools of random configurations and compare with a model of what they did.
#
#   model.sh [SECONDS] [THEME...]   runs the themes one after another, SECONDS each (60); all of them
#                                   without a THEME, which is a part of a test's name
#
# STRANDFS_MODEL_SEED=N        begins with this seed instead of one by the clock
# STRANDFS_MODEL_KEEP=FILE     where seeds that failed are kept, to be tried first the next time
#                              (target/model-seeds.txt)
# STRANDFS_TEST_BIN=BINARY     the server, instead of the release build
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

is_root || die 'the model needs root'
seconds=60
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    seconds=$1
    shift
fi
export STRANDFS_MODEL_SECONDS=$seconds
export STRANDFS_MODEL_KEEP=${STRANDFS_MODEL_KEEP:-$repo_root/target/model-seeds.txt}
if [[ -z ${STRANDFS_TEST_BIN:-} ]]; then
    cargo build --release --locked --quiet -p strandfs
    export STRANDFS_TEST_BIN=$repo_root/target/release/strandfs
fi
cargo test --locked --quiet -p strandfs --test model --no-run
failed=0
# Not by nextest, which ends what takes hours. A violation ends its theme, not the run.
for theme in "${@:-everything_is}"; do
    cargo test --locked --quiet -p strandfs --test model --no-fail-fast -- \
        "$theme" --nocapture --test-threads 1 </dev/null || failed=1
done
exit "$failed"

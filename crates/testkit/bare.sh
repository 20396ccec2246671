#!/bin/bash
# Answers `mount -f [-o OPTIONS] BRANCH... MOUNTPOINT` with a bind mount of the first branch: run
# the behaviour tests with STRANDFS_TEST_BIN=.../bare.sh STRANDFS_TEST_FSTYPE=tmpfs,ext4,xfs to see that what
# they ask of a pool of one branch is what the bare filesystem does.
set -euo pipefail
[[ $1 == mount && $2 == -f ]]
shift 2
if [[ $1 == -o ]]; then shift 2; fi
branch=${1%%=*}
mountpoint=${*: -1}
mount --bind "$branch" "$mountpoint"
trap 'umount -l "$mountpoint"; exit 0' TERM INT
while mountpoint -q "$mountpoint"; do sleep 0.1 & wait $!; done

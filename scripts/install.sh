#!/usr/bin/env bash
# Installs what was built, or takes it away again: `install.sh [--uninstall]`.
#
# PREFIX (default /usr/local) and DESTDIR as everywhere. SBINDIR (default /sbin) is where mount(8)
# looks for mount helpers; it knows no other place. SYSCONFDIR (default /etc) is where the sample of a
# configuration goes. BINARY and PRELOAD name other builds.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

prefix=${PREFIX:-/usr/local}
destdir=${DESTDIR:-}
sbindir=${SBINDIR:-/sbin}
sysconfdir=${SYSCONFDIR:-/etc}
built=${CARGO_TARGET_DIR:-$repo_root/target}/release
# The archives of a release have the program beside this directory.
binary=$repo_root/strandfs
[[ -x $binary ]] || binary=$built/strandfs
binary=${BINARY:-$binary}
preload=${PRELOAD:-$built/libstrandfs_preload.so}

# Each file as MODE, SOURCE and TARGET between tabs; those that were not built or written are left out.
files() {
    printf '755\t%s\t%s\n' "$binary" "$prefix/bin/strandfs"
    if [[ -f $preload ]]; then
        printf '755\t%s\t%s\n' "$preload" "$prefix/lib/strandfs/libstrandfs_preload.so"
    fi
    local page
    for page in "$repo_root"/man/*.[158]; do
        [[ -f $page ]] || continue
        printf '644\t%s\t%s\n' "$page" "$prefix/share/man/man${page##*.}/${page##*/}"
    done
    local script target
    for script in strandfs.bash:bash-completion/completions/strandfs \
        _strandfs:zsh/site-functions/_strandfs \
        strandfs.fish:fish/vendor_completions.d/strandfs.fish; do
        target=$prefix/share/${script#*:}
        script=$repo_root/completions/${script%%:*}
        if [[ -f $script ]]; then printf '644\t%s\t%s\n' "$script" "$target"; fi
    done
    printf '644\t%s\t%s\n' "$packaging/systemd/strandfs@.service" "$unit" \
        "$packaging/examples/strandfs-uring.conf" "$prefix/share/doc/strandfs/examples/strandfs-uring.conf" \
        "$packaging/examples/example.toml.sample" "$sysconfdir/strandfs/example.toml.sample"
}

packaging=$repo_root/packaging
unit=$prefix/lib/systemd/system/strandfs@.service

links=("$sbindir/mount.strandfs" "$sbindir/mount.fuse.strandfs" "$sbindir/umount.fuse.strandfs")

install_all() {
    [[ -x $binary ]] || die "$binary is not there: run \`make build\` first"
    local mode source target
    while IFS=$'\t' read -r mode source target; do
        # A new file in place of the old one, so that running servers keep theirs.
        install -D -m "$mode" "$source" "$destdir$target"
        # The unit names the program by its whole path.
        if [[ $target == "$unit" ]]; then
            sed -i "s|/usr/bin/strandfs|$prefix/bin/strandfs|" "$destdir$target"
        fi
        say "installed $destdir$target"
    done < <(files)
    for target in "${links[@]}"; do
        mkdir -p "$destdir${target%/*}"
        ln -sf "$prefix/bin/strandfs" "$destdir$target"
        say "installed $destdir$target"
    done
}

uninstall_all() {
    local target
    while IFS=$'\t' read -r _ _ target; do
        rm -f "$destdir$target"
    done < <(files)
    for target in "${links[@]}"; do
        # Only a link of ours: another package may own the name.
        if [[ $(readlink "$destdir$target") == "$prefix/bin/strandfs" ]]; then
            rm "$destdir$target"
        fi
    done
    rmdir "$destdir$prefix/lib/strandfs" "$destdir$prefix/share/doc/strandfs/examples" \
        "$destdir$prefix/share/doc/strandfs" 2>/dev/null || true
    rmdir --ignore-fail-on-non-empty "$destdir$sysconfdir/strandfs" 2>/dev/null || true
    say "removed strandfs from $destdir$prefix and $destdir$sbindir; your files in $sysconfdir/strandfs are left alone"
}

case ${1:-} in
    '') install_all ;;
    --uninstall) uninstall_all ;;
    *) die "usage: install.sh [--uninstall]" ;;
esac

#!/usr/bin/env bash
# Installs the packages of `make dist` in clean systems without compilers, uses them, upgrades them under a
# mounted pool, removes and purges them: `package-test.sh [NAME...]`, as root, before a release.
#
# NAMEs are debian12, debian13, ubuntu (22.04; made with debootstrap, from the mirrors in DEBIAN_MIRROR and
# UBUNTU_MIRROR), rpm (the package in a root with a database of its own: `rpm --root`), dnf (the same from a
# repository: `dnf --installroot`) and contents (the lists of files, lintian and rpmlint, of every architecture that
# is there). All if left out. What cannot be had is named, and the exit code is 1 then. Everything happens in a mount
# namespace of its own; the kernel is the one that runs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

is_root || die "package-test.sh makes systems to install in, and mounts: it needs root"
if [[ -z ${STRANDFS_OWN_MOUNTS:-} ]]; then
    STRANDFS_OWN_MOUNTS=1 exec unshare --mount --propagation private bash "$0" "$@"
fi

dist=${DIST:-$repo_root/target/dist}
roots=${ROOTS:-$repo_root/target/roots}
debian_mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu_mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
arch=$(uname -m)
case $arch in x86_64) deb_arch=amd64 ;; aarch64) deb_arch=arm64 ;; *) deb_arch=$arch ;; esac
deb=$(printf '%s\n' "$dist"/strandfs_*_"$deb_arch".deb | tail -n 1)
rpm=$(printf '%s\n' "$dist"/strandfs-*."$arch".rpm | tail -n 1)

names=("$@")
((${#names[@]})) || names=(contents debian12 debian13 ubuntu rpm dnf)
failed=()
arm_cleanup
make_scratch packages

# --- one system ------------------------------------------------------------------------------
root=
inside_root() {
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive "$@"
}
inside() { inside_root "$@"; }

# Whether a command fails as it should, with this text in what it says.
says() { # TEXT COMMAND...
    local text=$1 said
    shift
    said=$("$@" 2>&1) || true
    printf '%s\n' "$said" | indent
    [[ $said == *"$text"* ]] || {
        warn "it does not say: $text"
        return 1
    }
}

# What a system has of the machine it runs on.
enter() {
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t tmpfs tmpfs "$root/run"
    mount --rbind /dev "$root/dev"
    if [[ -e $root/etc/resolv.conf || -L $root/etc/resolv.conf ]]; then rm -f "$root/etc/resolv.conf"; fi
    cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
    local disk
    for disk in disk1 disk2 archive; do
        mkdir -p "$root/mnt/$disk"
        mount -t tmpfs -o size=64m tmpfs "$root/mnt/$disk"
    done
}

leave() {
    mountpoint --quiet "$root" || return 0
    local tries
    # A pool that a failed step left behind.
    umount -l "$root/mnt/pool" 2>/dev/null || true
    for ((tries = 0; tries < 50; tries++)); do
        umount -R "$root" 2>/dev/null && break
        sleep 0.1
    done
}

no_compiler() {
    local tool
    for tool in cc gcc rustc cargo make; do
        if inside sh -c "command -v $tool" >/dev/null; then warn "$tool is there: not a clean system"; return 1; fi
    done
}

# The three commands of the README, timed.
to_mounted_pool() { # INSTALL-COMMAND...
    local from to
    from=$(date +%s%N)
    inside "$@" >"$root.log" 2>&1 || { tail -n 20 "$root.log" | indent; return 1; }
    inside mkdir /mnt/pool || return 1
    inside strandfs mount /mnt/disk1 /mnt/disk2 /mnt/pool || return 1
    to=$(date +%s%N)
    echo hello >"$root/mnt/pool/greeting" || return 1
    [[ -f $root/mnt/disk1/greeting || -f $root/mnt/disk2/greeting ]] || return 1
    say "  package to mounted pool: $(awk -v ns=$((to - from)) 'BEGIN { printf "%.1f", ns / 1e9 }') s, three commands"
    inside strandfs umount /mnt/pool || return 1
    # From here on by a file, as the sample has it.
    sed 's|^minfreespace = .*|minfreespace = "1M"|' "$root/etc/strandfs/example.toml.sample" >"$root/etc/strandfs/media.toml"
    inside strandfs mount media
}

server_of_pool() { inside strandfs get /mnt/pool pid | sed 's/.*=//'; }

# A pool serves on while its program is replaced, and says so.
upgrade_under_pool() { # COMMAND...
    local before
    before=$(server_of_pool) || return 1
    exec 8<"$root/mnt/pool/greeting"
    says "was replaced since" inside "$@" || return 1
    [[ $(cat <&8) == hello ]] || { warn "an open file of the pool is lost"; return 1; }
    exec 8<&-
    [[ $(server_of_pool) == "$before" ]] || { warn "the server is another"; return 1; }
    echo again >"$root/mnt/pool/second" || return 1
    # What it says is to be done.
    inside strandfs umount /mnt/pool && inside strandfs mount media || return 1
    [[ $(cat "$root/mnt/pool/second") == again ]] || return 1
    says "every pool is served by a program that is still installed" inside strandfs status --outdated
}

by_mount_8() {
    inside strandfs umount /mnt/pool || return 1
    echo 'media /mnt/pool strandfs nofail 0 0' >>"$root/etc/fstab"
    inside mount /mnt/pool || return 1
    inside umount /mnt/pool
}

manual_and_completions() {
    [[ -e $root/usr/share/man/man1/strandfs-mount.1.gz ]] || return 1
    [[ -e $root/usr/share/bash-completion/completions/strandfs ]] || return 1
    inside strandfs --version | indent
}

# --- Debian and Ubuntu -----------------------------------------------------------------------
# A clean system, from an archive in target/roots that is made once.
debootstrap_into() { # SUITE MIRROR
    local archive=$roots/$1.tar
    if ! [[ -f $archive ]]; then
        debootstrap --variant=minbase "$1" "$scratch/new" "$2" >"$scratch/new.log" 2>&1 || {
            tail -n 3 "$scratch/new.log" | indent
            return 1
        }
        mkdir -p "$roots"
        tar --create --one-file-system --directory "$scratch/new" --file "$archive.new" . || return 1
        mv "$archive.new" "$archive"
        rm -rf --one-file-system "$scratch/new"
    fi
    tar --extract --directory "$root" --file "$archive"
}

remove_and_purge() {
    inside strandfs mount media || return 1
    says "the pools that are mounted stay" inside apt-get remove -y strandfs || return 1
    [[ ! -e $root/usr/bin/strandfs && -e $root/etc/strandfs/example.toml.sample ]] || return 1
    [[ $(cat "$root/mnt/pool/greeting") == hello ]] || { warn "the pool is gone"; return 1; }
    inside umount /mnt/pool || return 1
    inside apt-get purge -y strandfs >/dev/null 2>&1 || return 1
    rm "$root/etc/strandfs/media.toml"
    rmdir "$root/etc/strandfs" 2>/dev/null || true
    local left
    left=$(cd "$root" && find etc usr var/lib -name '*strandfs*' -not -path 'var/lib/apt/*' -print)
    [[ -z $left ]] || { warn "left behind: $left"; return 1; }
}

# A package of a higher version with a program that is another file.
newer_deb() {
    dpkg-deb --raw-extract "$deb" "$scratch/newer"
    sed -i 's/^Version: \(.*\)-\(.*\)$/Version: \1-99/' "$scratch/newer/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$scratch/newer" "$root/root/newer.deb" >/dev/null
    rm -rf "$scratch/newer"
}

debian() { # SUITE MIRROR
    [[ -f $deb ]] || { warn "no .deb in $dist: run make dist"; return 1; }
    have debootstrap || { warn "no debootstrap: apt-get install debootstrap"; return 1; }
    debootstrap_into "$1" "$2" || return 1
    enter
    cp "$deb" "$root/root/strandfs.deb"
    newer_deb
    no_compiler &&
        to_mounted_pool apt-get install -y --no-install-recommends /root/strandfs.deb &&
        manual_and_completions &&
        upgrade_under_pool apt-get install -y --no-install-recommends /root/newer.deb &&
        by_mount_8 &&
        remove_and_purge
}

# --- rpm -------------------------------------------------------------------------------------
# No distribution of that kind can be made here: the package alone, in a root that has what it requires from
# the Debian that runs.
root_for_rpm() {
    [[ -f $rpm ]] || { warn "no .rpm in $dist: run make dist"; return 1; }
    local tool
    for tool in "$@"; do
        have "$tool" || { warn "no $tool: apt-get install rpm dnf createrepo-c cpio"; return 1; }
    done
    debootstrap_into bookworm "$debian_mirror" || return 1
    enter
}

rpm_root() {
    root_for_rpm rpm || return 1
    local rpm_of_root=(rpm --root "$root" --dbpath /var/lib/rpm)
    rpm -qp --requires "$rpm" | indent
    # The libraries are dpkg's, which rpm does not see.
    "${rpm_of_root[@]}" --initdb
    # Not inside: there is no rpm in it.
    inside() { if [[ $1 == rpm ]]; then shift && "${rpm_of_root[@]}" "$@"; else inside_root "$@"; fi; }
    to_mounted_pool rpm -i --nodeps "$rpm" || return 1
    upgrade_under_pool rpm -U --nodeps --replacepkgs --force "$rpm" || return 1
    "${rpm_of_root[@]}" -V --nodeps strandfs || return 1
    says "the pools that are mounted stay" inside rpm -e strandfs || return 1
    inside umount /mnt/pool || return 1
    [[ ! -e $root/usr/bin/strandfs ]]
}

# Packs files below ROOT by a SPEC into $scratch/repository.
pack_rpm() { # SPEC ROOT
    rpmbuild -bb --quiet --target "$arch-linux" --define "_topdir $scratch/rpmbuild" \
        --define "_rpmdir $scratch/repository" --define "_dbpath $scratch/rpmbuild/db" \
        --define "strandfs_version $(rpm -qp --queryformat '%{version}' "$rpm")" --define "strandfs_root $2" "$1"
}

# What the package requires, by an empty package: the files are dpkg's.
stand_in() {
    {
        printf 'Name: stand-in\nVersion: 1\nRelease: 1\nSummary: What Debian has\nLicense: MIT\n'
        rpm -qp --requires "$rpm" | grep -v -e '^rpmlib(' -e '^config(' | sed 's/^/Provides: /'
        printf '%%description\nNothing.\n%%files\n'
    } >"$scratch/stand-in.spec"
    pack_rpm "$scratch/stand-in.spec" /
}

# The same files under a higher number; cpio makes the program another file.
newer_rpm() {
    mkdir -p "$scratch/newer"
    rpm2cpio "$rpm" | cpio --extract --make-directories --preserve-modification-time --quiet \
        --directory "$scratch/newer" || return 1
    sed 's/^Release: .*/Release: 99/' "$repo_root/packaging/rpm/strandfs.spec" >"$scratch/newer.spec"
    pack_rpm "$scratch/newer.spec" "$scratch/newer"
}

# As on a Fedora: the file that somebody fetched, what it requires from a repository, and later a newer one.
dnf_root() {
    root_for_rpm dnf createrepo_c rpmbuild rpm2cpio cpio || return 1
    mkdir -p "$scratch/repository" "$scratch/home"
    # Debian keeps rpm's database of root in root's home.
    echo '%_dbpath /var/lib/rpm' >"$scratch/home/.rpmmacros"
    local -x HOME=$scratch/home
    stand_in && createrepo_c --quiet "$scratch/repository" || return 1
    local dnf_of_root=(dnf --installroot "$root" --releasever 42 --setopt "cachedir=$scratch/cache"
        --setopt "reposdir=$scratch/none" --setopt metadata_expire=0 --setopt clean_requirements_on_remove=False
        --repofrompath "here,$scratch/repository" --nogpgcheck --assumeyes)
    inside() { if [[ $1 == dnf ]]; then shift && "${dnf_of_root[@]}" "$@"; else inside_root "$@"; fi; }
    to_mounted_pool dnf install "$rpm" || return 1
    manual_and_completions || return 1
    newer_rpm && createrepo_c --quiet "$scratch/repository" || return 1
    upgrade_under_pool dnf upgrade strandfs || return 1
    says '-99 ' inside dnf list --installed strandfs || return 1
    by_mount_8 || return 1
    inside strandfs mount media || return 1
    says "the pools that are mounted stay" inside dnf remove strandfs || return 1
    [[ ! -e $root/usr/bin/strandfs && $(cat "$root/mnt/pool/greeting") == hello ]] || return 1
    inside umount /mnt/pool
}

# --- what is in the packages -------------------------------------------------------------------
# The list of cargo-deb's is the one of install.sh, but for where Debian keeps completions of zsh, and its
# own papers.
same_files() { # DEB
    local wanted found
    DESTDIR=$scratch/wanted PREFIX=/usr SBINDIR=/usr/sbin BINARY=/bin/true PRELOAD=/bin/true \
        "$repo_root/scripts/install.sh" >/dev/null
    wanted=$(cd "$scratch/wanted" && find . -type f -o -type l | sed 's|zsh/site-functions|zsh/vendor-completions|' | sort)
    found=$(dpkg-deb -c "$1" | awk '$1 !~ /^d/ { print $6 }' | sed 's|\(/man/man.*\)\.gz$|\1|' |
        grep -v -e lintian/overrides -e '/mount\.fuse\.strandfs\.8' -e /copyright -e /changelog | sort)
    if ! diff <(echo "$wanted") <(echo "$found"); then
        warn "the .deb does not hold what scripts/install.sh installs"
        return 1
    fi
}

check() { # NAME COMMAND...
    local name=$1
    shift
    say "$name"
    root=$scratch/$name
    mkdir -p "$root"
    "$@" || failed+=("$name")
    leave
    rm -rf --one-file-system "$root"
}

contents() {
    local package found=true
    for package in "$dist"/*.deb; do
        [[ -f $package ]] || continue
        note "${package##*/}"
        same_files "$package" || found=false
        if have lintian; then
            lintian --fail-on error,warning --tag-display-limit 0 "$package" || found=false
        fi
    done
    for package in "$dist"/*.rpm; do
        if [[ -f $package ]] && have rpmlint; then
            rpmlint -c "$repo_root/packaging/rpm/rpmlint.toml" "$package" || found=false
        fi
    done
    have lintian || note "lintian is not installed"
    have rpmlint || note "rpmlint is not installed"
    $found
}

for name in "${names[@]}"; do
    case $name in
        contents) check contents contents ;;
        debian12) check debian12 debian bookworm "$debian_mirror" ;;
        debian13) check debian13 debian trixie "$debian_mirror" ;;
        ubuntu) check ubuntu debian jammy "$ubuntu_mirror" ;;
        rpm) check rpm rpm_root ;;
        dnf) check dnf dnf_root ;;
        *) die "usage: package-test.sh [contents|debian12|debian13|ubuntu|rpm|dnf]..." ;;
    esac
done
if ((${#failed[@]})); then die "failed: ${failed[*]}"; fi
say "all as it should be"

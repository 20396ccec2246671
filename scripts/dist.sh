#!/usr/bin/env bash
# Builds what a release hands out into target/dist: `dist.sh [--verify] [TARGET...]`.
#
#   a static binary       strandfs-VERSION-ARCH-linux-musl.tar.xz    TARGETs ARCH-unknown-linux-musl
#   packages              .deb and .rpm                              TARGETs ARCH-unknown-linux-gnu
#   debug information     strandfs-VERSION-TARGET.debug.tar.xz, which gdb finds by the build id
#   what is built in      strandfs-VERSION-ARCH.cdx.json (CycloneDX)
#   SHA256SUMS            of them all
#
# TARGETs left out are x86_64 and aarch64, each with both. One that cannot be built here is named with the
# reason, and the others are built; the exit code is 1 then. `--verify` builds everything a second time,
# from a copy of the sources in another directory, and compares bit for bit.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

# The tools, with their versions: another version may pack the same files otherwise.
cargo_deb=3.8.0
cargo_cyclonedx=0.5.9

dist=${DIST:-$repo_root/target/dist}
# Everything is as old as the last commit, whenever and wherever it is built.
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct "$commit")}
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C.UTF-8
umask 022

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
verify=false
targets=()
for word in "$@"; do
    case $word in
        --verify) verify=true ;;
        *-unknown-linux-musl | *-unknown-linux-gnu) targets+=("$word") ;;
        *) die "usage: dist.sh [--verify] [ARCH-unknown-linux-gnu|ARCH-unknown-linux-musl]..." ;;
    esac
done
if ((${#targets[@]} == 0)); then
    targets=({x86_64,aarch64}-unknown-linux-{gnu,musl})
fi

missing=()
cannot() { # WHAT WHY
    warn "$1 is left out: $2"
    missing+=("$1")
}

# --- tools -----------------------------------------------------------------------------------
toolchain=$(rustc --print sysroot)
host=$(rustc -vV | sed -n 's/^host: //p')
# Those of the toolchain know every architecture; those of the system know its own.
rust_objcopy=$toolchain/lib/rustlib/$host/bin/rust-objcopy
objcopy() { LD_LIBRARY_PATH=$toolchain/lib "$rust_objcopy" "$@"; }
lld=$toolchain/lib/rustlib/$host/bin/rust-lld
[[ -x $rust_objcopy ]] || die "the toolchain has no rust-objcopy: it splits debug information off (Rust 1.88 and later have it)"

# What a target needs beside Rust's own libraries: the linker, as cargo's variable names it.
linker_of() { # TARGET
    case $1 in
        *-musl) [[ -x $lld ]] && echo "$lld" ;;
        "$host") command -v cc ;;
        *) command -v "${1/-unknown-linux-gnu/-linux-gnu}-gcc" ;;
    esac
}

# Says why a target cannot be built here; nothing if it can.
obstacle() { # TARGET
    rust_libraries "$1" || return 0
    linker_of "$1" >/dev/null ||
        echo "there is no linker for it (on Debian or Ubuntu: apt-get install gcc-${1%%-*}-linux-gnu)"
}

# --- one build -------------------------------------------------------------------------------
# Paths of this machine are no part of a program. Cargo's directory of sources differs by user, the
# repository by checkout.
flags_for() { # SOURCE
    local registry
    registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    printf '%s\x1f' "--remap-path-prefix=$1=/build/strandfs" "--remap-path-prefix=$registry=/build/crates" \
        "--remap-path-prefix=$toolchain=/build/rust"
    # The build id is made of the content, so gdb and the packages find what belongs together.
    printf '%s' "-Clink-arg=${2:+-Wl,}--build-id=sha1"
}

compile() { # SOURCE TARGET
    local source=$1 target=$2 linker upper packages=(-p strandfs)
    linker=$(linker_of "$target")
    upper=${target^^}
    local driver=${linker##*/}
    [[ $driver == rust-lld ]] && driver=''
    # A static program has no use for a library that others load.
    [[ $target == *-gnu ]] && packages+=(-p strandfs-preload)
    (
        cd "$source"
        export "CARGO_TARGET_${upper//-/_}_LINKER=$linker"
        CARGO_ENCODED_RUSTFLAGS=$(flags_for "$source" "$driver")
        export CARGO_ENCODED_RUSTFLAGS
        export CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$source-build
        cargo build --release --locked --quiet --target "$target" "${packages[@]}"
    )
}

# Takes the debug information out of a program or library, leaves its name, and keeps it beside.
split() { # FILE DEBUG-DIRECTORY
    local file=$1 into=$2/${1##*/}.debug
    mkdir -p "$2"
    objcopy --only-keep-debug "$file" "$into"
    objcopy --strip-all --add-gnu-debuglink="$into" "$file"
    chmod 644 "$into"
}

# A tar archive that is the same for the same files.
pack() { # ARCHIVE DIRECTORY NAME
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$2" "$3" | xz -9 --threads=1 >"$1"
}

build() { # SOURCE DIST TARGET
    local source=$1 out=$2 target=$3 arch=${3%%-*} built stage name
    say "building $target"
    compile "$source" "$target"
    built=$source-build/$target/release
    stage=$source-stage/$target
    rm -rf "$stage"
    mkdir -p "$stage/debug" "$stage/built"
    cp "$built/strandfs" "$stage/built/"
    if [[ $target == *-gnu ]]; then cp "$built/libstrandfs_preload.so" "$stage/built/"; fi
    local file
    for file in "$stage/built/"*; do split "$file" "$stage/debug/strandfs-$version-$target-debug"; done
    pack "$out/strandfs-$version-$target.debug.tar.xz" "$stage/debug" "strandfs-$version-$target-debug"
    case $target in
        *-musl)
            name=strandfs-$version-$arch-linux-musl
            mkdir -p "$stage/$name/scripts"
            cp "$stage/built/strandfs" "$stage/$name/"
            cp -a "$source"/{man,completions,packaging,README.md,LICENSE-MIT,LICENSE-APACHE,CHANGELOG.md} "$stage/$name/"
            cp -a "$source"/scripts/{install,lib}.sh "$stage/$name/scripts/"
            pack "$out/$name.tar.xz" "$stage" "$name"
            ;;
        *-gnu)
            make_deb "$source" "$out" "$target" "$stage"
            make_rpm "$source" "$out" "$target" "$stage"
            ;;
    esac
}

# --- packages --------------------------------------------------------------------------------
make_deb() { # SOURCE DIST TARGET STAGE
    # cargo-deb packs what stands where cargo would have put it.
    local source=$1 out=$2 target=$3 stage=$4 place
    place=$stage/cargo/$target/release
    mkdir -p "$place"
    cp "$stage/built/"* "$place/"
    (
        cd "$source"
        CARGO_TARGET_DIR=$stage/cargo "$tools_dir/bin/cargo-deb" deb --no-build --no-strip --quiet \
            -p strandfs --target "$target" --output "$out/"
    )
}

make_rpm() { # SOURCE DIST TARGET STAGE
    have rpmbuild || {
        cannot "the .rpm for $3" "there is no rpmbuild (on Debian or Ubuntu: apt-get install rpm)"
        return
    }
    local source=$1 out=$2 arch=${3%%-*} stage=$4 root=$4/rpm-root
    # The one list of what is installed.
    BINARY=$stage/built/strandfs PRELOAD=$stage/built/libstrandfs_preload.so PREFIX=/usr \
        SBINDIR=/usr/sbin DESTDIR=$root bash "$source/scripts/install.sh" >/dev/null
    ln -sf ../bin/strandfs "$root/usr/sbin/mount.strandfs"
    ln -sf ../bin/strandfs "$root/usr/sbin/mount.fuse.strandfs"
    ln -sf ../bin/strandfs "$root/usr/sbin/umount.fuse.strandfs"
    gzip -9 --no-name "$root"/usr/share/man/man?/*
    mkdir -p "$root/usr/share/licenses/strandfs"
    cp "$source"/LICENSE-{MIT,APACHE} "$root/usr/share/licenses/strandfs/"
    rpmbuild -bb --quiet --target "$arch-linux" \
        --define "_topdir $stage/rpm" --define "_rpmdir $stage/rpm/out" --define "_dbpath $stage/rpm/db" \
        --define "strandfs_version $version" --define "strandfs_root $root" \
        "$source/packaging/rpm/strandfs.spec"
    cp "$stage/rpm/out/$arch/"*.rpm "$out/"
}

# --- everything ------------------------------------------------------------------------------
# One for each architecture: what is built in does not depend on the C library.
components() { # SOURCE DIST TARGET
    local name=strandfs-$version-${3%%-*}.cdx
    if [[ -e $2/$name.json ]]; then return; fi
    (
        cd "$1"
        "$tools_dir/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps \
            --manifest-path crates/strandfs/Cargo.toml --target "$3" --override-filename "$name"
    )
    # It writes one for each crate of ours.
    mv "$1/crates/strandfs/$name.json" "$2/"
    find "$1" -name "$name.json" -not -path '*/target/*' -delete
    # Where the sources lay is nobody's business, and differs.
    sed -i "s|$1|/build/strandfs|g" "$2/$name.json"
}

everything() { # SOURCE DIST
    local target
    rm -rf "$2"
    mkdir -p "$2"
    for target in "${buildable[@]}"; do
        build "$1" "$2" "$target"
        components "$1" "$2" "$target"
    done
    (cd "$2" && sha256sum -- * >SHA256SUMS)
}

# The committed sources, and nothing else, at a place of their own. Of this moment, so that cargo makes our
# crates anew.
copy_of_sources() { # DIRECTORY
    rm -rf "$1"
    mkdir -p "$1"
    git archive "$commit" | tar --extract --touch --directory "$1"
}

[[ -z $(git status --porcelain --untracked-files=no) ]] ||
    note "not committed, so not in it: $(git status --porcelain --untracked-files=no | wc -l) changed files"
install_tool cargo-deb "$cargo_deb"
install_tool cargo-cyclonedx "$cargo_cyclonedx"
rm -rf "$tools_dir/build"

buildable=()
for target in "${targets[@]}"; do
    why=$(obstacle "$target")
    if [[ -n $why ]]; then cannot "$target" "$why"; else buildable+=("$target"); fi
done
((${#buildable[@]})) || die "nothing can be built here"

# What crates.io has is compiled once for all builds here.
copy_of_sources "$repo_root/target/dist-source"
everything "$repo_root/target/dist-source" "$dist"
if $verify; then
    arm_cleanup
    make_scratch dist
    copy_of_sources "$scratch/another-place"
    everything "$scratch/another-place" "$scratch/again"
    if diff -r "$dist" "$scratch/again"; then
        say "built twice: the same bit for bit ($(wc -l <"$dist/SHA256SUMS") files)"
    else
        die "the second build differs from the first"
    fi
fi
say "in ${dist#"$repo_root"/}:"
(cd "$dist" && ls -lh | tail -n +2 | awk '{ printf "  %6s  %s\n", $5, $9 }')
if ((${#missing[@]})); then die "left out: ${missing[*]}"; fi

#!/usr/bin/env bash
# Boots another kernel in an emulator and runs behaviour tests of this checkout in it, as root:
#
#   old-kernel.sh [KERNEL [FILTER]]
#
# KERNEL is a version of Debian's packages (5.10, 6.1, 6.12; 6.1 when left out), a linux-image .deb, or the
# directory where one was unpacked (boot/vmlinuz-*, lib/modules). FILTER is a filter expression of
# cargo-nextest: what is run instead of the tests named below.
#
# The guest's root is this machine's, read-only over 9p under an overlay in memory, so everything that is
# installed here is there; the tests' TMPDIR is an ext4 on a disk of its own. Nothing of this machine is written but a
# scratch directory and target/old-kernel (packages and lists). Emulated, so ten to twenty times as slow as
# here: no KVM is asked for, for it does not start inside most virtual machines.
# OLD_KERNEL_COMMAND is a shell command to run there in place of the tests, for a look by hand;
# OLD_KERNEL_CPUS (2), OLD_KERNEL_MEMORY (3G) and OLD_KERNEL_SECONDS (the whole run's limit, 7200).
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
cd "$repo_root"

# Names, data, attributes, opens of every kind, files that move, caches, and what ends badly.
usual='binary(posix) & test(/^(basic|data|names|metadata|listings|readdir_rules|inode_numbers|symlinkify)::/)
    + binary(serving) & test(/^(passthrough|transport|mount_again|locks_unreported)::/)
    + binary(relocation) & test(/^(on_full|held)::/)
    + binary(coherence) & test(/^caching::/)
    + binary(faults) & test(/^(health|crash_rename|crash_full)::/)
    + binary(volume) & test(/^(data|errors)::/)'

kernel=${1:-6.1}
filter=${2:-$usual}
cpus=${OLD_KERNEL_CPUS:-2}
memory=${OLD_KERNEL_MEMORY:-3G}
limit_s=${OLD_KERNEL_SECONDS:-7200}
kept=${CARGO_TARGET_DIR:-$repo_root/target}/old-kernel

is_root || die "to be run as root: the guest reads this machine's root, and the tests mount"
PATH=$PATH:/usr/sbin:/sbin:$tools_dir/bin
have cargo-nextest || die "no cargo-nextest: scripts/install-test-deps.sh --tests installs it"

# --- what is needed ----------------------------------------------------------------------------
# COMMAND:PACKAGE
missing=()
for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod xz:xz-utils strip:binutils; do
    have "${pair%%:*}" || missing+=("${pair##*:}")
done
if ((${#missing[@]})); then
    have apt-get || die "install these by hand: ${missing[*]}"
    say "installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get install ${missing[*]} failed (apt-get update first?)"
fi
ldd "$(command -v busybox)" >/dev/null 2>&1 && die "busybox is not static: apt-get install busybox-static"

# --- the kernel --------------------------------------------------------------------------------
# apt-get with lists, sources and cache of its own: those of the machine stay as they are.
apt_kernels() {
    local dir=$kept/apt sources
    sources=$dir/sources.list
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    local suite
    for suite in 'debian-security bullseye-security' 'debian bookworm' 'debian-security bookworm-security' \
        'debian bookworm-backports'; do
        printf 'deb [arch=amd64 signed-by=%s] http://deb.debian.org/%s main\n' \
            /usr/share/keyrings/debian-archive-keyring.gpg "$suite"
    done >"$sources"
    local -a own=(-o "Dir::Etc::sourcelist=$sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$dir/lists"
        -o "Dir::Cache=$dir/cache" -o APT::Sandbox::User=root)
    "$1" "${own[@]}" "${@:2}"
}

unpacked_kernel() { # KERNEL: prints the directory
    local given=$1 package file
    if [[ -d $given ]]; then
        realpath "$given"
        return
    fi
    if [[ $given == *.deb ]]; then
        file=$(realpath "$given")
    else
        apt_kernels apt-get update -qq >&2 || warn "apt-get update failed; going on with what is known"
        package=$(apt_kernels apt-cache search --names-only "^linux-image-${given//./\\.}\\.[.0-9]*[-+].*amd64\$" |
            awk '{ print $1 }' | grep -Ev 'cloud|rt-amd64|dbg|unsigned|deb11' | sort -V | tail -n 1)
        [[ -n $package ]] || die "Debian has no kernel $given: give a .deb or the directory of an unpacked one"
        mkdir -p "$kept/packages"
        (cd "$kept/packages" && apt_kernels apt-get download -qq "$package") >&2
        file=$(find "$kept/packages" -name "${package}_*.deb" | sort -V | tail -n 1)
    fi
    local into
    into=$kept/$(basename "$file" .deb)
    if ! [[ -d $into ]]; then
        dpkg-deb --extract "$file" "$into.new"
        mv "$into.new" "$into"
    fi
    echo "$into"
}

arm_cleanup
make_scratch old-kernel
unpacked=$(unpacked_kernel "$kernel")
vmlinuz=$(find "$unpacked/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
[[ -n $vmlinuz ]] || die "no boot/vmlinuz-* below $unpacked"
release=${vmlinuz##*/vmlinuz-}
modules=$unpacked/lib/modules/$release
# Newer packages have it below /usr.
[[ -d $modules ]] || modules=$unpacked/usr/lib/modules/$release
[[ -d $modules ]] || die "no modules of $release below $unpacked"
modules_root=${modules%/lib/modules/*}
[[ -e $modules/modules.dep ]] || depmod --basedir "$modules_root" "$release"

# --- the first file system: busybox, a few modules, and the script that goes on from there ------
first=$scratch/first
mkdir -p "$first"/{bin,dev,proc,sys,modules,lower,upper,new}
cp "$(command -v busybox)" "$first/bin/busybox"
needed=()
for module in virtio_pci virtio_blk 9pnet_virtio 9p overlay ext4; do
    while read -r verb path _; do
        [[ $verb == insmod ]] || continue
        name=${path##*/}
        name=${name%%.ko*}
        [[ " ${needed[*]} " == *" $name "* ]] && continue
        needed+=("$name")
        case $path in
            *.xz) xz --decompress --stdout "$path" >"$first/modules/$name.ko" ;;
            *.zst) zstd --decompress --quiet --stdout "$path" >"$first/modules/$name.ko" ;;
            *) cp "$path" "$first/modules/$name.ko" ;;
        esac
    done < <(modprobe --dirname "$modules_root" --set-version "$release" --show-depends "$module")
done
printf '%s\n' "${needed[@]}" >"$first/modules/order"

cat >"$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
# A failure anywhere ends in the emulator's end, not in a wait for ever.
end() { echo "$1"; sync; for at in / /new/; do echo o >${at}proc/sysrq-trigger; done 2>/dev/null; sleep 60; }
while read -r module; do insmod "/modules/$module.ko" || echo "old-kernel: no $module"; done </modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /lower || end "old-kernel: no root"
mount -t tmpfs -o mode=0755 upper /upper && mkdir /upper/changed /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changed,workdir=/upper/work root /new || end "old-kernel: no overlay"
cd /new
mount --move /proc proc; mount --move /sys sys; mount --move /dev dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts; mount -t tmpfs shm dev/shm; mount -t tmpfs -o mode=0755 run run
mkdir -p disk && mount -t ext4 dev/vda disk && chmod 1777 disk || end "old-kernel: no disk"
mkdir -p run/old-kernel
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share run/old-kernel || end "old-kernel: no share"
ln -s /proc/self/fd dev/fd 2>/dev/null
chroot . /bin/bash /run/old-kernel/guest.sh
end "old-kernel: the guest's script has ended"
INIT
chmod +x "$first/init"
(cd "$first" && find . | cpio --create --format=newc --quiet | gzip -1) >"$scratch/initramfs"

# --- the tests ---------------------------------------------------------------------------------
say "building the tests"
share=$scratch/share
mkdir -p "$share"
cargo metadata --format-version 1 --locked >"$share/cargo.json"
cargo nextest list -p strandfs --locked --list-type binaries-only --message-format json >"$share/binaries.json"
printf '%s' "$filter" >"$share/filter"
printf '%s\n' "${OLD_KERNEL_COMMAND:-}" >"$share/command"
# Copies, for cargo may build anew meanwhile; without debug information, for 9p is slow.
target=${CARGO_TARGET_DIR:-$repo_root/target}
mkdir -p "$share/target/debug/deps"
programs=("$target"/debug/{strandfs,libstrandfs_preload.so,deps/libstrandfs_preload*.so})
mapfile -t tests < <(grep -o '"binary-path":"[^"]*"' "$share/binaries.json" | cut -d '"' -f 4)
for file in "${programs[@]}" "${tests[@]}"; do
    [[ -f $file ]] || continue
    strip --strip-debug -o "$share/target/${file#"$target/"}" "$file"
done

# Where this kernel's modules are is said to the guest's modprobe by a bind mount.
cat >"$share/guest.sh" <<GUEST
export PATH=$PATH HOME=/root LANG=C.UTF-8 RUST_BACKTRACE=0 NO_COLOR=1 TMPDIR=/disk STRANDFS_TEST_PATIENCE=10
set -o pipefail
cd '$repo_root'
mkdir -p /lib/modules/$release
mount --bind '$modules' /lib/modules/$release
for module in fuse loop xfs btrfs dm_mod; do modprobe \$module; done
ip link set lo up
hostname old-kernel
# What the machine has mounted and the root of the guest has not.
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t fusectl fusectl /sys/fs/fuse/connections 2>/dev/null
ulimit -Sn 1024
echo "old-kernel: \$(uname -r), \$(nproc) CPUs"
if [[ -n \$(cat /run/old-kernel/command) ]]; then
    bash /run/old-kernel/command
    echo \$? >/run/old-kernel/status
    exit
fi
cargo-nextest nextest run --profile emulated --test-threads 1 --no-fail-fast \\
    --binaries-metadata /run/old-kernel/binaries.json --target-dir-remap /run/old-kernel/target --cargo-metadata /run/old-kernel/cargo.json \\
    --show-progress none -E "\$(cat /run/old-kernel/filter)" </dev/null 2>&1 | cat
echo \$? >/run/old-kernel/status
GUEST

# --- the run -----------------------------------------------------------------------------------
truncate -s 8G "$scratch/disk"
mkfs.ext4 -q -F -m 0 "$scratch/disk"
say "booting $release (emulated)"
# The root is read-only; what other users of this machine may write to it meanwhile is theirs.
timeout --foreground "$limit_s" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$vmlinuz" -initrd "$scratch/initramfs" \
    -append 'console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0' \
    -drive "file=$scratch/disk,if=virtio,format=raw,cache=unsafe,discard=unmap" \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev "local,id=share,path=$share,security_model=none" \
    -device virtio-9p-pci,fsdev=share,mount_tag=share \
    -device virtio-rng-pci </dev/null | stdbuf -oL tr -d '\r' || warn "the emulator ended with an error, or after $limit_s s"

[[ -s $share/status ]] || die "the guest did not come to an end of the tests"
status=$(<"$share/status")
((status == 0)) || die "tests failed on $release"
say "all passed on $release"

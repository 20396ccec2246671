# The machine that a page of the book is run on, made of the real one: read by bash as process 1 of a
# mount and process namespace of its own, before the page's commands. $BOOK is the test's directory,
# $STRANDFS the built program.
set -u
export PATH=$BOOK/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run/home LC_ALL=C.UTF-8 STRANDFS_STATE_DIR=/run/strandfs-state
export TMPDIR=/run/tmp
unset XDG_RUNTIME_DIR

mount --make-rprivate /
mount --bind "$BOOK" "$BOOK"
# Pools and other FUSE mounts of the real machine are nothing to the page.
while read -r _ _ _ _ place rest; do
    case $rest in *' - fuse.'* | *' - fuse '*) umount -l "$(printf '%b' "$place")" ;; esac
done </proc/self/mountinfo
# The program, also for users who may not pass through where it was built.
mkdir -p "$BOOK/bin"
: >"$BOOK/bin/strandfs"
mount --bind "$STRANDFS" "$BOOK/bin/strandfs"
chmod 755 "$BOOK"

cp -a /etc "$BOOK/etc"
for place in /mnt /srv /media /run /var /usr/local/sbin; do
    if [ -d $place ]; then mount -t tmpfs -o mode=755 machine $place; fi
done
mkdir -p /run/{disks,lock,tmp} /var/{cache,lib,log,run,tmp} "$HOME"
mount --bind "$BOOK/etc" /etc
rm -rf /etc/strandfs
: >/etc/fstab

# mount(8) looks for helpers in /sbin only.
mkdir -p "$BOOK/sbin"
sbin=$(realpath /sbin)
mount --bind "$sbin" "$BOOK/sbin"
mount -t tmpfs -o mode=755 machine "$sbin"
ln -s "$BOOK/sbin/"* "$sbin/"
ln -sfn "$BOOK/bin/strandfs" "$sbin/mount.strandfs"
ln -sfn "$BOOK/bin/strandfs" "$sbin/mount.fuse.strandfs"
ln -sfn "$BOOK/bin/strandfs" "$sbin/umount.fuse.strandfs"

# Its own /dev, so that disks can have the names that disks have.
mkdir "$BOOK/dev"
mount -t tmpfs -o mode=755 machine "$BOOK/dev"
for node in null zero full random urandom tty fuse loop-control kmsg; do
    if [ -e /dev/$node ]; then cp -a /dev/$node "$BOOK/dev/"; fi
done
for number in {0..255}; do mknod "$BOOK/dev/loop$number" b 7 "$number"; done
mkdir -p "$BOOK/dev/"{pts,shm,disk/by-label}
mount --move "$BOOK/dev" /dev
ln -s /proc/self/fd /dev/fd

# No page writes to the rest of the real machine.
mount -o remount,bind,ro /

# blank DEVICE SIZE: a disk with nothing on it. It goes when the shell does that holds it open.
blank() {
    local image=/run/disks/${1##*/} loop
    truncate -s "$2" "$image" && loop=$(losetup --find --show "$image") || return 1
    eval "exec {held}<>$loop"
    losetup --detach "$loop" && cp -a "$loop" "$1"
}

# disk MOUNTPOINT [SIZE [TYPE]]: a disk that is formatted and mounted.
disk() {
    local image=/run/disks/${1##*/}
    mkdir -p "$1" && truncate -s "${2:-4G}" "$image" || return 1
    case ${3:-ext4} in
        ext4) mkfs.ext4 -q -F "$image" ;;
        *) "mkfs.$3" "$image" >/dev/null ;;
    esac && mount -o loop "$image" "$1" || return 1
    if [ -d "$1/lost+found" ]; then rmdir "$1/lost+found"; fi
}

# The kernel lets go of a pool's branches some milliseconds after the pool was unmounted. No reader
# types as fast as this.
umount() {
    local word words=() options=() tries said failed=0
    for word in "$@"; do
        case $word in -*) options+=("$word") ;; *) words+=("$word") ;; esac
    done
    for word in "${words[@]}"; do
        for ((tries = 0; tries < 250; tries++)); do
            said=$(command umount "${options[@]}" "$word" 2>&1) && break
            failed=$?
            [[ $said == *busy* ]] || break
            sleep 0.02
        done
        if [[ -n $said ]]; then printf '%s\n' "$said"; else failed=0; fi
    done
    return $failed
}

# until_so COMMAND...: waits for it to succeed, a minute at most.
until_so() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)); then
            "$@"
            return
        fi
        sleep 0.02
    done
}

# says TEXT COMMAND...: whether TEXT is in what it prints.
says() {
    local text=$1
    shift
    [[ $("$@" 2>&1) == *"$text"* ]]
}

#!/usr/bin/env bash
# The part of scripts/systemd-test.sh that runs inside: `steps.sh prepare` before the system is booted, then
# by its unit the part that /root/part names. Writes a line for each step to /root/result.
set -uo pipefail

result=/root/result
within=30

# Whether a command succeeds within a time; polled, as everything here is somebody else's to do.
soon() { # COMMAND...
    local tries
    for ((tries = 0; tries < within * 10; tries++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

step() { # NAME COMMAND...
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "ok      $name" >>"$result"
    else
        echo "FAILED  $name: ${said##*$'\n'}" >>"$result"
    fi
}

prop() { systemctl show --value --property "$2" "$1"; }
is() { [[ $1 == "$2" ]] || { echo "\"$1\", not \"$2\""; return 1; }; }
active() { is "$(prop "$1" ActiveState)" active; }
main_pid() { prop strandfs@media MainPID; }
mounted() { findmnt --noheadings --types fuse.strandfs "$1"; }
not() { ! "$@"; }

pool_file() { # NAME BRANCHES-PREFIX [LINE]
    mkdir -p "/mnt/$1" "/mnt/${2}1" "/mnt/${2}2"
    printf '%s\n' "mountpoint = \"/mnt/$1\"" "branches = [\"/mnt/${2}1\", \"/mnt/${2}2\"]" 'minfreespace = "1M"' \
        "${@:3}" >"/etc/strandfs/$1.toml"
}

prepare() {
    pool_file media disk
    pool_file late late 'cache.writeback = true' 'cache.files = "full"' 'passthrough.io = "off"'
    pool_file wrong wrong 'category.create = "msf"'
    pool_file away away
    rmdir /mnt/away2
    mkdir -p /mnt/byline /mnt/parts /mnt/ordered
    # One disk of the fstab pool is a mount of its own, written below the pool that needs it.
    cat >>/etc/fstab <<'FSTAB'
/mnt/disk1:/mnt/parts/one /mnt/byline strandfs minfreespace=1M,nofail,x-systemd.requires-mounts-for=/mnt/parts 0 0
tmpfs /mnt/parts tmpfs size=64m,X-mount.mkdir=755 0 0
FSTAB
    # Makes the branch once its disk is there.
    cat >/etc/systemd/system/parts.service <<'UNIT'
[Unit]
DefaultDependencies=no
RequiresMountsFor=/mnt/parts
Before=mnt-byline.mount
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mkdir -p /mnt/parts/one
[Install]
RequiredBy=mnt-byline.mount
UNIT
    systemctl --quiet enable parts.service strandfs@media.service
}

# --- the unit ----------------------------------------------------------------------------------
serves() {
    active strandfs@media && mounted /mnt/media || return
    echo hello >/mnt/media/greeting && is "$(cat /mnt/disk[12]/greeting)" hello
}

says_what_it_does() {
    is "$(prop strandfs@media StatusText)" "serving the pool at /mnt/media"
    is "$(prop strandfs@media NRestarts)" 0
}

watches() {
    # As far as this container lets it: no branch is without its watch for want of a capability.
    not grep -q CAP_SYS_ADMIN <(journalctl --unit strandfs@media --output cat)
}

reads_its_file_again() {
    sed -i 's/^minfreespace = .*/minfreespace = "2M"/' /etc/strandfs/media.toml
    systemctl reload strandfs@media || return
    soon has_minfreespace 2M
}
has_minfreespace() { [[ $(strandfs get /mnt/media minfreespace) == *"$1" ]]; }

a_wrong_file_changes_nothing() {
    cp /etc/strandfs/media.toml /root/good.toml
    echo 'category.create = "msf"' >>/etc/strandfs/media.toml
    systemctl reload strandfs@media
    soon grep -q msf <(journalctl --unit strandfs@media --output cat) || { echo "the log does not say"; return 1; }
    has_minfreespace 2M && serves || return
    mv /root/good.toml /etc/strandfs/media.toml
}

is_back_after_a_kill() {
    local before
    before=$(main_pid)
    exec 7</mnt/media/greeting
    kill -KILL "$before"
    soon another_server "$before" || { echo "no other server"; return 1; }
    exec 7<&-
    serves
}
another_server() { [[ $(main_pid) != "$1" && $(main_pid) != 0 ]] && active strandfs@media && [[ -e /mnt/media/greeting ]]; }

a_mistake_is_not_tried_again() {
    systemctl start strandfs@wrong && { echo "it started"; return 1; }
    is "$(prop strandfs@wrong ExecMainStatus)" 2 && is "$(prop strandfs@wrong NRestarts)" 0 &&
        is "$(prop strandfs@wrong ActiveState)" failed || return
    grep -q 'did you mean.*mfs\|mfs' <(journalctl --unit strandfs@wrong --output cat) && not mounted /mnt/wrong
}

# A directory of a branch that is not there: said, and nothing is written where it should be.
a_branch_that_is_away_is_said() {
    systemctl start strandfs@away && { echo "it started"; return 1; }
    systemctl stop strandfs@away
    grep -q away2 <(journalctl --unit strandfs@away --output cat) && not mounted /mnt/away && [[ ! -e /mnt/away2 ]]
}

ends_while_it_is_used() {
    local from=$SECONDS user
    (cd /mnt/media && exec tail -f greeting) >/dev/null 2>&1 &
    user=$!
    systemctl stop strandfs@media || return
    kill "$user"
    wait "$user" 2>/dev/null
    ((SECONDS - from < 20)) || { echo "took $((SECONDS - from)) s"; return 1; }
    not mounted /mnt/media || return
    systemctl start strandfs@media && serves
}

is_left_by_nobody() {
    is "$(prop strandfs@media ActiveState)" active || return
    local group
    group=$(prop strandfs@media ControlGroup)
    # The server and its guardian, and nothing of former servers.
    is "$(cat "/sys/fs/cgroup/systemd$group/cgroup.procs" "/sys/fs/cgroup$group/cgroup.procs" 2>/dev/null | sort -u | wc -l)" 2
}

# --- fstab ---------------------------------------------------------------------------------------
mounts_its_line_in_order() {
    # `nofail`: nothing at boot waits for it.
    soon active mnt-byline.mount && mounted /mnt/byline || return
    [[ $(prop mnt-byline.mount After) == *mnt-parts.mount* && $(prop mnt-byline.mount Requires) == *mnt-parts.mount* ]] ||
        { echo "not ordered after its disk"; return 1; }
    strandfs status /mnt/byline | grep -q /mnt/parts/one && echo x >/mnt/byline/f
}

goes_before_its_disk() {
    systemctl stop mnt-parts.mount || return
    not mounted /mnt/byline || return
    systemctl start mnt-byline.mount && mounts_its_line_in_order
}

# --- turning off ---------------------------------------------------------------------------------
writes_until_the_end() {
    systemctl start strandfs@late || return
    dd if=/dev/urandom of=/mnt/late/late bs=1M count=24 status=none || return
    sha256sum </mnt/late/late >/root/late.sum
    # Somebody is in the pool when the system goes down.
    (cd /mnt/late && exec setsid tail -f late) >/dev/null 2>&1 &
}

first() {
    step "the pool of the unit that is enabled is there after booting" serves
    step "its status says what it serves" says_what_it_does
    step "its branches are watched" watches
    step "reload reads the file again" reads_its_file_again
    step "a wrong file changes nothing and is said" a_wrong_file_changes_nothing
    step "a killed server is followed by another, which clears the dead mount away" is_back_after_a_kill
    step "a mistake in the file is said once and not tried again" a_mistake_is_not_tried_again
    step "a branch that is away is said, and nothing is made in its place" a_branch_that_is_away_is_said
    step "it ends while it is used, at once and whole" ends_while_it_is_used
    step "no process of former servers is left" is_left_by_nobody
    step "a line of fstab is mounted after its disks" mounts_its_line_in_order
    step "the pool goes before a disk of its" goes_before_its_disk
}

second() {
    step "all is there after the second boot" serves
    step "a line of fstab is mounted after its disks" mounts_its_line_in_order
    step "a pool is written to until the end" writes_until_the_end
}

case ${1:-$(cat /root/part)} in
    prepare) prepare ;;
    first) first && echo end >>"$result" ;;
    second) second && echo end >>"$result" ;;
esac

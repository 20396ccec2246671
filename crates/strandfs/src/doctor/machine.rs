//! What the machine offers: kernel, device, rights, limits, helpers.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use strandfs_fuse::read_lossy;

use crate::answers::Check;

/// The machine; its files are looked up beneath `root`, which is `/` but in tests.
pub struct Machine {
    root: PathBuf,
    /// The caller is root, or has CAP_SYS_ADMIN.
    pub privileged: bool,
    /// Most files a process may have open.
    open_files: u64,
}

/// Where mount(8) looks for helpers.
const HELPER_DIRS: [&str; 4] = ["sbin", "usr/sbin", "usr/local/sbin", "usr/bin"];

impl Machine {
    /// The machine we are on.
    pub fn this() -> Machine {
        let root = PathBuf::from("/");
        let status = read_lossy("/proc/self/status").unwrap_or_default();
        Machine {
            root,
            privileged: has_admin(&status),
            open_files: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        }
    }

    /// A file of the machine; empty if it cannot be read.
    pub fn read(&self, path: &str) -> String {
        read_lossy(self.path(path)).unwrap_or_default()
    }

    /// A path of the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The kernel's version.
    pub fn kernel(&self) -> (u32, u32) {
        version(&self.read("/proc/sys/kernel/osrelease")).unwrap_or((0, 0))
    }

    /// Every check.
    pub fn checks(&self) -> Vec<Check> {
        vec![
            self.kernel_version(),
            self.device(),
            self.passthrough(),
            self.notices(),
            self.ring_transport(),
            self.descriptors(),
            self.other_users(),
            self.mount_helper(),
            self.log(),
        ]
    }

    fn kernel_version(&self) -> Check {
        let (major, minor) = self.kernel();
        let found = format!("Linux {major}.{minor}");
        match (major, minor) {
            (0, 0) => Check::warn("kernel", "its version cannot be read", "mount /proc"),
            old if old < (5, 4) => Check::fail("kernel", found, "use Linux 5.4 or later"),
            _ => Check::pass("kernel", found),
        }
    }

    fn device(&self) -> Check {
        if self.has("/dev/fuse") {
            return Check::pass("FUSE device", "/dev/fuse is there");
        }
        Check::fail(
            "FUSE device",
            "/dev/fuse is not there",
            "load the module (modprobe fuse); in a container, pass the device in (--device /dev/fuse)",
        )
    }

    fn passthrough(&self) -> Check {
        const NAME: &str = "passthrough";
        let (major, minor) = self.kernel();
        if (major, minor) < (6, 9) {
            return Check::warn(
                NAME,
                format!("Linux {major}.{minor} has none: data takes the way through the server"),
                "use Linux 6.9 or later for reads and writes at the speed of the disk",
            );
        }
        if !self.privileged {
            return Check::warn(
                NAME,
                "it needs CAP_SYS_ADMIN, which you do not have",
                "mount as root for reads and writes at the speed of the disk",
            );
        }
        Check::pass(NAME, "the kernel has it and you may use it")
    }

    fn notices(&self) -> Check {
        const NAME: &str = "fanotify";
        let limited = if self.kernel() < (5, 9) {
            "this kernel cannot report names (Linux 5.9 or later can)"
        } else if !self.privileged {
            "it needs CAP_SYS_ADMIN, which you do not have"
        } else {
            return Check::pass(NAME, "changes on branches can be noticed");
        };
        Check::warn(
            NAME,
            limited,
            "changes made on a branch behind the pool's back show only after cache.entry and cache.attr; keep those short",
        )
    }

    fn ring_transport(&self) -> Check {
        const NAME: &str = "FUSE over io_uring";
        let parameter = self.read("/sys/module/fuse/parameters/enable_uring");
        let forbidden = self.read("/proc/sys/kernel/io_uring_disabled");
        // Pools work without it, so no fault either way.
        let found = match (parameter.trim(), forbidden.trim()) {
            ("", _) => "not in this kernel (Linux 6.14 or later); /dev/fuse is used",
            ("Y" | "1", "2") => "enabled, but kernel.io_uring_disabled=2; /dev/fuse is used",
            ("Y" | "1", "1") if !self.privileged => {
                "enabled, but kernel.io_uring_disabled=1, and you are not root; /dev/fuse is used"
            }
            ("Y" | "1", _) => "enabled: transport=auto uses it",
            _ => {
                "off; /dev/fuse is used, as fast for one program at a time; several at once are \
                 served up to twice as fast with it (echo Y > \
                 /sys/module/fuse/parameters/enable_uring as root switches it on)"
            }
        };
        Check::pass(NAME, found)
    }

    fn descriptors(&self) -> Check {
        const NAME: &str = "open files";
        const ENOUGH: u64 = 65_536;
        let found = format!(
            "a server started from here may have {} open",
            self.open_files
        );
        if self.open_files >= ENOUGH {
            return Check::pass(NAME, found);
        }
        Check::warn(
            NAME,
            found,
            "raise the hard limit: LimitNOFILE=1048576 in the service, or ulimit -Hn",
        )
    }

    fn other_users(&self) -> Check {
        const NAME: &str = "other users";
        if self.privileged {
            return Check::pass(NAME, "root mounts, so others may enter (allow-other)");
        }
        let helper = [
            "usr/bin/fusermount3",
            "bin/fusermount3",
            "usr/local/bin/fusermount3",
        ];
        if !helper.iter().any(|path| self.has(path)) {
            return Check::fail(
                NAME,
                "fusermount3 is not installed, without which only root can mount",
                "install the package fuse3",
            );
        }
        let conf = self.read("/etc/fuse.conf");
        if conf.lines().any(|line| line.trim() == "user_allow_other") {
            return Check::pass(NAME, "may be let in (allow-other)");
        }
        Check::warn(
            NAME,
            "cannot enter a pool that you mount",
            "put user_allow_other into /etc/fuse.conf and mount with -o allow-other",
        )
    }

    fn mount_helper(&self) -> Check {
        const NAME: &str = "mount helper";
        let helpers = HELPER_DIRS
            .iter()
            .map(|dir| format!("{dir}/mount.strandfs"))
            .find(|path| self.has(path));
        match helpers {
            Some(path) => Check::pass(NAME, format!("/{path}")),
            None => Check::warn(
                NAME,
                "mount.strandfs is not installed",
                "for /etc/fstab and mount -t strandfs, run make install",
            ),
        }
    }

    fn log(&self) -> Check {
        const NAME: &str = "log";
        if self.has("/run/systemd/journal/socket") {
            return Check::pass(NAME, "the journal (journalctl -t strandfs)");
        }
        if self.has("/dev/log") {
            return Check::pass(NAME, "syslog");
        }
        Check::warn(
            NAME,
            "there is no journal and no syslog",
            "set log.file=PATH, or errors of a server in the background are lost",
        )
    }

    /// Files in use as swap.
    pub fn swap_files(&self) -> Vec<PathBuf> {
        let text = self.read("/proc/swaps");
        text.lines()
            .skip(1)
            .filter_map(|line| {
                let mut fields = line.split_whitespace();
                let path = fields.next()?;
                (fields.next()? == "file").then(|| PathBuf::from(path))
            })
            .collect()
    }

    /// Parity files of SnapRAID: lines `parity PATH[,PATH]`, `2-parity PATH`, ...
    pub fn parity_files(&self) -> Vec<PathBuf> {
        let text =
            ["/etc/snapraid.conf", "/usr/local/etc/snapraid.conf"].map(|path| self.read(path));
        text.iter()
            .flat_map(|text| text.lines())
            .filter_map(|line| {
                let (key, paths) = line.trim().split_once(char::is_whitespace)?;
                (key == "parity" || key.ends_with("-parity")).then_some(paths)
            })
            .flat_map(|paths| paths.split(','))
            .map(|path| PathBuf::from(path.trim()))
            .collect()
    }

    /// The options with which a directory is exported over NFS, or none if it is not.
    pub fn export_of(&self, directory: &Path) -> Option<String> {
        let mut texts = vec![self.read("/etc/exports")];
        let more = std::fs::read_dir(self.path("/etc/exports.d"))
            .into_iter()
            .flatten();
        for entry in more.flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|kind| kind == "exports")
            {
                texts.push(std::fs::read_to_string(entry.path()).unwrap_or_default());
            }
        }
        let lines = texts.iter().flat_map(|text| text.lines());
        lines.map(str::trim).find_map(|line| {
            let (path, options) = line.split_once(char::is_whitespace)?;
            let path = Path::new(path.trim_matches('"'));
            let exported = path.starts_with(directory) && !line.starts_with('#');
            exported.then(|| options.to_owned())
        })
    }
}

/// Whether `/proc/PID/status` shows CAP_SYS_ADMIN.
fn has_admin(status: &str) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << CAP_SYS_ADMIN != 0)
}

/// `6.18.44-name` as (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::answers::Verdict;

    /// A machine whose files are these.
    pub fn machine(root: &Path, privileged: bool, files: &[(&str, &str)]) -> Machine {
        let machine = Machine {
            root: root.to_owned(),
            privileged,
            open_files: 1 << 20,
        };
        for (path, text) in files {
            let path = machine.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        machine
    }

    const GOOD: [(&str, &str); 4] = [
        ("/proc/sys/kernel/osrelease", "6.18.44-x\n"),
        ("/dev/fuse", ""),
        ("/sbin/mount.strandfs", ""),
        ("/dev/log", ""),
    ];

    fn verdicts(privileged: bool, files: &[(&str, &str)]) -> Vec<(&'static str, Verdict)> {
        let dir = tempfile::tempdir().unwrap();
        let checks = machine(dir.path(), privileged, files).checks();
        let bad = checks.iter().filter(|check| check.verdict != Verdict::Pass);
        bad.map(|check| {
            assert!(check.remedy.is_some(), "{check:?}");
            (check.name, check.verdict)
        })
        .collect()
    }

    #[test]
    fn a_good_machine_passes() {
        assert_eq!(verdicts(true, &GOOD), []);
    }

    #[test]
    fn each_lack_is_found() {
        use Verdict::{Fail, Warn};
        let with = |index: usize, with: Option<&'static str>| {
            let mut files = GOOD.to_vec();
            match with {
                Some(text) => files[index].1 = text,
                None => drop(files.remove(index)),
            }
            verdicts(true, &files)
        };
        assert_eq!(with(0, Some("6.8.0")), [("passthrough", Warn)]);
        assert_eq!(with(0, Some("4.19.1"))[0], ("kernel", Fail));
        assert_eq!(with(1, None), [("FUSE device", Fail)]);
        assert_eq!(with(2, None), [("mount helper", Warn)]);
        assert_eq!(with(3, None), [("log", Warn)]);
        let mut files = GOOD.to_vec();
        let rights = [("passthrough", Warn), ("fanotify", Warn)];
        assert_eq!(verdicts(false, &files)[..2], rights);
        assert_eq!(verdicts(false, &files)[2], ("other users", Fail));
        files.push(("/usr/bin/fusermount3", ""));
        files.push(("/etc/fuse.conf", "# user_allow_other\n"));
        assert_eq!(verdicts(false, &files)[2], ("other users", Warn));
        files.push(("/etc/fuse.conf", "user_allow_other\n"));
        assert_eq!(verdicts(false, &files), rights);
    }

    #[test]
    fn configurations_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let swaps =
            "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n/d/swap file 1 0 -3\n";
        let snapraid =
            "# parity /no\nparity /p1/snapraid.parity,/p2/b\n2-parity /p3/c\ncontent /d/c\n";
        let exports = "# /pool *(rw)\n/other *(ro)\n\"/pool/films\" 10.0.0.0/8(rw,fsid=7)\n";
        let files = [
            ("/proc/swaps", swaps),
            ("/etc/snapraid.conf", snapraid),
            ("/etc/exports.d/pool.exports", exports),
        ];
        let machine = machine(dir.path(), true, &files);
        assert_eq!(machine.swap_files(), [PathBuf::from("/d/swap")]);
        let parity = ["/p1/snapraid.parity", "/p2/b", "/p3/c"].map(PathBuf::from);
        assert_eq!(machine.parity_files(), parity);
        let export = machine.export_of(Path::new("/pool")).unwrap();
        assert!(export.contains("fsid=7"));
        assert_eq!(machine.export_of(Path::new("/films")), None);
        assert_eq!(version("6.1-rc2"), Some((6, 1)));
        assert!(has_admin("CapEff:\t000001ffffffffff\n") && !has_admin("CapEff:\t0\n"));
    }
}

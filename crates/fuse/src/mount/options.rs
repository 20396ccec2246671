//! What a mount is to look like.

bitflags::bitflags! {
    /// Options every Linux filesystem has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// `ro`.
        const READ_ONLY = 1 << 0;
        /// `nosuid`; always on for users who are not root.
        const NOSUID = 1 << 1;
        /// `nodev`; always on for users who are not root.
        const NODEV = 1 << 2;
        /// `noexec`.
        const NOEXEC = 1 << 3;
        /// `sync`.
        const SYNC = 1 << 4;
        /// `dirsync`.
        const DIRSYNC = 1 << 5;
        /// `noatime`.
        const NOATIME = 1 << 6;
        /// `nodiratime`.
        const NODIRATIME = 1 << 7;
        /// `relatime`, the kernel's default.
        const RELATIME = 1 << 8;
        /// `strictatime`.
        const STRICTATIME = 1 << 9;
        /// `lazytime`.
        const LAZYTIME = 1 << 10;
    }
}

/// What a mount is to look like.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `df` and `/proc/mounts` show as the source; any text.
    pub fsname: String,
    /// The type is `fuse.<subtype>`; `fuse` if empty.
    pub subtype: String,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Options every filesystem has.
    pub flags: MountFlags,
    /// Longest READ in bytes; the kernel's limit if `None`.
    pub max_read_bytes: Option<u32>,
    /// Further options for the kernel as they are, like `context=…`.
    pub extra_data: Vec<String>,
}

impl Default for MountOptions {
    /// A mount for its owner only, named and typed `strandfs`, permissions left to the server.
    fn default() -> Self {
        Self {
            fsname: "strandfs".to_owned(),
            subtype: "strandfs".to_owned(),
            allow_other: false,
            default_permissions: false,
            flags: MountFlags::empty(),
            max_read_bytes: None,
            extra_data: Vec::new(),
        }
    }
}

impl MountOptions {
    /// What is mounted, in words.
    pub(super) fn source(&self) -> &str {
        [&self.fsname, &self.subtype]
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or("fuse", String::as_str)
    }

    /// The type for mount(2).
    pub(super) fn kind(&self) -> String {
        if self.subtype.is_empty() {
            "fuse".to_owned()
        } else {
            format!("fuse.{}", self.subtype)
        }
    }

    /// The options the kernel's FUSE reads, beside those every mount needs.
    pub(super) fn kernel_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.allow_other {
            options.push("allow_other".to_owned());
        }
        if self.default_permissions {
            options.push("default_permissions".to_owned());
        }
        if let Some(bytes) = self.max_read_bytes {
            options.push(format!("max_read={bytes}"));
        }
        options.extend(self.extra_data.iter().cloned());
        options
    }

    /// All options in the words of `fusermount3`.
    pub(super) fn helper_options(&self) -> String {
        let access = if self.flags.contains(MountFlags::READ_ONLY) {
            "ro"
        } else {
            "rw"
        };
        let mut options = vec![access.to_owned()];
        let words = [
            (MountFlags::NOSUID, "nosuid"),
            (MountFlags::NODEV, "nodev"),
            (MountFlags::NOEXEC, "noexec"),
            (MountFlags::SYNC, "sync"),
            (MountFlags::DIRSYNC, "dirsync"),
            (MountFlags::NOATIME, "noatime"),
            (MountFlags::NODIRATIME, "nodiratime"),
            (MountFlags::RELATIME, "relatime"),
            (MountFlags::STRICTATIME, "strictatime"),
            (MountFlags::LAZYTIME, "lazytime"),
        ];
        let set = words
            .into_iter()
            .filter(|(flag, _)| self.flags.contains(*flag));
        options.extend(set.map(|(_, word)| word.to_owned()));
        options.push(format!("fsname={}", escape(self.source())));
        if !self.subtype.is_empty() {
            options.push(format!("subtype={}", escape(&self.subtype)));
        }
        options.extend(self.kernel_options());
        options.join(",")
    }
}

/// Commas separate options, and a backslash takes that from them.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_options_escape_names_and_spell_flags() {
        let options = MountOptions {
            fsname: r"/a,b:/c\d".to_owned(),
            flags: MountFlags::READ_ONLY | MountFlags::NODEV,
            allow_other: true,
            max_read_bytes: Some(4096),
            extra_data: vec!["context=x".to_owned()],
            ..MountOptions::default()
        };
        assert_eq!(
            options.helper_options(),
            r"ro,nodev,fsname=/a\,b:/c\\d,subtype=strandfs,allow_other,max_read=4096,context=x"
        );
    }

    #[test]
    fn names_may_be_left_out() {
        let options = MountOptions {
            fsname: String::new(),
            subtype: String::new(),
            ..MountOptions::default()
        };
        assert_eq!(
            (options.source(), options.kind().as_str()),
            ("fuse", "fuse")
        );
        assert_eq!(options.helper_options(), "rw,fsname=fuse");
    }
}

//! Options whose value is one word of a fixed set, and booleans.

use serde::{Deserialize, Serialize};

/// Declares an enum together with its option words, so that parsing, printing and the text that
/// lists the accepted words cannot disagree.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $name:ident {
            $(#[$first_meta:meta])* $first:ident = $first_word:literal,
            $( $(#[$item_meta:meta])* $item:ident = $word:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $(#[$first_meta])* $first,
            $( $(#[$item_meta])* $item, )*
        }

        impl $name {
            /// What the parser accepts, as a phrase for error messages and help.
            pub const ACCEPTED: &'static str = concat!("one of ", $first_word $(, ", ", $word)*);

            /// The word used in options.
            pub fn name(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $( Self::$item => $word, )*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = NotAWord;

            /// Any letter case is accepted.
            fn from_str(text: &str) -> Result<Self, NotAWord> {
                match text {
                    _ if text.eq_ignore_ascii_case($first_word) => Ok(Self::$first),
                    $( _ if text.eq_ignore_ascii_case($word) => Ok(Self::$item), )*
                    _ => Err(NotAWord),
                }
            }
        }
    };
}

/// The text is none of the accepted words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAWord;

words! {
    /// The type a pool shows itself as, after `fuse.`.
    Subtype {
        /// Its own.
        Strandfs = "strandfs",
        /// For programs that look for it by name.
        Mergerfs = "mergerfs",
    }
}

words! {
    /// Which opens may bypass the server so that the kernel moves the data itself.
    PassthroughIo {
        /// Wherever the kernel and the branch can and no other option forbids it.
        Auto = "auto",
        /// Never.
        Off = "off",
        /// Files opened for reading only.
        ReadOnly = "ro",
        /// Files opened for writing only.
        WriteOnly = "wo",
        /// Every open.
        ReadWrite = "rw",
    }
}

words! {
    /// Which files that are opened for writing pass through where writes cannot be held.
    PassthroughUnheld {
        /// Those with headroom, on branches that are faster than the server.
        Auto = "auto",
        /// Those with headroom.
        Headroom = "headroom",
        /// None.
        Off = "off",
    }
}

words! {
    /// How requests come from the kernel.
    Transport {
        /// Over io_uring where that is possible.
        Auto = "auto",
        /// Over `/dev/fuse`.
        Dev = "dev",
        /// Over io_uring, or the mount fails.
        Uring = "uring",
    }
}

words! {
    /// Which CPUs the server's threads run on: R reads requests, P carries them on; 1 is the first
    /// or only one, S is spread; L is a logical CPU, P at the end a physical core.
    PinThreads {
        /// Near whoever asks.
        Off = "false",
        /// Wherever the system puts them.
        Anywhere = "anywhere",
        /// The reader on the first CPU.
        R1L = "R1L",
        /// The reader on the first core.
        R1P = "R1P",
        /// All on the first CPU.
        RP1L = "RP1L",
        /// All on the first core.
        RP1P = "RP1P",
        /// The reader on the first CPU, the others on the last.
        R1LP1L = "R1LP1L",
        /// The reader on the first core, the others on the second.
        R1PP1P = "R1PP1P",
        /// One after the other over the CPUs.
        RPSL = "RPSL",
        /// One after the other over the cores.
        RPSP = "RPSP",
        /// The reader on the first core, the others over the rest.
        R1PPSP = "R1PPSP",
    }
}

words! {
    /// How the kernel caches the contents of files that are not in passthrough.
    CacheFiles {
        /// Direct I/O: no page cache above the branches'.
        Off = "off",
        /// Page cache, dropped at every open.
        Partial = "partial",
        /// Page cache, kept from open to open.
        Full = "full",
        /// Page cache, kept when the file is unchanged since the last open.
        AutoFull = "auto-full",
        /// As `partial` for the processes named in `cache.files.process-names`, else as `off`.
        PerProcess = "per-process",
    }
}

words! {
    /// How the kernel's caches follow changes made on the branches behind the pool.
    Coherence {
        /// Watched where that is possible and cheap, timeouts elsewhere.
        Auto = "auto",
        /// Watched wherever that is possible, timeouts elsewhere.
        Watch = "watch",
        /// The `cache.*` timeouts alone.
        Timeout = "timeout",
        /// Nothing is cached.
        Strict = "strict",
    }
}

words! {
    /// What becomes of requests that may need a branch that is not there.
    OnMissing {
        /// They fail.
        Fail = "fail",
        /// They fail, and the pool is read-only.
        ReadOnly = "readonly",
        /// The pool is what the other branches hold.
        Degrade = "degrade",
        /// They wait for the branch.
        Wait = "wait",
    }
}

words! {
    /// Which mounts below a branch are part of it.
    CrossMounts {
        /// Those that root made; not those whose content a user controls.
        System = "system",
        /// None.
        None = "none",
        /// All of them.
        All = "all",
    }
}

words! {
    /// When closing a file sends a FLUSH request.
    FlushOnClose {
        /// Never.
        Never = "never",
        /// When the file was opened for writing.
        OpenedForWrite = "opened-for-write",
        /// At every close.
        Always = "always",
    }
}

words! {
    /// What extended attribute requests see.
    XattrMode {
        /// The branch's attributes.
        Passthrough = "passthrough",
        /// No attributes: reads and writes answer ENODATA.
        NoAttr = "noattr",
        /// ENOSYS; the kernel then stops asking for the life of the mount.
        NoSys = "nosys",
    }
}

words! {
    /// Which branches a statfs request sums up.
    StatfsMode {
        /// Every branch, by its root.
        Base = "base",
        /// Only the branches where the path exists, by that path.
        Full = "full",
    }
}

words! {
    /// Whose free space a statfs request leaves out.
    StatfsIgnore {
        /// Nobody's.
        None = "none",
        /// Read-only branches'.
        ReadOnly = "ro",
        /// Read-only and no-create branches'.
        NoCreate = "nc",
    }
}

words! {
    /// How the inode numbers that users see are made.
    InodeCalc {
        /// The branch's own number.
        Passthrough = "passthrough",
        /// From the path in the pool.
        PathHash = "path-hash",
        /// As `path-hash`, in 32 bits.
        PathHash32 = "path-hash32",
        /// From the branch and the number there.
        DevinoHash = "devino-hash",
        /// As `devino-hash`, in 32 bits.
        DevinoHash32 = "devino-hash32",
        /// Directories as `path-hash`, everything else as `devino-hash`.
        HybridHash = "hybrid-hash",
        /// As `hybrid-hash`, in 32 bits.
        HybridHash32 = "hybrid-hash32",
    }
}

words! {
    /// Which symbolic links on the branches are shown as what they lead to.
    FollowSymlinks {
        /// None.
        Never = "never",
        /// Those that lead to directories.
        Directory = "directory",
        /// Those that lead to regular files.
        Regular = "regular",
        /// All that lead to something.
        All = "all",
    }
}

words! {
    /// For which files an open for writing that the branch refuses is tried with write permission.
    NfsOpenHack {
        /// None.
        Off = "off",
        /// Those below a directory named `.git`.
        Git = "git",
        /// All.
        All = "all",
    }
}

words! {
    /// What a hard link becomes that no branch can make.
    LinkExdev {
        /// Nothing: EXDEV.
        Passthrough = "passthrough",
        /// A symbolic link relative to the new name's directory.
        RelSymlink = "rel-symlink",
        /// A symbolic link to the file on its branch.
        AbsBaseSymlink = "abs-base-symlink",
        /// A symbolic link to the file in the pool.
        AbsPoolSymlink = "abs-pool-symlink",
    }
}

words! {
    /// What a rename becomes that no branch can make.
    RenameExdev {
        /// Nothing: EXDEV.
        Passthrough = "passthrough",
        /// The file set aside, and a relative symbolic link.
        RelSymlink = "rel-symlink",
        /// The file set aside, and an absolute symbolic link.
        AbsSymlink = "abs-symlink",
    }
}

/// What [`parse_bool`] accepts, as a phrase for error messages and help.
pub const BOOL_ACCEPTED: &str = "true or false (also t, 1, on, yes; f, 0, off, no)";

/// Reads a boolean in any letter case.
pub fn parse_bool(text: &str) -> Result<bool, NotAWord> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" | "on" | "yes" => Ok(true),
        "false" | "f" | "0" | "off" | "no" => Ok(false),
        _ => Err(NotAWord),
    }
}

/// What [`parse_auto_bool`] accepts, as a phrase for error messages and help.
pub const AUTO_BOOL_ACCEPTED: &str = "true, false or auto";

/// Reads a boolean or `auto`, which is `None`.
pub fn parse_auto_bool(text: &str) -> Result<Option<bool>, NotAWord> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    parse_bool(text).map(Some)
}

/// Writes what [`parse_auto_bool`] reads.
pub fn format_auto_bool(value: Option<bool>) -> String {
    value.map_or_else(|| "auto".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_in_any_case() {
        for text in ["true", "T", "1", "On", "YES"] {
            assert_eq!(parse_bool(text), Ok(true), "{text}");
        }
        for text in ["False", "f", "0", "OFF", "no"] {
            assert_eq!(parse_bool(text), Ok(false), "{text}");
        }
        for text in ["", "2", "maybe", "true ", "auto"] {
            assert_eq!(parse_bool(text), Err(NotAWord), "{text}");
        }
        assert_eq!(parse_auto_bool("Auto"), Ok(None));
    }

    #[test]
    fn words_parse_print_and_list() {
        assert_eq!("auto-full".parse(), Ok(CacheFiles::AutoFull));
        assert_eq!("RW".parse(), Ok(PassthroughIo::ReadWrite));
        assert_eq!(StatfsIgnore::ACCEPTED, "one of none, ro, nc");
        assert_eq!(FlushOnClose::OpenedForWrite.to_string(), "opened-for-write");
        assert_eq!("offf".parse::<CacheFiles>(), Err(NotAWord));
    }
}

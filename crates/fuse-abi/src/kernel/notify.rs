//! Notifications: messages the server sends unasked.

use super::wire;

/// `OutHeader::error` of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    /// A polled file is ready.
    Poll = 1,
    /// Cached attributes or data of an inode are stale.
    InvalInode = 2,
    /// A cached name is stale.
    InvalEntry = 3,
    /// Put data into the page cache.
    Store = 4,
    /// Ask for data of the page cache.
    Retrieve = 5,
    /// A name was deleted.
    Delete = 6,
    /// Send unanswered requests again.
    Resend = 7,
    /// Every cached name is stale.
    IncEpoch = 8,
    /// Drop unused inodes.
    Prune = 9,
}

/// `NotifyInvalEntryOut::flags`: let the name expire instead of dropping it.
pub const EXPIRE_ONLY: u32 = 1 << 0;

wire! {
    /// [`NotifyCode::Poll`].
    pub struct NotifyPollWakeupOut {
        /// From `PollIn::kh`.
        pub kh: u64,
    }

    /// [`NotifyCode::InvalInode`].
    pub struct NotifyInvalInodeOut {
        /// The inode.
        pub ino: u64,
        /// Start of the data; negative: attributes only.
        pub off: i64,
        /// Length; 0 or negative: to the end.
        pub len: i64,
    }

    /// [`NotifyCode::InvalEntry`]; the name with NUL follows.
    pub struct NotifyInvalEntryOut {
        /// The directory.
        pub parent: u64,
        /// Length of the name without NUL.
        pub namelen: u32,
        /// [`EXPIRE_ONLY`].
        pub flags: u32,
    }

    /// [`NotifyCode::Delete`]; the name with NUL follows.
    pub struct NotifyDeleteOut {
        /// The directory.
        pub parent: u64,
        /// The inode that had the name.
        pub child: u64,
        /// Length of the name without NUL.
        pub namelen: u32,
        /// Zero.
        pub padding: u32,
    }

    /// [`NotifyCode::Store`]; data follows.
    pub struct NotifyStoreOut {
        /// The inode.
        pub nodeid: u64,
        /// Where.
        pub offset: u64,
        /// How much.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }

    /// [`NotifyCode::Retrieve`].
    pub struct NotifyRetrieveOut {
        /// `unique` of the NOTIFY_REPLY to come.
        pub notify_unique: u64,
        /// The inode.
        pub nodeid: u64,
        /// Where.
        pub offset: u64,
        /// How much.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }

    /// NOTIFY_REPLY; data follows.
    pub struct NotifyRetrieveIn {
        /// Not used.
        pub dummy1: u64,
        /// Where.
        pub offset: u64,
        /// How much.
        pub size: u32,
        /// Not used.
        pub dummy2: u32,
        /// Not used.
        pub dummy3: u64,
        /// Not used.
        pub dummy4: u64,
    }

    /// [`NotifyCode::Prune`]; `count` node ids of 64 bits follow.
    pub struct NotifyPruneOut {
        /// How many.
        pub count: u32,
        /// Zero.
        pub padding: u32,
        /// Zero.
        pub spare: u64,
    }
}

//! A mounted connection as the filesystem sees it: backing files and notifications.

/// A cheap handle to the connection; clones share it.
#[derive(Clone)]
pub struct Connection {}

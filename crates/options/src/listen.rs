//! Where a server listens for those who only ask.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest path that a socket's address has room for, with the 0 at its end.
const PATH_MAX_BYTES: usize = 107;

/// `metrics.listen`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listen {
    /// Nowhere.
    #[default]
    Nowhere,
    /// A Unix socket of this path.
    Unix(PathBuf),
    /// A port of this machine that no other machine reaches.
    Loopback(SocketAddr),
}

/// The text names no place to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadListen;

impl Listen {
    /// What the parser accepts, as a phrase for error messages and help.
    pub const ACCEPTED: &'static str = "an absolute path of at most 107 bytes for a Unix socket, \
        127.0.0.1:PORT or [::1]:PORT, which other machines cannot reach, or nothing";
}

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        if text.is_empty() {
            return Ok(Self::Nowhere);
        }
        if text.starts_with('/') {
            let is_name = !text.ends_with('/') && text.len() <= PATH_MAX_BYTES;
            let is_one = is_name && !text.contains('\0');
            return is_one.then(|| Self::Unix(text.into())).ok_or(BadListen);
        }
        let address: SocketAddr = text.parse().map_err(|_| BadListen)?;
        match address.ip().is_loopback() && address.port() != 0 {
            true => Ok(Self::Loopback(address)),
            false => Err(BadListen),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => Ok(()),
            Self::Unix(path) => path.display().fmt(f),
            Self::Loopback(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_listened_to() {
        for text in [
            "",
            "/run/strandfs/pool.sock",
            "127.0.0.1:9345",
            "127.1.2.3:1",
            "[::1]:9345",
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.to_string(), text);
        }
        let long = format!("/{}", "a".repeat(PATH_MAX_BYTES));
        for text in [
            "0.0.0.0:9345",
            "[::]:9345",
            "192.168.1.2:9345",
            "[::ffff:192.168.1.2]:9345",
            "localhost:9345",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:70000",
            ":9345",
            "9345",
            "run/a.sock",
            "/run/strandfs/",
            "/a\0b",
            &long,
        ] {
            assert_eq!(text.parse::<Listen>(), Err(BadListen), "{text}");
        }
    }
}

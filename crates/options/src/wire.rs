//! Paths on their way to another process: as bytes, since a path need not be text.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serializer};

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn from_bytes(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

/// One path.
pub(crate) mod path {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes(path))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(from).map(from_bytes)
    }
}

/// One that is shared.
pub(crate) mod shared_path {
    use super::*;
    use std::sync::Arc;

    pub(crate) use super::path::serialize;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Path>, D::Error> {
        super::path::deserialize(from).map(Arc::from)
    }
}

/// Any number of them.
pub(crate) mod paths {
    use super::*;

    pub(crate) fn serialize<'a, I, S>(paths: &'a I, to: S) -> Result<S::Ok, S::Error>
    where
        &'a I: IntoIterator<Item = &'a PathBuf>,
        S: Serializer,
    {
        to.collect_seq(paths.into_iter().map(|path| bytes(path)))
    }

    pub(crate) fn deserialize<'de, I, D>(from: D) -> Result<I, D::Error>
    where
        I: FromPaths,
        D: Deserializer<'de>,
    {
        let all: Vec<Vec<u8>> = Vec::deserialize(from)?;
        Ok(I::from_paths(all.into_iter().map(from_bytes)))
    }

    /// What holds a number of paths.
    pub(crate) trait FromPaths {
        fn from_paths(paths: impl Iterator<Item = PathBuf>) -> Self;
    }

    impl FromPaths for Vec<PathBuf> {
        fn from_paths(paths: impl Iterator<Item = PathBuf>) -> Self {
            paths.collect()
        }
    }

    impl FromPaths for Option<PathBuf> {
        fn from_paths(mut paths: impl Iterator<Item = PathBuf>) -> Self {
            paths.next()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BranchMode, BranchSpec, Layers, Origin, Settings, TABLE};

    fn sent<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        serde_json::from_slice(&serde_json::to_vec(value).unwrap()).unwrap()
    }

    #[test]
    fn layers_and_settings_arrive_as_they_were_sent() {
        let odd = from_bytes(b"/mnt/\xff\xfe,=:".to_vec());
        let branch = BranchSpec {
            path: odd.clone(),
            mode: BranchMode::NoCreate,
            min_free_space: Some("4G/5%".parse().unwrap()),
        };
        let mut settings = Settings::default();
        settings.pool.branches = vec![branch];
        let file = Origin::File {
            path: odd.clone().into(),
            line: 7,
        };
        for (name, value) in [
            ("category.create", "mspmfs"),
            ("func.mkdir", "ff"),
            ("minfreespace", "3%"),
            ("fuse-msg-size", "1M"),
            ("func.readdir", "cor:4"),
            ("cache.attr", "1500ms"),
            ("moveonenospc", "false"),
            ("umask", "022"),
            ("context", "system_u:object_r:x_t:s0"),
            ("noatime", "true"),
        ] {
            settings.set_from(&file, name, Some(value)).unwrap();
        }
        let read = sent(&settings);
        assert_eq!(read, settings);
        for option in TABLE {
            let (was, is) = (&settings.origins, &read.origins);
            assert_eq!(is.get(option.name), was.get(option.name), "{}", option.name);
        }
        let layers = Layers {
            file: Some(odd),
            origin: Origin::MountOptions,
            options: vec!["a=\"b,c\"".to_owned()],
            branches: vec!["/a:/b".to_owned()],
            sloppy: true,
            settled: None,
        };
        assert_eq!(sent(&layers), layers);
        assert_eq!(sent(&Layers::default()), Layers::default());
    }
}

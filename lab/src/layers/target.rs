//! What is measured besides memory: a directory, or a filesystem that is made for the run.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::BenchError;
use crate::matrix::recipe::Recipe;
use crate::tool;

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory: a disk, a network mount. One of its own is made in it, and removed.
    Directory(PathBuf),
    /// A filesystem on a loop device over an image.
    Image(Image),
}

/// An image to be made, and removed at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// How the filesystem is made and mounted.
    pub recipe: Recipe,
    /// Bytes of the image.
    pub bytes: u64,
    /// The image; a file in the directory for images for none.
    pub file: Option<PathBuf>,
    /// As it was asked for.
    name: String,
}

impl Target {
    /// Reads `DIRECTORY` or `FILESYSTEM:SIZE[@FILE]`; FILESYSTEM is the name of one of `recipes`, or
    /// a type that has a program `mkfs.TYPE`. What exists as a directory, or has a slash before its
    /// colon, is a directory.
    ///
    /// # Errors
    /// [`BenchError::Usage`]: no such filesystem, no size, an image without a right to make one.
    pub fn parse(words: &OsStr, recipes: &[Recipe]) -> Result<Self, BenchError> {
        let path = Path::new(words);
        let directory = || Ok(Self::Directory(path.to_path_buf()));
        let Some((filesystem, rest)) = words.to_str().and_then(|it| it.split_once(':')) else {
            return directory();
        };
        if path.is_dir() || filesystem.contains('/') || words.as_bytes().first() == Some(&b':') {
            return directory();
        }
        let wrong = |why: String| BenchError::Usage(format!("{}: {why}", path.display()));
        let (size, file) = match rest.split_once('@') {
            Some((size, file)) => (size, Some(PathBuf::from(file))),
            None => (rest, None),
        };
        if file.as_deref().is_some_and(|it| it.file_name().is_none()) {
            return Err(wrong(
                "the image after @ needs the name of a file".to_owned(),
            ));
        }
        let bytes = strandfs_options::parse_size(size).map_err(|error| {
            wrong(format!(
                "an image is asked for as FILESYSTEM:SIZE or FILESYSTEM:SIZE@FILE, a directory of \
                 such a name as ./NAME: {error}"
            ))
        })?;
        let recipe = recipe(filesystem, recipes).map_err(wrong)?;
        if !rustix::process::geteuid().is_root() {
            return Err(wrong(
                "only root can make a filesystem and mount it: use sudo, or name a directory"
                    .to_owned(),
            ));
        }
        Ok(Self::Image(Image {
            recipe,
            bytes,
            file,
            name: path.display().to_string(),
        }))
    }

    /// The name in reports.
    pub fn name(&self) -> String {
        match self {
            Self::Directory(path) => path.display().to_string(),
            Self::Image(image) => image.name.clone(),
        }
    }

    /// Refuses what cannot be a target, before anything is made.
    ///
    /// # Errors
    /// [`BenchError::Usage`]: no directory.
    pub fn check(&self) -> Result<(), BenchError> {
        match self {
            Self::Directory(path) if !path.is_dir() => Err(BenchError::Usage(format!(
                "{} is no directory (nor a filesystem to be made, which is FILESYSTEM:SIZE): name a \
                 directory on the disk that is to be measured",
                path.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// The recipe of this name, or the plain way to make a filesystem of this type.
fn recipe(name: &str, recipes: &[Recipe]) -> Result<Recipe, String> {
    if let Some(known) = recipes.iter().find(|it| it.name == name) {
        return Ok(known.clone());
    }
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    let program = format!("mkfs.{name}");
    if name.chars().all(is_word) && tool::find(&program).is_some() {
        return Ok(Recipe {
            name: name.to_owned(),
            kind: name.to_owned(),
            mkfs: program,
            mount: String::new(),
        });
    }
    let known: Vec<&str> = recipes.iter().map(|it| it.name.as_str()).collect();
    Err(format!(
        "there is no filesystem {name:?}: {program} is not installed, and the others are {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::recipe::presets;

    fn parse(words: &str) -> Result<Target, BenchError> {
        Target::parse(OsStr::new(words), &presets())
    }

    #[test]
    fn paths_are_directories_whatever_they_hold() {
        for words in ["/mnt/a", "a", "./xfs:2G", "/mnt/xfs:2G", ":1G", "../a:b@c"] {
            let found = parse(words).unwrap();
            assert_eq!(found, Target::Directory(PathBuf::from(words)));
        }
        assert!(parse("/no such directory").unwrap().check().is_err());
        assert!(parse("/").unwrap().check().is_ok());
    }

    #[test]
    fn what_is_wrong_with_an_image_is_said() {
        for (words, said) in [
            ("ext4:many", "FILESYSTEM:SIZE"),
            ("ext4:", "FILESYSTEM:SIZE"),
            ("ext4:1G@", "name of a file"),
            ("ext4:1G@..", "name of a file"),
            ("no-such-type:1G", "xfs-rmapbt0"),
            ("no such:1G", "mkfs.no such is not installed"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)), "{error}");
            assert!(error.to_string().contains(said), "{words}: {error}");
        }
    }

    #[test]
    fn an_image_is_made_as_the_matrix_makes_it_or_plainly() {
        if !rustix::process::geteuid().is_root() {
            let error = parse("xfs-rmapbt0:1G").unwrap_err().to_string();
            assert!(error.contains("root"), "{error}");
            return;
        }
        let Target::Image(found) = parse("xfs-rmapbt0:1G@/mnt/a@b").unwrap() else {
            panic!("no image");
        };
        assert_eq!(found.recipe, presets()[0]);
        assert_eq!(
            (found.bytes, found.file),
            (1 << 30, Some("/mnt/a@b".into()))
        );
        if tool::find("mkfs.ext4").is_some() {
            let found = parse("ext4:64M").unwrap();
            assert_eq!(found.name(), "ext4:64M");
            let Target::Image(found) = found else {
                panic!("no image");
            };
            assert_eq!(
                (found.recipe.mkfs.as_str(), found.file),
                ("mkfs.ext4", None)
            );
        }
    }
}

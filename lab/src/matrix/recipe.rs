//! How a filesystem is made and mounted: the presets, and those of a TOML file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::BenchError;
use crate::tool;

/// A filesystem to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name in tables and for `--only`.
    pub name: String,
    /// The type for mount(8).
    #[serde(rename = "type")]
    pub kind: String,
    /// The command that makes it, words separated by blanks; the device is appended.
    pub mkfs: String,
    /// `-o` of mount(8); empty for none.
    #[serde(default)]
    pub mount: String,
}

/// A file of recipes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    filesystem: Vec<Recipe>,
}

/// Options of a well-known comparison of XFS with and without its reverse-mapping tree and ext4
/// tuned for large, or for large and small files. That comparison gives mount options for ext4
/// tuned for large files only; both ext4 recipes have them.
pub fn presets() -> Vec<Recipe> {
    let recipe = |name: &str, kind: &str, mkfs: &str, mount: &str| Recipe {
        name: name.to_owned(),
        kind: kind.to_owned(),
        mkfs: mkfs.to_owned(),
        mount: mount.to_owned(),
    };
    let xfs = "logbufs=8,logbsize=256k,noquota,noatime";
    let ext4 = "noquota,noatime,data=writeback,journal_async_commit,inode_readahead_blks=32768,\
        max_batch_time=10000000";
    vec![
        recipe(
            "xfs-rmapbt0",
            "xfs",
            "mkfs.xfs -f -m rmapbt=0,reflink=0",
            xfs,
        ),
        recipe(
            "xfs-rmapbt1",
            "xfs",
            "mkfs.xfs -f -m rmapbt=1,reflink=0",
            xfs,
        ),
        recipe(
            "ext4-large",
            "ext4",
            "mkfs.ext4 -m 1 -O none,dir_index,extent,^flex_bg,^bigalloc,has_journal,large_file,\
             sparse_super2,^uninit_bg",
            ext4,
        ),
        recipe(
            "ext4-large-small",
            "ext4",
            "mkfs.ext4 -g 256 -G 4 -J size=100 -m 1 -C 2097152 -O none,bigalloc,extent,flex_bg,\
             has_journal,large_file,sparse_super2,^uninit_bg,dir_index,dir_nlink,^sparse_super,\
             ^sparse_super2",
            ext4,
        ),
    ]
}

/// Filesystems that not every machine has, where it has them: as their mkfs makes them.
pub fn present() -> Vec<Recipe> {
    let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let one = |kind: &str, mkfs: &str| Recipe {
        name: format!("{kind}-default"),
        kind: kind.to_owned(),
        mkfs: mkfs.to_owned(),
        mount: "noatime".to_owned(),
    };
    [
        one("btrfs", "mkfs.btrfs -f"),
        one("bcachefs", "mkfs.bcachefs -f"),
    ]
    .into_iter()
    .filter(|it| {
        let program = it.mkfs_words().first().copied().unwrap_or_default();
        let is_known = kernel.split_whitespace().any(|word| word == it.kind);
        is_known && tool::find(program).is_some()
    })
    .collect()
}

/// The presets, what this machine has besides and, after them, those of a file.
///
/// # Errors
/// Those of [`read`].
pub fn all(file: Option<&Path>) -> Result<Vec<Recipe>, BenchError> {
    let mut recipes = presets();
    recipes.extend(present());
    if let Some(file) = file {
        recipes.extend(read(file)?);
    }
    Ok(recipes)
}

/// The recipes of a file: tables `[[filesystem]]` with `name`, `type`, `mkfs` and `mount`.
///
/// # Errors
/// [`BenchError::Io`] when it cannot be read, [`BenchError::Usage`] when it is not such a file.
pub fn read(path: &Path) -> Result<Vec<Recipe>, BenchError> {
    let text = fs::read_to_string(path).map_err(BenchError::io("reading", path))?;
    let wrong = |why: String| BenchError::Usage(format!("{}: {why}", path.display()));
    let file: RecipeFile =
        toml_edit::de::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if file.filesystem.is_empty() {
        return Err(wrong("there is no [[filesystem]] in it".to_owned()));
    }
    for recipe in &file.filesystem {
        recipe.check().map_err(wrong)?;
    }
    Ok(file.filesystem)
}

/// Those of these names, in the order of the recipes; all for none.
///
/// # Errors
/// [`BenchError::Usage`]: a name that is none, or two recipes of one name.
pub fn choose(recipes: Vec<Recipe>, names: &[String]) -> Result<Vec<Recipe>, BenchError> {
    let known: Vec<&str> = recipes.iter().map(|it| it.name.as_str()).collect();
    for (place, name) in known.iter().enumerate() {
        if known.iter().skip(place + 1).any(|other| other == name) {
            return Err(BenchError::Usage(format!(
                "there are two filesystems called {name:?}: give each a name of its own"
            )));
        }
    }
    if let Some(name) = names.iter().find(|it| !known.contains(&it.as_str())) {
        return Err(BenchError::Usage(format!(
            "there is no filesystem {name:?}; there are {}",
            known.join(", ")
        )));
    }
    let mut chosen = recipes;
    chosen.retain(|it| names.is_empty() || names.contains(&it.name));
    Ok(chosen)
}

impl Recipe {
    /// The program and its arguments, without the device.
    pub fn mkfs_words(&self) -> Vec<&str> {
        self.mkfs.split_whitespace().collect()
    }

    /// The version of the program that makes it, by its name.
    pub fn tools(&self) -> BTreeMap<String, String> {
        let program = self.mkfs_words().into_iter().take(1);
        program
            .map(|it| (it.to_owned(), tool::version(it, "-V")))
            .collect()
    }

    fn check(&self) -> Result<(), String> {
        if self.name.trim().is_empty() {
            return Err("a [[filesystem]] has an empty name".to_owned());
        }
        let program = self.mkfs_words().first().copied().unwrap_or_default();
        // Anything else would be run as root on the device, and be no filesystem afterwards.
        if !program.starts_with("mkfs") && program != "mke2fs" {
            return Err(format!(
                "mkfs of {:?} runs {program:?}: it has to be one of the mkfs programs",
                self.name
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Vec<Recipe>, BenchError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn a_file_adds_filesystems() {
        let text = "[[filesystem]]\nname = 'btrfs'\ntype = 'btrfs'\nmkfs = 'mkfs.btrfs -f'\n\
            mount = 'noatime'\n";
        let recipes = file(text).unwrap();
        assert_eq!(recipes[0].mkfs_words(), ["mkfs.btrfs", "-f"]);
        assert_eq!(recipes[0].mount, "noatime");
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        let whole = "[[filesystem]]\nname = 'a'\ntype = 'xfs'\n";
        for (text, said) in [
            (format!("{whole}mkfs = 'mkfs.xfs'\nmuont = 'x'"), "muont"),
            (whole.to_owned(), "mkfs"),
            (format!("{whole}mkfs = 'dd if=x'"), "\"dd\""),
            (String::new(), "filesystem"),
            ("filesystem = []".to_owned(), "no [[filesystem]]"),
        ] {
            let error = file(&text).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)), "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn recipes_are_chosen_by_name() {
        let two = vec!["ext4-large".to_owned(), "xfs-rmapbt1".to_owned()];
        let chosen = choose(presets(), &two).unwrap();
        let names: Vec<&str> = chosen.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["xfs-rmapbt1", "ext4-large"]);
        assert_eq!(choose(presets(), &[]).unwrap(), presets());
        let slip = choose(presets(), &["xfs".to_owned()]).unwrap_err();
        assert!(slip.to_string().contains("xfs-rmapbt0"), "{slip}");
        let twice = presets().into_iter().chain(presets()).collect();
        assert!(choose(twice, &[]).is_err());
    }
}

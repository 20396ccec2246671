//! The layers a pool's settings are made of, and their precedence.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::branch::{self, BranchSpec};
use crate::config::{ConfigErrors, ConfigFile};
use crate::error::{Notice, OptionError};
use crate::mount_options;
use crate::origin::Origin;
use crate::settings::Settings;
use crate::table;

/// What a pool's settings are made of, each overriding the one before: the defaults, a
/// configuration file, files named by the option `config`, the other options, branch arguments.
/// Kept by the server to make them anew when a file has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// A file given in place of branches.
    #[serde(with = "crate::wire::paths")]
    pub file: Option<PathBuf>,
    /// Who wrote `options` and `branches`.
    pub origin: Origin,
    /// `-o` strings.
    pub options: Vec<String>,
    /// Branch lists, in place of those of a file.
    pub branches: Vec<String>,
    /// Leave out unknown options with a notice, as mount(8) asks with `-s`.
    pub sloppy: bool,
    /// What [`Layers::settle`] found out.
    pub settled: Option<Settled>,
}

/// What relative names stood for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    #[serde(with = "crate::wire::paths")]
    files: Vec<PathBuf>,
    /// The branches, unless they come from a file.
    branches: Option<String>,
}

/// Settings made of layers.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// With the origin of every value.
    pub settings: Settings,
    /// What to tell the user.
    pub notices: Vec<Notice>,
    /// Every configuration file that was read.
    pub files: Vec<PathBuf>,
}

/// A layer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// An option or branch.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A configuration file.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}

impl Layers {
    /// Makes the settings, reading the files as they are now.
    ///
    /// # Errors
    /// The first option at fault, or everything at fault in a file.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        self.add_branches(self.load_options()?)
    }

    /// As [`Layers::load`] of a pool that has these branches: one whose directory is away stays as long
    /// as the list names it, by a wildcard too.
    ///
    /// # Errors
    /// As [`Layers::load`].
    pub fn load_knowing(&self, known: &[BranchSpec]) -> Result<Loaded, LoadError> {
        let mut settings = Settings::default();
        settings.pool.branches = known.to_vec();
        let mut loaded = self.add_branches(self.load_options_over(settings)?)?;
        if *loaded.settings.origins.get("branches") == Origin::Default {
            loaded.settings.pool.branches.clear();
        }
        Ok(loaded)
    }

    /// The first half of [`Layers::load`]: files and options. What they say decides which arguments
    /// are branches.
    ///
    /// # Errors
    /// As [`Layers::load`].
    pub fn load_options(&self) -> Result<Loaded, LoadError> {
        self.load_options_over(Settings::default())
    }

    fn load_options_over(&self, settings: Settings) -> Result<Loaded, LoadError> {
        let mut loaded = Loaded {
            settings,
            notices: Vec::new(),
            files: Vec::new(),
        };
        for file in self.config_files()? {
            let file = ConfigFile::read(&file)?;
            let applied = file.apply(&mut loaded.settings)?;
            loaded.settings.pool.config = file.path().to_str().map(str::to_owned);
            loaded.settings.origins.set("config", &self.origin);
            loaded.notices.extend(applied.notices);
            loaded.files.extend(applied.files);
        }
        for options in &self.options {
            self.apply(options, &mut loaded)?;
        }
        Ok(loaded)
    }

    /// The second half: the branches.
    ///
    /// # Errors
    /// As [`Layers::load`].
    pub fn add_branches(&self, mut loaded: Loaded) -> Result<Loaded, LoadError> {
        let settled = self.settled.as_ref();
        if let Some(list) = settled.and_then(|settled| settled.branches.as_ref()) {
            let list = format!("={list}");
            loaded
                .settings
                .set_from(&self.origin, "branches", Some(&list))?;
            return Ok(loaded);
        }
        let patience = loaded.settings.pool.patience();
        branch::reach::ask_lists(self.branches.iter().map(String::as_str), patience);
        let mut lists = self.branches.iter();
        let from_file = matches!(loaded.settings.origins.get("branches"), Origin::File { .. });
        if from_file && let Some(first) = lists.next() {
            let list = format!("={first}");
            loaded
                .settings
                .set_from(&self.origin, "branches", Some(&list))?;
        }
        for list in lists {
            loaded.settings.add_branches_from(&self.origin, list)?;
        }
        Ok(loaded)
    }

    /// The same layers for a process that changes its directory, given what they made in this
    /// one: relative names stand for what they stand for now.
    pub fn settle(mut self, loaded: &Loaded) -> Self {
        let origin = loaded.settings.origins.get("branches");
        let from_file = matches!(origin, Origin::File { .. });
        let files = self.config_files().unwrap_or_default();
        self.settled = Some(Settled {
            files: files
                .into_iter()
                .map(|file| std::path::absolute(&file).unwrap_or(file))
                .collect(),
            branches: (!from_file).then(|| branch::format_list(&loaded.settings.pool.branches)),
        });
        self
    }

    fn config_files(&self) -> Result<Vec<PathBuf>, OptionError> {
        if let Some(settled) = &self.settled {
            return Ok(settled.files.clone());
        }
        let mut files: Vec<PathBuf> = self.file.iter().cloned().collect();
        for options in &self.options {
            for item in mount_options::split(options)? {
                if let Some(value) = item.value.filter(|value| !value.is_empty())
                    && item.name == "config"
                {
                    files.push(PathBuf::from(value.into_owned()));
                }
            }
        }
        Ok(files)
    }

    fn apply(&self, options: &str, loaded: &mut Loaded) -> Result<(), OptionError> {
        for item in mount_options::split(options)? {
            // mount(8) writes a `rw` that nobody asked for; it must not override a file's `ro`.
            let of_mount = self.origin == Origin::MountOptions;
            if of_mount && item.name == "rw" && item.value.is_none() {
                continue;
            }
            if self.sloppy && table::find(item.name).is_none() {
                loaded.notices.push(Notice {
                    option: item.name.to_owned(),
                    text: "unknown, and left out because of -s".to_owned(),
                });
                continue;
            }
            // Where the file was found is known better than from the words that name it.
            if item.name == "config" && item.value.as_ref().is_some_and(|value| !value.is_empty()) {
                continue;
            }
            if self.settled.is_some() && item.name == "branches" {
                continue;
            }
            let value = item.value.as_deref();
            let effect = loaded.settings.set_from(&self.origin, item.name, value)?;
            loaded.notices.extend(effect.notice);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct House {
        dir: tempfile::TempDir,
    }

    impl House {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["a", "b", "c"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            Self { dir }
        }

        fn path(&self, name: &str) -> String {
            let real = fs::canonicalize(self.dir.path()).unwrap();
            real.join(name).to_str().unwrap().to_owned()
        }

        /// Writes a file in which `@` stands for the directory.
        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = PathBuf::from(self.path(name));
            let house = self.path("");
            fs::write(&path, text.replace('@', house.trim_end_matches('/'))).unwrap();
            path
        }
    }

    #[test]
    fn each_layer_overrides_the_one_before() {
        let house = House::new();
        let file = house.file(
            "pool.toml",
            "branches = ['@/a']\nro = true\n[cache]\nattr = 7\nentry = 8\n",
        );
        let mut layers = Layers {
            file: Some(file.clone()),
            origin: Origin::MountOptions,
            options: vec!["rw,cache.attr=9,nofail".to_owned()],
            ..Layers::default()
        };
        let loaded = layers.load().unwrap();
        let settings = &loaded.settings;
        assert_eq!(settings.get("cache.attr").as_deref(), Some("9s"));
        assert_eq!(settings.get("cache.entry").as_deref(), Some("8s"));
        assert_eq!(settings.origins.get("cache.attr"), &Origin::MountOptions);
        assert_eq!(
            settings.origins.get("cache.entry").to_string(),
            format!("{}:5", file.display())
        );
        assert!(
            settings.mount.flags.read_only,
            "the rw of mount(8) is no wish"
        );
        assert_eq!(settings.get("config").as_deref(), file.to_str());
        assert_eq!(loaded.files, [file]);
        // Branches named besides replace those of the file.
        layers.branches = vec![house.path("b"), house.path("c")];
        let settings = layers.load().unwrap().settings;
        assert_eq!(settings.pool.source_name(), "b:c");
        // Written by somebody, `rw` counts.
        layers.origin = Origin::CommandLine;
        assert!(!layers.load().unwrap().settings.mount.flags.read_only);
    }

    #[test]
    fn settled_layers_read_files_anew_and_keep_what_names_meant() {
        let house = House::new();
        let file = house.file("pool.toml", "'cache.attr' = 7\n");
        let options = format!("config={},branches={}", file.display(), house.path("a"));
        let layers = Layers {
            origin: Origin::CommandLine,
            options: vec![options],
            branches: vec![format!("{}/[b]", house.path(""))],
            ..Layers::default()
        };
        let loaded = layers.load().unwrap();
        assert_eq!(loaded.settings.pool.source_name(), "a:b");
        let layers = layers.settle(&loaded);
        house.file("pool.toml", "'cache.attr' = 8\nbranches = ['@/c']\n");
        let again = layers.load().unwrap().settings;
        assert_eq!(again.get("cache.attr").as_deref(), Some("8s"));
        assert_eq!(again.pool.branches, loaded.settings.pool.branches);
        // Branches of a file are read anew like everything in it.
        let layers = Layers {
            file: Some(file),
            ..Layers::default()
        };
        let loaded = layers.load().unwrap();
        let layers = layers.settle(&loaded);
        house.file("pool.toml", "branches = ['@/b', '@/c']\n");
        assert_eq!(layers.load().unwrap().settings.pool.source_name(), "b:c");
    }

    #[test]
    fn options_override_the_file_they_name_wherever_they_stand() {
        let house = House::new();
        let file = house.file(
            "pool.conf",
            "cache.attr=7\ncache.entry = 8 \n# no\n\nbranches=@/a",
        );
        let layers = Layers {
            origin: Origin::CommandLine,
            options: vec![format!("cache.attr=9,config={}", file.display())],
            ..Layers::default()
        };
        let settings = layers.load().unwrap().settings;
        assert_eq!(settings.get("cache.attr").as_deref(), Some("9s"));
        assert_eq!(settings.get("cache.entry").as_deref(), Some("8s"));
        assert_eq!(settings.pool.branches.len(), 1);
    }

    #[test]
    fn files_name_files_up_to_a_depth() {
        let house = House::new();
        house.file("inner.toml", "'cache.attr' = 7\n'cache.entry' = 7\n");
        let outer = house.file("outer.conf", "cache.attr=8\nconfig=inner.toml\n");
        let load = |file: &PathBuf| {
            let file = Some(file.clone());
            Layers {
                file,
                ..Layers::default()
            }
            .load()
        };
        let loaded = load(&outer).unwrap();
        assert_eq!(loaded.settings.get("cache.attr").as_deref(), Some("8s"));
        assert_eq!(loaded.settings.get("cache.entry").as_deref(), Some("7s"));
        assert_eq!(loaded.files.len(), 2);
        let circle = house.file("circle.conf", "config=circle.conf\n");
        let error = load(&circle).unwrap_err().to_string();
        assert!(
            error.contains("circle.conf:1: ") && error.contains("5 deep"),
            "{error}"
        );
    }

    #[test]
    fn sloppy_mounts_leave_out_what_is_unknown() {
        let mut layers = Layers {
            options: vec!["nonsense=1,cache.attr=2".to_owned()],
            ..Layers::default()
        };
        assert!(matches!(layers.load(), Err(LoadError::Option(_))));
        layers.sloppy = true;
        let loaded = layers.load().unwrap();
        assert_eq!(loaded.notices.len(), 1);
        assert_eq!(loaded.settings.get("cache.attr").as_deref(), Some("2s"));
    }
}

//! Translating what mergerfs users have, lines of fstab and configuration files, with a report of
//! everything that was changed and everything that will be different.

use crate::branch::{self, BranchError};
use crate::config::{ConfigFile, OptionLine};
use crate::error::OptionError;
use crate::fstab::FstabLine;
use crate::mount_options;
use crate::origin::Origin;
use crate::settings::Settings;
use crate::table::{self, Kind, OptionDef, Status, TABLE};

/// Types of a line that mounts a pool.
const KINDS: [&str; 4] = ["mergerfs", "fuse.mergerfs", "strandfs", "fuse.strandfs"];

/// Options in our words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Name and value in the text form of the table; words for mount(8) among them.
    pub options: Vec<(String, Option<String>)>,
    /// What was done and what differs, a sentence each.
    pub remarks: Vec<String>,
    /// Something was left out that had, or may have been meant to have, an effect.
    pub incomplete: bool,
}

/// It cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Not a pool of mergerfs.
    #[error("the type is {0:?}, not mergerfs or fuse.mergerfs: only those can be translated")]
    OtherType(String),
    /// The branches.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// The options cannot be told apart.
    #[error(transparent)]
    Option(#[from] OptionError),
}

/// Whether a line mounts a pool, of mergerfs or of ours.
pub fn is_pool(line: &FstabLine) -> bool {
    KINDS.contains(&line.kind.as_str())
}

/// What becomes of options that are not given and whose defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defaults {
    /// They have our defaults; a remark tells of each.
    Ours,
    /// They are set to what they are in mergerfs.
    OfMergerfs,
}

/// Translates a line.
///
/// # Errors
/// The type is another, or the branches or options have no meaning in mergerfs either.
pub fn line(line: &FstabLine, defaults: Defaults) -> Result<(FstabLine, Imported), ImportError> {
    if !is_pool(line) {
        return Err(ImportError::OtherType(line.kind.clone()));
    }
    branch::parse(&line.source)?;
    let mut translator = Translator::default();
    for item in mount_options::split(&line.options)? {
        translator.option(item.name, item.value.as_deref());
    }
    let imported = translator.finish(defaults);
    let translated = FstabLine {
        kind: "strandfs".to_owned(),
        options: imported.mount_options(),
        ..line.clone()
    };
    Ok((translated, imported))
}

/// Translates a configuration file.
pub fn config(file: &ConfigFile, defaults: Defaults) -> Imported {
    let mut translator = Translator::default();
    for (name, value, _) in file.options() {
        translator.option(name, value);
    }
    translator.finish(defaults)
}

impl Imported {
    /// As a `-o` string; `defaults` where nothing is left.
    pub fn mount_options(&self) -> String {
        let items: Vec<String> = self
            .options
            .iter()
            .map(|(name, value)| match value {
                None => name.clone(),
                Some(value) if name == "branches" => format!("{name}={value}"),
                Some(value) => format!("{name}={}", mount_options::escape(value)),
            })
            .collect();
        match items.is_empty() {
            true => "defaults".to_owned(),
            false => items.join(","),
        }
    }

    /// What belongs into a TOML file, and what only fstab can hold.
    pub fn split(&self) -> (Vec<OptionLine>, Vec<String>) {
        let (mut lines, mut words) = (Vec::new(), Vec::new());
        for (name, value) in &self.options {
            let Some((option, opposite)) = table::find(name) else {
                continue;
            };
            if option.status == Status::MountWord {
                words.push(match value {
                    Some(value) => format!("{name}={value}"),
                    None => name.clone(),
                });
                continue;
            }
            let bare = option.value.bare.unwrap_or_default();
            let value = value.clone().unwrap_or_else(|| bare.to_owned());
            let name = if opposite { name.as_str() } else { option.name };
            // The last one holds, by whatever name, and a TOML file names each once. There a category
            // counts before all its functions: those given before it have no effect.
            let ended = crate::config::functions_of(option.name);
            lines.retain(|line: &OptionLine| {
                let other = table::find(&line.name).map(|(option, _)| option.name);
                other != Some(option.name) && !ended.contains(&line.name)
            });
            lines.push(OptionLine {
                name: name.to_owned(),
                value,
                comment: String::new(),
            });
        }
        (lines, words)
    }
}

#[derive(Default)]
struct Translator {
    imported: Imported,
    /// Holds what was taken, to judge values and to know what is left at its default.
    settings: Settings,
}

impl Translator {
    fn option(&mut self, name: &str, value: Option<&str>) {
        let Some((option, opposite)) = table::find(name) else {
            let near = table::nearest(name).map_or_else(String::new, |near| {
                format!("; if {near} was meant, add that")
            });
            return self.leave_out(format!(
                "{name}: left out, there is no such option; mergerfs ignores it in silence{near}"
            ));
        };
        match option.status {
            Status::MountWord => self.take(name, value),
            Status::Obsolete { why } => self.remark(format!("{name}: left out, {why}")),
            Status::Renamed { to } => {
                self.remark(format!("{name}: now called {to}"));
                self.active(option, to, name, value);
            }
            Status::Active if opposite => self.active(option, name, name, value),
            Status::Active => self.active(option, option.name, name, value),
        }
    }

    fn active(&mut self, option: &OptionDef, new: &str, written: &str, value: Option<&str>) {
        let judged = match option.value.kind {
            // The directories may be on another machine.
            Kind::Branches => branch::parse(value.unwrap_or_default())
                .map(drop)
                .map_err(OptionError::from),
            _ => self
                .settings
                .set_from(&Origin::MountOptions, written, value)
                .map(drop),
        };
        if option.name == "umask" {
            self.remark("umask: read as octal, where mergerfs reads it as decimal".to_owned());
        }
        match judged {
            Ok(()) => self.take(new, value),
            Err(error) => self.leave_out(format!("{written}: left out, {error}")),
        }
    }

    fn finish(mut self, defaults: Defaults) -> Imported {
        let differing = TABLE.iter().filter(|option| {
            !option.mergerfs_default.is_empty()
                && *self.settings.origins.get(option.name) == Origin::Default
        });
        let differing: Vec<&OptionDef> = differing.collect();
        for option in differing {
            let (name, ours, theirs) = (option.name, option.default, option.mergerfs_default);
            if defaults == Defaults::OfMergerfs {
                self.take(name, Some(theirs));
                self.remark(format!("{name}={theirs}: added, the default of mergerfs"));
            } else {
                self.remark(format!(
                    "{name}: is {ours} where it is not given, {theirs} in mergerfs; add \
                     {name}={theirs} to keep that"
                ));
            }
        }
        self.remark(
            "branches: each must exist when the pool is mounted; mergerfs goes on without"
                .to_owned(),
        );
        self.imported
    }

    fn take(&mut self, name: &str, value: Option<&str>) {
        let option = (name.to_owned(), value.map(str::to_owned));
        self.imported.options.push(option);
    }

    fn remark(&mut self, text: String) {
        self.imported.remarks.push(text);
    }

    fn leave_out(&mut self, text: String) {
        self.imported.incomplete = true;
        self.remark(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn translate(text: &str, defaults: Defaults) -> (String, Imported) {
        let parsed = FstabLine::parse(text).unwrap().unwrap();
        let (translated, imported) = line(&parsed, defaults).unwrap();
        (translated.to_string(), imported)
    }

    #[test]
    fn a_line_keeps_what_has_an_effect() {
        let (text, imported) = translate(
            "/a:/b=RO:/c=NC,10G /pool fuse.mergerfs cache.files=auto-full,use_ino,attr_timeout=5,\
             posix_acl=true,allow_other,nofail,x-systemd.requires=/a,fsname=a\\,b 0 0",
            Defaults::Ours,
        );
        assert_eq!(
            text,
            "/a:/b=RO:/c=NC,10G  /pool  strandfs  cache.files=auto-full,cache.attr=5,\
             posix-acl=true,allow-other,nofail,x-systemd.requires=/a,fsname=a\\134,b  0 0"
        );
        assert!(!imported.incomplete);
        let said = imported.remarks.join("\n");
        for part in [
            "use_ino: left out",
            "attr_timeout: now called cache.attr",
            "add minfreespace=4G",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("posix-acl"), "{said}");
        // Translating it again changes nothing.
        let (again, _) = translate(&text, Defaults::Ours);
        assert_eq!(again, text);
    }

    #[test]
    fn what_cannot_be_kept_is_said() {
        let (text, imported) = translate(
            "/a /pool mergerfs categroy.create=mfs,cache.attr=1Kfoo,zzz 0 0",
            Defaults::Ours,
        );
        assert_eq!(text, "/a  /pool  strandfs  defaults  0 0");
        assert!(imported.incomplete);
        assert!(imported.remarks[0].contains("if category.create was meant"));
        assert!(imported.remarks[1].contains("does not take \"1Kfoo\""));
        let other = FstabLine::parse("/dev/sda1 / ext4 ro 0 1")
            .unwrap()
            .unwrap();
        assert!(matches!(
            line(&other, Defaults::Ours),
            Err(ImportError::OtherType(_))
        ));
        let branches = FstabLine::parse("/a=RX,1G /p mergerfs ro 0 0")
            .unwrap()
            .unwrap();
        assert!(matches!(
            line(&branches, Defaults::Ours),
            Err(ImportError::Branch(_))
        ));
    }

    #[test]
    fn exact_keeps_the_defaults_of_mergerfs() {
        let (text, _) = translate(
            "/a /pool mergerfs minfreespace=1G 0 0",
            Defaults::OfMergerfs,
        );
        assert!(
            text.contains("minfreespace=1G,") && text.contains("passthrough.io=off"),
            "{text}"
        );
    }

    #[test]
    fn a_file_becomes_toml() {
        let text = "branches=/a:/b=RO\ncache.attr=5\nuse_ino\nrw\nnofail\n";
        let file = ConfigFile::parse(Path::new("/etc/mergerfs/media.conf"), text).unwrap();
        let (lines, words) = config(&file, Defaults::Ours).split();
        let toml = crate::config::to_toml(&lines);
        assert_eq!(
            toml,
            "branches = [\n    \"/a\",\n    { path = \"/b\", mode = \"RO\" },\n]\n\
             \"cache.attr\" = \"5\"\nrw = true\n"
        );
        assert_eq!(words, ["nofail"]);
    }

    #[test]
    fn a_toml_file_means_what_the_order_of_the_line_meant() {
        let toml = |options: &str| {
            let text = format!("/a /p mergerfs {options} 0 0");
            let parsed = FstabLine::parse(&text).unwrap().unwrap();
            let (_, imported) = line(&parsed, Defaults::Ours).unwrap();
            crate::config::to_toml(&imported.split().0)
        };
        let after = toml("func.mkdir=epff,func.open=all,category.create=mfs,func.mknod=lus");
        assert_eq!(
            after,
            "\"func.open\" = \"all\"\n\"category.create\" = \"mfs\"\n\"func.mknod\" = \"lus\"\n"
        );
        assert_eq!(toml("ro,rw"), "rw = true\n");
        assert_eq!(toml("rw,suid,nosuid,ro"), "nosuid = true\nro = true\n");
    }

    #[test]
    fn defaults_said_to_differ_do() {
        for option in TABLE
            .iter()
            .filter(|option| !option.mergerfs_default.is_empty())
        {
            let mut settings = Settings::default();
            settings
                .set(option.name, Some(option.mergerfs_default))
                .unwrap();
            assert_ne!(settings, Settings::default(), "{}", option.name);
        }
    }
}

//! strandfs.toml(5).

use strandfs_options::config::DIRECTORY;
use strandfs_options::table::{Group, Status, TABLE};

use super::{capitalised, sentence};
use crate::docs::man::Page;

const EXAMPLE: &str = "\
# Two disks for new files, an archive that gets none.
branches = [
    \"/mnt/disk1\",
    \"/mnt/disk2\",
    { path = \"/mnt/archive\", mode = \"NC\" },
]
minfreespace = \"20G\"

[category]
create = \"mfs\"

[cache]
files = \"auto-full\"";

/// The page.
pub fn page() -> String {
    let mut page = Page::new("strandfs.toml", "5", "configuration file of a pool");
    page.section("Synopsis");
    page.paragraph(&format!("`{DIRECTORY}/`NAME`.toml`"));
    page.section("Description").paragraph(
        "A pool can be described in a file instead of on a command line or in fstab. `strandfs \
        mount NAME MOUNTPOINT`, and a line of fstab whose first field is NAME, read the file of \
        that name; a path that ends in `.toml` names any other file. Options given beside the \
        file override those in it. `strandfs config check FILE` says everything that is wrong \
        with a file, `strandfs config show --origin` where each value comes from, and `strandfs \
        import-fstab --toml` makes such a file out of what mergerfs was given.",
    );
    page.paragraph(
        "The keys are the names of the mount options in strandfs(1). Where a name has a dot, it \
        is written as a dotted key or as a key in a table. Each option is named once; options of \
        a category are applied before those of its functions, whatever their order in the file. \
        A key that is no option is refused with the line and the nearest name.",
    );
    page.section("Branches").paragraph(
        "`branches` is a list. An item is a path, or a table with the keys `path`, `mode` (`RW`, \
        `RO` or `NC`), `minfreespace` and `glob`. Paths are absolute and taken as they are, \
        colons, commas and wildcards among them, unless `glob = true`.",
    );
    page.section("Values").paragraph(
        "A text in quotes is taken as after `-o`. Beyond that, true and false are written without \
        quotes, and so are whole numbers:",
    );
    page.item(
        "BOOL",
        "`true` or `false`; `\"auto\"` where the option takes it.",
    );
    page.item("NUMBER", "A whole number.");
    page.item(
        "SIZE",
        "A whole number of bytes (of pages for fuse-msg-size), or a text such as `\"4G\"`.",
    );
    page.item(
        "TIME",
        "A whole number of seconds, or a text such as `\"500ms\"`.",
    );
    page.item("NAMES", "A list of texts.");
    page.item("WORD, POLICY, TEXT", "A text.");
    page.section("Keys");
    for group in Group::LISTED {
        page.subsection(group.title());
        let members = TABLE
            .iter()
            .filter(|option| option.group == group && option.status == Status::Active);
        for option in members {
            let term = format!("{} = {}", option.name, option.value.kind.placeholder());
            page.item(&term, &sentence(&capitalised(option.help)));
        }
    }
    page.section("Example").literal(EXAMPLE);
    page.section("Files of mergerfs").paragraph(
        "A file whose name does not end in `.toml`, given with `-o config=FILE`, is in the form \
        of mergerfs: a line NAME=VALUE for each option, and `#` before comments.",
    );
    page.section("See also");
    page.paragraph("`strandfs`(1), `mount.strandfs`(8)");
    page.render()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strandfs_options::ConfigFile;

    #[test]
    fn the_example_is_good() {
        let file = ConfigFile::parse(Path::new("/etc/strandfs/x.toml"), super::EXAMPLE).unwrap();
        let names: Vec<&str> = file.options().map(|(name, _, _)| name).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}

//! One configuration: everything about a run that its seed decides.

use super::support::Kind;

/// What a run is about, where not everything is left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Anything.
    Any,
    /// Branches that fill up and drain while files move.
    Full,
    /// The server is killed.
    Killed,
    /// Branches, their modes and options change.
    Changing,
    /// Programs change files on the branches.
    Behind,
    /// Disks that look alike are exchanged.
    Swapped,
    /// Directories, listings and names.
    Names,
    /// Directories that all workers use.
    Shared,
    /// Full inode tables and quotas, on further filesystems.
    Limits,
    /// The pool starts while programs change files on the branches.
    Starting,
}

#[derive(Clone)]
pub struct Config {
    pub seed: u64,
    pub theme: Theme,
    pub branches: Vec<Kind>,
    pub options: Vec<String>,
    pub workers: usize,
    /// Branches fill up: what needs room may be refused, and leaves the old state or a part of the
    /// new one.
    pub short: bool,
    pub kills: bool,
    /// Branches become read-only or take nothing new, at any time.
    pub modes: bool,
    /// Options set at any time.
    pub flips: Vec<&'static str>,
    /// Branches leave and return while nobody works.
    pub leaves: bool,
    /// A further branch joins.
    pub joins: bool,
    /// Another disk, formatted in the same second, comes where a branch was.
    pub swaps: bool,
    pub drops_caches: bool,
    /// Workers change their files on the branches.
    pub behind: bool,
    /// The pool starts again and again meanwhile.
    pub starts: bool,
    /// Renames and links across branches may be refused.
    pub crosses: bool,
    pub writeback: bool,
    /// Files have hundreds of extended attributes.
    pub many_attrs: bool,
}

impl Theme {
    /// By its name, as `{:?}` writes it.
    pub fn of(name: &str) -> Theme {
        let all = [
            Theme::Any,
            Theme::Full,
            Theme::Killed,
            Theme::Changing,
            Theme::Behind,
            Theme::Swapped,
            Theme::Names,
            Theme::Shared,
            Theme::Limits,
            Theme::Starting,
        ];
        let named = all.into_iter().find(|theme| format!("{theme:?}") == name);
        named.unwrap_or_else(|| panic!("no theme {name}"))
    }
}

impl Config {
    pub fn draw(seed: u64, theme: Theme) -> Config {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(64) + theme as u64);
        let mut chance = |percent: u32| random.u32(0..100) < percent;
        let is = |other| theme == other;
        let swaps = is(Theme::Swapped);
        let writeback = is(Theme::Any) && chance(12);
        let kills = is(Theme::Killed) || (is(Theme::Any) && !writeback && chance(35));
        let starts = is(Theme::Starting);
        let behind = is(Theme::Behind) || starts || (is(Theme::Any) && chance(20));
        let short =
            !writeback && !swaps && !behind && (is(Theme::Full) || is(Theme::Limits) || chance(50));
        let modes = !writeback && !swaps && (is(Theme::Changing) || (is(Theme::Any) && chance(25)));
        let leaves = is(Theme::Changing) || (is(Theme::Any) && chance(20));
        let joins = !kills && !swaps && (is(Theme::Changing) || chance(20)) && !starts;
        let flipping = is(Theme::Changing) || is(Theme::Names) || chance(45);
        let drops_caches = chance(30);
        let crosses = !is(Theme::Killed) && chance(15);
        let mut config = Config {
            seed,
            theme,
            branches: Vec::new(),
            options: Vec::new(),
            workers: 2 + usize::from(chance(60)) + usize::from(chance(40)),
            short,
            kills,
            modes,
            flips: Vec::new(),
            leaves,
            joins,
            swaps,
            drops_caches,
            behind,
            starts,
            crosses,
            writeback,
            many_attrs: seed % 4 == 1,
        };
        config.draw_branches(&mut random);
        config.draw_options(&mut random, flipping);
        config
    }

    fn draw_branches(&mut self, random: &mut fastrand::Rng) {
        let small: [&'static str; 4] = ["10m", "16m", "24m", "40m"];
        let count = if self.swaps {
            2
        } else {
            1 + random.usize(0..4)
                + usize::from(self.short || matches!(self.theme, Theme::Names | Theme::Shared))
        };
        // Full disks are worse than a full tmpfs: much is half done when they refuse.
        let often = if self.theme == Theme::Full { 70 } else { 25 };
        let disks = self.swaps || random.u8(0..100) < often;
        for at in 0..count.min(4) {
            let size = if self.short && at > 0 {
                small[random.usize(0..small.len())]
            } else {
                "96m"
            };
            let kind = match random.u8(0..10) {
                0..2 if self.theme == Theme::Limits => Kind::Tmpfs("16m,nr_inodes=150"),
                2..5 if self.theme == Theme::Limits => Kind::FewInodes("24m", "200"),
                5..7 if self.theme == Theme::Limits => Kind::Loop("btrfs", "130m"),
                7 | 8 if self.theme == Theme::Limits => Kind::Quota("130m", "8m"),
                _ if self.swaps => Kind::Loop("ext4", "64m"),
                0 | 1 if disks => Kind::Loop("xfs", "320m"),
                2..=7 if disks => Kind::Loop("ext4", size),
                _ => Kind::Tmpfs(size),
            };
            self.branches.push(kind);
        }
    }

    fn draw_options(&mut self, random: &mut fastrand::Rng, flipping: bool) {
        let mut pick = |of: &[&'static str]| of[random.usize(0..of.len())].to_owned();
        let create = if self.crosses {
            pick(&["epmfs", "eprand", "epff"])
        } else {
            pick(&["mfs", "ff", "rand", "pfrd", "lfs"])
        };
        let mut options = vec![format!("category.create={create}")];
        if self.writeback {
            options.push("cache.writeback=true,passthrough.io=off,cache.files=full".to_owned());
        } else {
            let io = pick(&["auto", "auto", "auto", "off", "off"]);
            options.push(format!("passthrough.io={io}"));
            let room = pick(&["0", "1M", "4M", "1T"]);
            options.push(format!("passthrough.headroom={room}"));
            let files = pick(&["off", "full", "auto-full", "partial"]);
            options.push(format!("cache.files={files}"));
        }
        options.push(format!("transport={}", pick(&["dev", "uring"])));
        // Files that move and files that are changed on their branch at the same moment are nothing
        // that can be judged.
        let moves = if self.behind {
            "false".to_owned()
        } else {
            pick(&["pfrd", "mfs", "ff", "false"])
        };
        options.push(format!("moveonenospc={moves}"));
        if !self.behind && self.short {
            let ahead = pick(&["0", "4M", "90%", "50%"]);
            options.push(format!("relocate.ahead={ahead},relocate.rate=0"));
        }
        if !self.behind && self.theme != Theme::Shared {
            options.push(pick(&[
                "coherence=auto",
                "coherence=auto",
                "coherence=timeout",
            ]));
        }
        options.push(format!(
            "cache.negative-entry={}",
            pick(&["auto", "60", "0"])
        ));
        options.push(format!(
            "cache.readdir={}",
            pick(&["auto", "true", "false"])
        ));
        options.push(format!("func.readdir={}", pick(&["seq", "seq", "cosr:2"])));
        let numbers = pick(&["devino-hash", "devino-hash", "hybrid-hash"]);
        options.push(format!("inodecalc={numbers}"));
        if self.swaps || self.leaves {
            options.push("branch-check-interval=1".to_owned());
        }
        self.options = options;
        if flipping {
            self.flips = vec![
                "category.create=mfs",
                "category.create=rand",
                "cache.readdir=true",
                "cache.readdir=false",
                "cache.statfs=1",
                "cache.statfs=0",
                "statfs=full",
                "statfs=base",
            ];
            if !self.writeback {
                self.flips.extend([
                    "passthrough.io=off",
                    "passthrough.io=auto",
                    "passthrough.headroom=0",
                    "passthrough.headroom=1T",
                    "cache.files=full",
                    "cache.files=off",
                    "parallel-direct-writes=false",
                    "parallel-direct-writes=true",
                ]);
            }
            if !self.behind {
                self.flips
                    .extend(["moveonenospc=mfs", "moveonenospc=false"]);
            }
            if self.short && !self.behind {
                self.flips
                    .extend(["relocate.ahead=90%", "relocate.ahead=0"]);
            }
            if self.crosses {
                self.flips.retain(|flip| !flip.starts_with("category"));
            }
        }
    }

    /// Whether a branch is of this filesystem type.
    pub fn has(&self, fstype: &str) -> bool {
        let is = |kind: &Kind| match kind {
            Kind::Loop(of, _) => *of == fstype,
            Kind::FewInodes(..) | Kind::ForRoot(..) => fstype == "ext4",
            Kind::Quota(..) => fstype == "btrfs",
            Kind::Dir | Kind::Tmpfs(_) => false,
        };
        self.branches.iter().any(is)
    }

    /// Whether a quota may refuse what needs room.
    pub fn has_quota(&self) -> bool {
        let is = |kind: &Kind| matches!(kind, Kind::Quota(..));
        self.branches.iter().any(is)
    }

    /// As a line for people.
    pub fn describe(&self) -> String {
        let branches = self.branches.iter().map(|kind| match kind {
            Kind::Dir => "directory".to_owned(),
            Kind::Tmpfs(size) => format!("tmpfs {size}"),
            Kind::Loop(fstype, size) => format!("{fstype} {size}"),
            Kind::FewInodes(size, count) => format!("ext4 {size} with {count} inodes"),
            Kind::ForRoot(size, percent) => format!("ext4 {size}, {percent} % kept for root"),
            Kind::Quota(size, limit) => format!("btrfs {size} with a quota of {limit}"),
        });
        let branches: Vec<String> = branches.collect();
        let traits = [
            (self.short, "branches fill up"),
            (self.kills, "server killed"),
            (self.modes, "branch modes change"),
            (!self.flips.is_empty(), "options set"),
            (self.leaves, "branches leave and return"),
            (self.joins, "a branch joins"),
            (self.swaps, "disks swapped"),
            (self.drops_caches, "caches dropped"),
            (self.behind, "changes on branches"),
            (self.starts, "the pool starts amid them"),
            (self.many_attrs, "hundreds of attributes"),
        ];
        let traits = traits.iter().filter(|(is, _)| *is).map(|(_, what)| *what);
        format!(
            "seed {} theme {:?}: {} workers on {}; {}; -o {}",
            self.seed,
            self.theme,
            self.workers,
            branches.join(", "),
            traits.collect::<Vec<_>>().join(", "),
            self.options.join(",")
        )
    }
}

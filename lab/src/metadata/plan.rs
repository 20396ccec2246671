//! What a run measures, decided before it starts.

use std::path::PathBuf;

use super::row::{MOST_CALLERS, rows};
use super::user::User;
use super::workload::Workload;
use crate::error::BenchError;
use crate::regime::Regime;
use crate::subject::{Subject, SubjectKind, find_program};

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct MetadataPlan {
    /// Columns; the first is the bare filesystem.
    pub subjects: Vec<Subject>,
    /// Rows.
    pub workloads: Vec<Workload>,
    /// How many callers do each; every number makes rows of its own.
    pub callers: Vec<usize>,
    /// Who the callers are; `None` for whoever runs the benchmark.
    pub user: Option<User>,
    /// Names of subjects that are measured in what fio reads, and in nothing else.
    pub reads_only: Vec<String>,
    /// Entries per workload, of all callers together.
    pub files: usize,
    /// Repetitions.
    pub repetitions: usize,
    /// What else the machine does.
    pub regime: Regime,
    /// Where the scratch directory goes; branches are tmpfs of their own for root.
    pub directory: PathBuf,
    /// Of the order in which subjects are measured.
    pub seed: u64,
}

/// The column of `without_passthrough`.
const WITHOUT_PASSTHROUGH: &str = "no passthrough";

/// The choices from which a plan is made.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// This program.
    pub program: PathBuf,
    /// Further strandfs columns: a name and its options.
    pub variants: Vec<(String, String)>,
    /// Whether to add a column whose reads and writes go through the server.
    pub without_passthrough: bool,
    /// Further mergerfs builds: a name and a program.
    pub builds: Vec<(String, PathBuf)>,
    /// Whether to look for peers on the path.
    pub peers: bool,
    /// Branch counts; each makes its own columns.
    pub branches: Vec<usize>,
}

impl Choices {
    /// The columns of these choices, the bare filesystem first.
    pub fn subjects(&self) -> Vec<Subject> {
        let mut subjects = vec![Subject {
            name: "native".to_owned(),
            kind: SubjectKind::Native,
            branches: 1,
        }];
        for &branches in &self.branches {
            for (title, kind) in self.kinds() {
                subjects.push(Subject {
                    name: named(&title, branches),
                    kind,
                    branches,
                });
            }
        }
        subjects
    }

    /// The columns that are measured in what fio reads, and in nothing else.
    pub fn reads_only(&self) -> Vec<String> {
        let branches = self.branches.iter().filter(|_| self.without_passthrough);
        branches.map(|&it| named(WITHOUT_PASSTHROUGH, it)).collect()
    }

    fn kinds(&self) -> Vec<(String, SubjectKind)> {
        let strandfs = |options: &str| SubjectKind::Strandfs {
            program: self.program.clone(),
            options: options.to_owned(),
        };
        let mut kinds = vec![("strandfs".to_owned(), strandfs(""))];
        if self.without_passthrough {
            let server = strandfs("passthrough.io=off");
            kinds.push((WITHOUT_PASSTHROUGH.to_owned(), server));
        }
        for (name, options) in &self.variants {
            kinds.push((name.clone(), strandfs(options)));
        }
        let mut builds = self.builds.clone();
        if self.peers {
            builds.extend(find_program("mergerfs").map(|found| ("mergerfs".to_owned(), found)));
        }
        for (name, program) in builds {
            let mergerfs = |options: &str| SubjectKind::Mergerfs {
                program: program.clone(),
                options: options.to_owned(),
            };
            kinds.push((name.clone(), mergerfs("")));
            // What a user who knows that nothing else touches the branches may set.
            let long = "cache.attr=86400,cache.entry=86400,cache.negative_entry=86400,\
                cache.readdir=true,cache.symlinks=true,cache.files=auto-full";
            kinds.push((format!("{name} long"), mergerfs(long)));
        }
        if !self.peers {
            return kinds;
        }
        if let Some(program) = find_program("unionfs").or_else(|| find_program("unionfs-fuse")) {
            kinds.push((
                "unionfs-fuse".to_owned(),
                SubjectKind::UnionfsFuse { program },
            ));
        }
        if let Some(program) = find_program("fuse-overlayfs") {
            kinds.push((
                "fuse-overlayfs".to_owned(),
                SubjectKind::FuseOverlayfs { program },
            ));
        }
        if rustix::process::geteuid().is_root() {
            kinds.push(("overlayfs".to_owned(), SubjectKind::Overlayfs));
        }
        kinds
    }
}

/// A subject's name over so many branches.
fn named(title: &str, branches: usize) -> String {
    match branches {
        1 => title.to_owned(),
        many => format!("{title}, {many} branches"),
    }
}

/// Of a pool; each is a mount of its own.
const MOST_BRANCHES: usize = 1000;

impl MetadataPlan {
    /// Leaves out what cannot be measured here; the sentences say what and why.
    ///
    /// # Errors
    /// Nothing is left, or a number makes no sense.
    pub fn settle(&mut self) -> Result<Vec<String>, BenchError> {
        if self.files == 0 || self.repetitions == 0 {
            return Err(BenchError::Usage(
                "--files and --reps must be at least 1".to_owned(),
            ));
        }
        let fits = |callers: &usize| (1..=MOST_CALLERS.min(self.files)).contains(callers);
        if self.callers.is_empty() || !self.callers.iter().all(fits) {
            return Err(BenchError::Usage(format!(
                "--callers takes numbers from 1 to {MOST_CALLERS}, and no more than --files"
            )));
        }
        self.callers.sort_unstable();
        self.callers.dedup();
        let counts = || self.subjects.iter().map(|it| it.branches);
        if !counts().all(|count| (1..=MOST_BRANCHES).contains(&count)) {
            return Err(BenchError::Usage(format!(
                "--branches takes numbers from 1 to {MOST_BRANCHES}"
            )));
        }
        for (place, subject) in self.subjects.iter().enumerate() {
            let before = self.subjects.iter().take(place);
            if before.map(|it| &it.name).any(|it| *it == subject.name) {
                return Err(BenchError::Usage(format!(
                    "two subjects are called {}: give a --variant or --peer another name, and each number of \
                     --branches once",
                    subject.name
                )));
            }
        }
        let mut said = Vec::new();
        let wanted = self.workloads.len();
        if !rustix::process::geteuid().is_root() {
            self.workloads.retain(|workload| !workload.is_cold());
            if self.workloads.len() < wanted {
                said.push("the cold rows are left out: only root can empty the caches".to_owned());
            }
        }
        if self.user.is_some() {
            let lets_in = |subject: &Subject| {
                !matches!(
                    subject.kind,
                    SubjectKind::UnionfsFuse { .. } | SubjectKind::FuseOverlayfs { .. }
                )
            };
            let shut = self.subjects.iter().filter(|it| !lets_in(it));
            said.extend(shut.map(|it| {
                let name = &it.name;
                format!("{name} is left out: as it is mounted here it lets in nobody but root")
            }));
            self.subjects.retain(lets_in);
        }
        let wanted = self.workloads.len();
        if find_program("git").is_none() {
            self.workloads.retain(|workload| !workload.needs_git());
            if self.workloads.len() < wanted {
                said.push("the git rows are left out: git is not installed".to_owned());
            }
        }
        let wanted = self.workloads.len();
        if find_program("fio").is_none() {
            self.workloads.retain(|workload| workload.depth().is_none());
            if self.workloads.len() < wanted {
                said.push("the rows of fio are left out: fio is not installed".to_owned());
            }
        }
        if self
            .workloads
            .iter()
            .all(|workload| workload.depth().is_none())
        {
            self.subjects
                .retain(|subject| !self.reads_only.contains(&subject.name));
        }
        if rows(&self.workloads, &self.callers).is_empty() {
            let none = "none of these workloads can be measured here".to_owned();
            let why = std::iter::once(none).chain(said).collect::<Vec<_>>();
            return Err(BenchError::Usage(why.join("; ")));
        }
        Ok(said)
    }
}

/// The workloads of these names; all for none.
///
/// # Errors
/// [`BenchError::Usage`] for a name that is none.
pub fn workloads(names: &[String]) -> Result<Vec<Workload>, BenchError> {
    if names.is_empty() {
        return Ok(Workload::ALL.to_vec());
    }
    let find = |name: &String| {
        let known = Workload::ALL.into_iter().find(|it| it.name() == name);
        known.ok_or_else(|| {
            let names: Vec<&str> = Workload::ALL.iter().map(|it| it.name()).collect();
            BenchError::Usage(format!(
                "there is no workload {name:?}; there are {}",
                names.join(", ")
            ))
        })
    };
    let mut found = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

//! A row: a workload, and how many callers do it at the same time.

use super::workload::Workload;

/// Callers of a row at most; each is a thread.
pub const MOST_CALLERS: usize = 256;

/// One row of the table. Rows of one caller come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// Threads that share the work, each in a directory of its own.
    pub callers: usize,
    /// What each does.
    pub workload: Workload,
}

impl Row {
    /// Whether it can be measured: a program that is started sees to its own callers.
    pub fn is_possible(self) -> bool {
        self.callers == 1 || !self.workload.is_a_program()
    }

    /// The name in tables and results.
    pub fn name(self) -> String {
        match self.callers {
            1 => self.workload.name().to_owned(),
            many => format!("{}, {many} callers", self.workload.name()),
        }
    }
}

/// Files of each of so many callers.
pub fn share(files: usize, callers: usize) -> usize {
    files / callers.max(1)
}

/// What all of them work on together: the same number for each.
pub fn shared_work(files: usize, callers: usize) -> usize {
    share(files, callers) * callers
}

/// Every workload for every number of callers, where that is possible.
pub fn rows(workloads: &[Workload], callers: &[usize]) -> Vec<Row> {
    let row = |callers| move |&workload| Row { callers, workload };
    let mut rows: Vec<Row> = (callers.iter().copied())
        .flat_map(|callers| workloads.iter().map(row(callers)))
        .filter(|row| row.is_possible())
        .collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_and_ordered_by_callers() {
        use Workload::{Create, GitStatusCold, RmRf};
        let rows = rows(&[Create, RmRf, GitStatusCold], &[8, 1, 8]);
        let names: Vec<String> = rows.into_iter().map(Row::name).collect();
        let expected = [
            "create",
            "git-status-cold",
            "rm-rf",
            "create, 8 callers",
            "rm-rf, 8 callers",
        ];
        assert_eq!(names, expected);
        assert_eq!(shared_work(3001, 8), 3000);
        assert_eq!(shared_work(3001, 1), 3001);
    }
}

//! After the death of the server: what had been acknowledged is there, and what was on its way is done
//! or not done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::control::{WITHOUT_SERVER, WORKING, Word};
use super::tree::{Id, Names, Node, What};
use super::worker::{Flight, Step, Trouble, Worker, wrong};

impl Worker {
    // ---- after the death of the server ----

    pub fn recover(&mut self) -> Step {
        self.say("the server is gone");
        self.kept.clear();
        self.root_fd = None;
        let deadline = Instant::now() + Duration::from_secs(180);
        self.shared_died();
        self.control.set(Word::State(self.number), WITHOUT_SERVER);
        while self.control.get(Word::Generation) == self.generation {
            if self.control.get(Word::Abort) != 0 {
                std::process::exit(0);
            }
            if Instant::now() > deadline {
                return wrong("the server was gone, and no other came");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.open_root();
        self.control.set(Word::State(self.number), WORKING);
        match self.settle().and_then(|()| self.shared_settle()) {
            // Killed again meanwhile.
            Err(Trouble::Gone) => self.recover(),
            other => other,
        }
    }

    /// Each thing on its way has happened, or has not: finds out which.
    pub fn settle(&mut self) -> Step {
        let flight = self.flight.clone();
        let mut candidates = vec![self.names.clone()];
        candidates.extend(flight.names.clone());
        let mut complaints = Vec::new();
        let found = self.walk()?;
        for names in candidates {
            match self.fits(&names, &found) {
                Ok(nodes) => {
                    self.nodes.extend(nodes);
                    self.names = names;
                    self.flight = Flight::default();
                    let named: Vec<Id> = self.names.values().copied().collect();
                    self.nodes.retain(|id, _| named.contains(id));
                    return Ok(());
                }
                Err(Trouble::Gone) => return Err(Trouble::Gone),
                Err(Trouble::Wrong(what)) => complaints.push(what),
            }
        }
        wrong(format!(
            "after the server's death neither the state before nor the one after:\n{}\nlast steps:\n{}",
            complaints.join("\n--- or ---\n"),
            self.tail()
        ))
    }

    pub fn tail(&self) -> String {
        let mut lines: Vec<(u64, &String)> = Vec::new();
        for line in self.history.values().flatten() {
            let number = line.split(' ').next().unwrap().parse().unwrap();
            lines.push((number, line));
        }
        lines.sort();
        let from = lines.len().saturating_sub(8);
        let lines: Vec<&str> = lines[from..]
            .iter()
            .map(|(_, line)| line.as_str())
            .collect();
        lines.join("\n")
    }

    /// Compares the tree found with these names: the nodes as they are now.
    pub fn fits(
        &mut self,
        names: &Names,
        found: &BTreeMap<PathBuf, What>,
    ) -> Step<Vec<(Id, Node)>> {
        for path in found.keys() {
            if !names.contains_key(path) {
                return wrong(format!(
                    "{} is there\n{}",
                    path.display(),
                    self.on_branches(path)
                ));
            }
        }
        let mut settled: BTreeMap<Id, Node> = BTreeMap::new();
        for (path, id) in names {
            if !found.contains_key(path) {
                let places = self.on_branches(path);
                let history = self.history.get(id).cloned().unwrap_or_default();
                return wrong(format!(
                    "{} is missing\n{places}{history:#?}",
                    path.display()
                ));
            }
            let post = self.flight.nodes.get(id);
            let pre = self.nodes.get(id).or(post).unwrap().clone();
            let post = post.cloned().unwrap_or_else(|| pre.clone());
            let links = names.values().filter(|named| *named == id).count() as u64;
            let was = self.nodes.contains_key(id);
            let node = self.between(path, *id, &pre, &post, links, was)?;
            settled.insert(*id, node);
        }
        Ok(settled.into_iter().collect())
    }
}

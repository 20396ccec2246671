//! What is left on the branches when all is over.

use std::fs;
use std::path::PathBuf;

use super::control::Word;
use super::run::{Outcome, Run};

impl Run {
    pub fn check_counter(&self) -> Outcome {
        let bytes =
            fs::read(self.pool.path("shared/counter")).map_err(|error| error.to_string())?;
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| "the counter is no number")?;
        let value = u64::from_le_bytes(bytes);
        let least = self.control.get(Word::Counted);
        let most = least + self.control.get(Word::CountedPerhaps);
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(format!(
            "the counter ends at {value}, counted were {least} to {most}"
        ))
    }

    /// Nothing is left over, and no file is on two branches.
    pub fn check_branches(&self) -> Outcome {
        let mut holders: std::collections::BTreeMap<PathBuf, Vec<PathBuf>> =
            std::collections::BTreeMap::new();
        for branch in self.branches() {
            let mut dirs = vec![branch.clone()];
            while let Some(dir) = dirs.pop() {
                for entry in fs::read_dir(&dir).unwrap().flatten() {
                    let path = entry.path();
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if name == "lost+found" || name.starts_with("ballast-") {
                        continue;
                    }
                    if name.starts_with(".strandfs") {
                        return Err(format!("left over: {}", path.display()));
                    }
                    if entry.file_type().unwrap().is_dir() {
                        dirs.push(path);
                    } else {
                        let relative = path.strip_prefix(&branch).unwrap().to_path_buf();
                        holders.entry(relative).or_default().push(path);
                    }
                }
            }
        }
        match holders.values().find(|places| places.len() > 1) {
            None => Ok(()),
            Some(places) => {
                let described = places.iter().map(|place| {
                    let content = fs::read(place).unwrap_or_default();
                    let stat = fs::symlink_metadata(place);
                    format!("{}: {} bytes, {stat:?}", place.display(), content.len())
                });
                let described: Vec<String> = described.collect();
                Err(format!(
                    "a file is on two branches:\n{}",
                    described.join("\n")
                ))
            }
        }
    }
}

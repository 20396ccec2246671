//! What is remembered of a directory on a watched branch, so that a branch is not asked again for
//! names it does not have, nor for attributes that have not changed.
//!
//! Every change of names is reported, those of our own making too, and is in the queue of reports
//! before the call that makes it returns. Who has emptied the queue (`Coherence::settled`) may
//! therefore trust what is here as if the branch had just been asked.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rustix::fs::Statx;

use crate::base::branch::Latency;
use crate::base::hash::{mix, stable_hash};
use crate::base::rights::{LastSeen, Rights};
use crate::base::sys::{btime_ns, mono_coarse_ms};
use crate::state::identity::NumberHash;

/// Names learnt in all; then all are forgotten and it begins anew. At most 32 bytes each.
const NAMES_MAX: usize = 1 << 22;
/// Directories before forgotten ones are first swept out.
const SWEEP_MIN: usize = 4096;
/// A directory is read after this many names were asked for in vain, and again after twice as
/// many if it was too large. One in memory at once: tmpfs does not remember which names there are
/// not, so that to ask for one takes as long as to read a few.
const FIRST_TRY_MISSES: u32 = 4;
const FIRST_TRY_MISSES_IN_MEMORY: u32 = 1;
/// Names read for each one asked for in vain: reading must not cost more than it may save.
const NAMES_PER_MISS: usize = 64;
/// Attributes are asked for again after this long.
const ATTRIBUTES_KEPT_MS: u64 = 1000;

/// A directory by filesystem and number.
type Key = (u32, u32, u64);

/// The hash of a name; never 0.
fn hash(name: &OsStr) -> u64 {
    mix(stable_hash(name.as_bytes())).max(1)
}

/// All names of a directory by their hashes. Grows never: who fills it up drops it.
struct NameSet {
    slots: Box<[AtomicU64]>,
    used: AtomicUsize,
    /// What was known when it was made, see [`DirCaches::forget_all`].
    era: u64,
}

impl NameSet {
    fn with_room_for(names: usize, era: u64) -> Self {
        let slots = (names * 2).next_power_of_two().max(16);
        NameSet {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            used: AtomicUsize::new(0),
            era,
        }
    }

    fn probe(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        let start = hash as usize & (self.slots.len() - 1);
        let (before, from) = self.slots.split_at(start);
        from.iter().chain(before)
    }

    fn holds(&self, hash: u64) -> bool {
        for slot in self.probe(hash) {
            match slot.load(Ordering::Acquire) {
                0 => return false,
                found if found == hash => return true,
                _ => {}
            }
        }
        true
    }

    /// False if there is no room. One thread at a time.
    fn insert(&self, hash: u64) -> bool {
        if self.used.load(Ordering::Relaxed) * 4 >= self.slots.len() * 3 {
            return false;
        }
        for slot in self.probe(hash) {
            match slot.load(Ordering::Relaxed) {
                0 => {
                    slot.store(hash, Ordering::Release);
                    self.used.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                found if found == hash => return true,
                _ => {}
            }
        }
        false
    }
}

/// Attributes, under which version and era they were read, and when.
struct Attributes {
    version: u64,
    era: u64,
    at_ms: u64,
    stat: Statx,
}

/// What is remembered of one directory.
#[derive(Default)]
pub struct DirCache {
    /// Birth time of the directory, which its number alone does not tell from an earlier one; 0
    /// for one that is not followed.
    born_ns: i64,
    /// Counts the changes reported.
    version: AtomicU64,
    misses: AtomicU32,
    next_try: AtomicU32,
    /// Behind a lock, because making and dropping it costs less than what readers without one need.
    names: RwLock<Option<NameSet>>,
    attributes: Mutex<Option<Box<Attributes>>>,
    /// Whom it let do what when that was last seen.
    rights: LastSeen,
    /// Held by whoever puts names in.
    writing: Mutex<()>,
    /// Somebody reads it through the descriptor that is kept.
    being_read: AtomicBool,
}

impl DirCache {
    /// Whether `name` is known not to be there.
    pub(crate) fn lacks(&self, name: &OsStr, era: u64) -> bool {
        let names = self.names.read();
        // A longer one must be refused by the branch, with its own error.
        name.len() <= 255
            && names
                .as_ref()
                .is_some_and(|names| names.era == era && !names.holds(hash(name)))
    }

    /// Notes a change; `added` appeared, unless there is no new name.
    pub(crate) fn changed(&self, added: Option<&OsStr>) {
        self.version.fetch_add(1, Ordering::AcqRel);
        let Some(name) = added else { return };
        let _writing = self.writing.lock();
        let full = match &*self.names.read() {
            Some(names) => !names.insert(hash(name)),
            None => false,
        };
        if full {
            // Read again at once when it is next asked in vain: it grows.
            *self.names.write() = None;
        }
    }

    /// Whether all names may be remembered here, and are not yet.
    pub(crate) fn may_learn(&self, era: u64) -> bool {
        let known = |names: &NameSet| names.era == era;
        self.born_ns != 0
            && self.next_try.load(Ordering::Relaxed) != u32::MAX
            && !self.names.read().as_ref().is_some_and(known)
    }

    /// Counts a name asked for in vain, on a medium that takes `latency` to answer. Says how many
    /// names may be read now to remember them, if it is time to.
    pub(crate) fn missed(&self, latency: Latency) -> Option<usize> {
        if self.born_ns == 0 {
            return None;
        }
        let misses = self
            .misses
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let first = match latency {
            Latency::Memory => FIRST_TRY_MISSES_IN_MEMORY,
            _ => FIRST_TRY_MISSES,
        };
        let next = self.next_try.load(Ordering::Relaxed).max(first);
        if misses < next {
            return None;
        }
        self.next_try
            .store(next.saturating_mul(2), Ordering::Relaxed);
        Some(NAMES_PER_MISS.saturating_mul(misses as usize))
    }

    /// Takes the turn to read the directory through the descriptor that is kept of it, if nobody
    /// has it.
    pub(crate) fn begin_reading(&self) -> bool {
        !self.being_read.swap(true, Ordering::Acquire)
    }

    /// Gives the turn back.
    pub(crate) fn end_reading(&self) {
        self.being_read.store(false, Ordering::Release);
    }

    /// Not to be tried again.
    pub(crate) fn give_up(&self) {
        self.next_try.store(u32::MAX, Ordering::Relaxed);
    }

    /// The state that what is read from now on belongs to.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Remembers all names, read while the directory was in state `version`: unless it changed
    /// since.
    pub(crate) fn learn_names(
        &self,
        dir_caches: &DirCaches,
        names: &[u64],
        version: u64,
        era: u64,
    ) {
        // Room to grow: a directory that is looked into is often being filled.
        let set = NameSet::with_room_for(names.len() * 2, era);
        if !names.iter().all(|name| set.insert(*name)) {
            return;
        }
        let _writing = self.writing.lock();
        if self.version() == version {
            *self.names.write() = Some(set);
            self.misses.store(0, Ordering::Relaxed);
            self.next_try.store(0, Ordering::Relaxed);
            dir_caches.note_names(names.len());
        }
    }

    /// The attributes, if nothing changed since they were learnt, a short while ago: some changes
    /// of access times are not reported.
    pub(crate) fn attributes(&self, era: u64) -> Option<Statx> {
        let known = self.attributes.lock();
        let known = known.as_ref()?;
        let fresh = mono_coarse_ms().saturating_sub(known.at_ms) < ATTRIBUTES_KEPT_MS;
        (fresh && known.version == self.version() && known.era == era).then_some(known.stat)
    }

    /// Notes whom the directory lets do what, as it was just seen.
    pub(crate) fn note_rights(&self, stat: &Statx) {
        self.rights.note(Rights::of(stat));
    }

    /// Whom it let do what when that was last seen.
    pub(crate) fn rights(&self) -> Option<Rights> {
        self.rights.get()
    }

    /// Remembers attributes read while the directory was in state `version`.
    pub(crate) fn learn_attributes(&self, stat: &Statx, version: u64, era: u64) {
        if self.born_ns == 0 {
            return;
        }
        let learnt = Attributes {
            version,
            era,
            at_ms: mono_coarse_ms(),
            stat: *stat,
        };
        let mut known = self.attributes.lock();
        match &mut *known {
            Some(known) => **known = learnt,
            None => *known = Some(Box::new(learnt)),
        }
    }
}

/// The hash of a listed name, for [`DirCache::learn_names`].
pub(crate) fn listed(name: &OsStr) -> u64 {
    hash(name)
}

/// The memories of all directories that are open.
#[derive(Default)]
pub(crate) struct DirCaches {
    /// Two nodes, or two branches, may show one directory: they share what is known of it.
    table: Mutex<Table>,
    era: AtomicU64,
    names: AtomicUsize,
}

#[derive(Default)]
struct Table {
    known: HashMap<Key, Weak<DirCache>, NumberHash>,
    sweep_at: usize,
}

impl DirCaches {
    /// The memory of a directory that is opened, with these attributes. Without a birth time it
    /// stays empty.
    pub fn of(&self, stat: &Statx) -> Arc<DirCache> {
        let key = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        self.of_key(key, btime_ns(stat))
    }

    fn of_key(&self, key: Key, born_ns: i64) -> Arc<DirCache> {
        if born_ns == 0 {
            return Arc::default();
        }
        let mut table = self.table.lock();
        let known = table.known.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.born_ns == born_ns) {
            return known;
        }
        let made = Arc::new(DirCache {
            born_ns,
            ..DirCache::default()
        });
        table.known.insert(key, Arc::downgrade(&made));
        if table.known.len() > table.sweep_at.max(SWEEP_MIN) {
            table.known.retain(|_, memory| memory.strong_count() > 0);
            table.sweep_at = table.known.len() * 2;
        }
        made
    }

    /// The memory of a directory, if it is open.
    pub fn find(&self, key: (u32, u32, u64)) -> Option<Arc<DirCache>> {
        self.table.lock().known.get(&key)?.upgrade()
    }

    /// What is remembered now belongs to this era; of any other it counts no more.
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Nothing remembered counts any more: reports were lost, or others are watched than before.
    pub fn forget_all(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Of how many directories all names are known.
    pub fn complete(&self) -> usize {
        let era = self.era();
        let known = |memory: &Arc<DirCache>| {
            memory
                .names
                .read()
                .as_ref()
                .is_some_and(|names| names.era == era)
        };
        let table = self.table.lock();
        table
            .known
            .values()
            .filter_map(Weak::upgrade)
            .filter(known)
            .count()
    }

    fn note_names(&self, added: usize) {
        if self.names.fetch_add(added, Ordering::Relaxed) + added > NAMES_MAX {
            self.names.store(0, Ordering::Relaxed);
            for memory in self.table.lock().known.values().filter_map(Weak::upgrade) {
                *memory.names.write() = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    fn learnt(names: &[&str]) -> (DirCaches, Arc<DirCache>) {
        let dir_caches = DirCaches::default();
        let memory = dir_caches.of_key((0, 1, 2), 7);
        let hashes: Vec<u64> = names.iter().map(|text| listed(name(text))).collect();
        memory.learn_names(&dir_caches, &hashes, memory.version(), dir_caches.era());
        (dir_caches, memory)
    }

    #[test]
    fn only_what_was_not_listed_is_known_to_lack() {
        let (dir_caches, memory) = learnt(&["a", "b"]);
        let lacks = |text| memory.lacks(name(text), dir_caches.era());
        assert!(!lacks("a") && !lacks("b") && lacks("c"));
        let too_long = "x".repeat(256);
        assert!(!lacks(&too_long), "the branch must refuse it");
        memory.changed(Some(name("c")));
        assert!(!lacks("c") && lacks("d"));
        dir_caches.forget_all();
        assert!(!lacks("d"));
    }

    #[test]
    fn a_directory_that_changed_while_it_was_read_is_not_remembered() {
        let dir_caches = DirCaches::default();
        let memory = dir_caches.of_key((0, 1, 2), 7);
        let version = memory.version();
        memory.changed(Some(name("new")));
        memory.learn_names(&dir_caches, &[], version, dir_caches.era());
        assert!(!memory.lacks(name("new"), dir_caches.era()));
        assert!(!memory.lacks(name("other"), dir_caches.era()));
    }

    #[test]
    fn one_that_outgrows_its_room_is_forgotten_not_cut() {
        let (dir_caches, memory) = learnt(&["a"]);
        for number in 0..1000 {
            memory.changed(Some(name(&number.to_string())));
        }
        for number in 0..1000 {
            assert!(!memory.lacks(name(&number.to_string()), dir_caches.era()));
        }
    }

    #[test]
    fn a_directory_is_read_in_proportion_to_what_was_asked_in_vain() {
        let allowed = |latency| -> Vec<usize> {
            let memory = DirCaches::default().of_key((0, 1, 2), 7);
            (0..20).filter_map(|_| memory.missed(latency)).collect()
        };
        let names = |misses: &[usize]| -> Vec<usize> {
            misses
                .iter()
                .map(|misses| misses * NAMES_PER_MISS)
                .collect()
        };
        assert_eq!(allowed(Latency::SolidState), names(&[4, 8, 16]));
        assert_eq!(allowed(Latency::Memory), names(&[1, 2, 4, 8, 16]));
    }

    #[test]
    fn one_at_a_time_reads_through_the_descriptor_that_is_kept() {
        let memory = DirCache::default();
        assert!(memory.begin_reading());
        assert!(!memory.begin_reading());
        memory.end_reading();
        assert!(memory.begin_reading());
    }

    #[test]
    fn whoever_opens_a_directory_again_shares_what_is_known_of_it() {
        let dir_caches = DirCaches::default();
        let first = dir_caches.of_key((0, 1, 2), 7);
        assert!(Arc::ptr_eq(&first, &dir_caches.of_key((0, 1, 2), 7)));
        assert!(!Arc::ptr_eq(&first, &dir_caches.of_key((0, 1, 3), 7)));
        let successor = dir_caches.of_key((0, 1, 2), 8);
        assert!(
            !Arc::ptr_eq(&first, &successor),
            "another of the same number"
        );
        drop(successor);
        assert!(dir_caches.find((0, 1, 2)).is_none());
    }
}

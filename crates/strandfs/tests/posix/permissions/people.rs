//! Those who try: threads with other users' ids, groups and capabilities. (Credentials belong to a
//! thread; the C library's functions would change them for the whole process.)

use rustix::thread::{CapabilitySet, CapabilitySets};

use rustix::process::{Gid, Uid};

/// Who owns what is tried on.
pub const OWNER: u32 = 6001;
/// The group that it belongs to.
pub const GROUP: u32 = 6002;
/// Somebody named by access lists, and a group named by them.
pub const NAMED_USER: u32 = 6003;
pub const NAMED_GROUP: u32 = 6004;
/// Nobody in particular.
const STRANGER: u32 = 6005;

/// What decides about files.
const FILE_CAPABILITIES: [(&str, CapabilitySet); 10] = [
    ("CHOWN", CapabilitySet::CHOWN),
    ("DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
    ("DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
    ("FOWNER", CapabilitySet::FOWNER),
    ("FSETID", CapabilitySet::FSETID),
    ("LINUX_IMMUTABLE", CapabilitySet::LINUX_IMMUTABLE),
    ("MKNOD", CapabilitySet::MKNOD),
    ("SETFCAP", CapabilitySet::SETFCAP),
    ("SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ("SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
];

/// One set of credentials.
pub struct Person {
    pub name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    capabilities: CapabilitySet,
}

/// Owner, members of the group in either way, those that access lists name, a stranger, a stranger
/// with each capability alone, and root without each.
pub fn everybody() -> Vec<Person> {
    let person = |name: &str, uid, gid, groups: &[u32]| Person {
        name: name.to_owned(),
        uid,
        gid,
        groups: groups.to_vec(),
        capabilities: CapabilitySet::empty(),
    };
    let mut all = vec![
        person("owner", OWNER, GROUP, &[]),
        person("owner in another group", OWNER, STRANGER, &[]),
        person("group member", STRANGER, GROUP, &[]),
        person(
            "supplementary member",
            STRANGER,
            STRANGER,
            &[7000, GROUP, 7001],
        ),
        person("named user", NAMED_USER, STRANGER, &[]),
        person(
            "member of the named group",
            STRANGER,
            STRANGER,
            &[NAMED_GROUP],
        ),
        person("stranger", STRANGER, STRANGER, &[]),
    ];
    let had = rustix::thread::capabilities(None).unwrap().permitted;
    let whole = Person {
        capabilities: had,
        ..person("root", 0, 0, &[])
    };
    all.push(whole);
    for (name, capability) in FILE_CAPABILITIES {
        if !had.contains(capability) {
            continue;
        }
        all.push(Person {
            capabilities: capability,
            ..person(&format!("stranger with {name}"), STRANGER, STRANGER, &[])
        });
        all.push(Person {
            capabilities: had.difference(capability),
            ..person(&format!("root with all but {name}"), 0, 0, &[])
        });
    }
    all
}

/// Those among whom permissions to use a file or directory decide.
pub fn askers() -> Vec<Person> {
    let deciding = [
        "DAC_OVERRIDE",
        "DAC_READ_SEARCH",
        "FOWNER",
        "FSETID",
        "MKNOD",
    ];
    let mut all = everybody();
    all.retain(|person| match person.name.rsplit_once(' ') {
        Some((start, capability)) if start.contains(" with") => deciding.contains(&capability),
        _ => true,
    });
    all
}

impl Person {
    /// Runs `attempt` on a thread with these credentials.
    pub fn act<T: Send>(&self, attempt: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.become_it();
                attempt()
            });
            thread.join().expect("the attempts end")
        })
    }

    fn become_it(&self) {
        use rustix::thread::{
            set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
            set_thread_res_uid,
        };
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups).unwrap();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_keep_capabilities(true).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        let sets = CapabilitySets {
            effective: self.capabilities,
            permitted: self.capabilities,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
    }
}

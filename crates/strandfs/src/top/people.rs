//! Users by name, as `/etc/passwd` has them.

use std::collections::HashMap;

/// The users of this machine.
#[derive(Clone, Debug, Default)]
pub struct People(HashMap<u32, String>);

impl People {
    /// As they are now; users that only a directory service knows are shown by number.
    pub fn read() -> People {
        People::parse(&strandfs_fuse::read_lossy("/etc/passwd").unwrap_or_default())
    }

    fn parse(passwd: &str) -> People {
        let line = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        let mut names = HashMap::new();
        for (uid, name) in passwd.lines().filter_map(line) {
            // The first counts, as for getpwuid(3).
            names.entry(uid).or_insert(name);
        }
        People(names)
    }

    /// A user's name, or number; `?` for one whom the kernel did not name.
    pub fn name(&self, uid: Option<u32>) -> String {
        match uid {
            None => "?".to_owned(),
            Some(uid) => (self.0.get(&uid))
                .map_or_else(|| uid.to_string(), |name| crate::logging::one_line(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_the_first_name_they_have() {
        let people = People::parse("root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbad\n");
        assert_eq!(people.name(Some(0)), "root");
        assert_eq!(people.name(Some(7)), "7");
        assert_eq!(people.name(None), "?");
    }
}

//! Access lists.

use std::fs;

use super::directories::{prepare_directory, use_directory};
use super::files::use_file;
use super::{Trial, give, set};
use crate::permissions::acl::{ACCESS, Acl, DEFAULT};

/// Files with access lists, and what is made in directories with default ones.
pub fn with_access_lists() -> Vec<Trial> {
    let mut trials = Vec::new();
    for number in 0..64u8 {
        // Own, masked and others' permissions in every relation.
        let rights = [number & 7, (number >> 3) & 7];
        let [some, mask] = rights;
        for acl in [
            Acl([some, some ^ 7, 0, 0, mask, 7]),
            Acl([0, 0, some, some ^ 7, mask, 7]),
            Acl([7, some, 7, some, mask, some ^ 7]),
        ] {
            trials.push(Trial::new(
                format!("file with {:?}", acl.0),
                move |place| {
                    let path = place.join("f");
                    fs::write(&path, "").unwrap();
                    set(&path, "user.had", b"v").unwrap();
                    give(&path, 0o777);
                    set(&path, ACCESS, &acl.bytes()).unwrap();
                },
                |place| use_file(&place.join("f")),
            ));
        }
        let acl = Acl([7, some, mask, some ^ 7, 7, mask]);
        trials.push(Trial::new(
            format!("directory with default {:?}", acl.0),
            move |place| {
                prepare_directory(place, 0o2777);
                set(&place.join("d"), DEFAULT, &acl.bytes()).unwrap();
            },
            use_directory,
        ));
        let acl = Acl([7, some, 7, some ^ 7, mask, 0]);
        trials.push(Trial::new(
            format!("directory with {:?}", acl.0),
            move |place| {
                prepare_directory(place, 0o777);
                set(&place.join("d"), ACCESS, &acl.bytes()).unwrap();
            },
            use_directory,
        ));
    }
    trials
}

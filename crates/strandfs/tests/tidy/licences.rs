//! Every dependency's licence is one that `deny.toml` allows, and none comes from outside the
//! registry. Works offline: it reads what the lock file has already fixed.

use std::path::PathBuf;
use std::process::Command;

fn repo_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The strings of `allow = [...]` in the `[licenses]` table. A full TOML parser would be one more
/// dependency for a list of strings.
fn allow_list(deny_toml: &str) -> Vec<String> {
    let table = deny_toml
        .split("[licenses]")
        .nth(1)
        .expect("a [licenses] table");
    let list = table.split("allow = [").nth(1).expect("an allow list");
    let list = list.split(']').next().unwrap();
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether an SPDX expression can be met with allowed licences only. `AND` binds tighter than
/// `OR`; the old `/` means `OR`.
fn allowed(expression: &str, allow: &[String]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let ok = any_of(&words, &mut at, allow);
    ok && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allow: &[String]) -> bool {
    let mut ok = all_of(words, at, allow);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        ok |= all_of(words, at, allow);
    }
    ok
}

fn all_of(words: &[&str], at: &mut usize, allow: &[String]) -> bool {
    let mut ok = one(words, at, allow);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        ok &= one(words, at, allow);
    }
    ok
}

fn one(words: &[&str], at: &mut usize, allow: &[String]) -> bool {
    if words.get(*at) == Some(&"(") {
        *at += 1;
        let ok = any_of(words, at, allow);
        *at += 1;
        return ok;
    }
    let Some(word) = words.get(*at) else {
        return false;
    };
    let mut name = (*word).to_owned();
    *at += 1;
    if words.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allow.contains(&name)
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    let allow = [
        "MIT".to_owned(),
        "Apache-2.0 WITH LLVM-exception".to_owned(),
    ];
    for good in [
        "MIT",
        "MIT OR GPL-3.0-only",
        "GPL-3.0-only/MIT",
        "Apache-2.0 WITH LLVM-exception",
        "(GPL-2.0-only OR MIT) AND MIT",
        "GPL-3.0-only AND GPL-2.0-only OR MIT",
    ] {
        assert!(allowed(good, &allow), "{good}");
    }
    for bad in [
        "GPL-3.0-only",
        "Apache-2.0",
        "MIT AND GPL-3.0-only",
        "(MIT OR GPL-2.0-only) AND GPL-3.0-only",
        "",
        "MIT MIT",
    ] {
        assert!(!allowed(bad, &allow), "{bad}");
    }
}

#[test]
fn every_dependency_is_allowed() {
    let deny = std::fs::read_to_string(repo_root().join("deny.toml")).unwrap();
    let allow = allow_list(&deny);
    assert!(
        allow.len() > 2 && allow.iter().any(|licence| licence == "MIT"),
        "{allow:?}"
    );

    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(repo_root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(
        packages.len() > 20,
        "only {} packages listed",
        packages.len()
    );

    let mut wrong = Vec::new();
    for package in packages {
        let name = format!("{} {}", package["name"], package["version"]);
        match package["license"].as_str() {
            Some(licence) if allowed(licence, &allow) => {}
            licence => wrong.push(format!("{name}: licence {licence:?} is not in deny.toml")),
        }
        // Our own crates have no source; everything else comes from the registry, never from git.
        match package["source"].as_str() {
            None => {}
            Some(source) if source.starts_with("registry+") => {}
            Some(source) => wrong.push(format!("{name}: comes from {source}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

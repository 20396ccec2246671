//! Servers and those who ask them in process namespaces of their own, as containers have them that
//! share the network of the machine: the names of control sockets are everybody's then.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Pool, command, eventually};
use crate::{need_root, need_tool};

const SOON: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The commands of a shell that is process 1 of its namespace, with a /proc of its own.
fn apart(script: &str) -> Command {
    let mut shell = Command::new("unshare");
    shell.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation=private",
    ]);
    shell.args(["sh", "-euc", script]);
    shell.env("STRANDFS", command::binary());
    shell
}

#[test]
fn a_pool_is_asked_and_changed_from_another_process_namespace() {
    need_root!();
    need_tool!("unshare");
    let pool = Pool::tmpfs(1).mount();
    let mut asking = apart("\"$STRANDFS\" set \"$1\" cache.attr=7s; \"$STRANDFS\" metrics \"$1\"");
    asking.args(["sh", text(pool.root())]);
    let asked = asking.output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(pool.status().options["cache.attr"], "7s");
}

/// Ends the namespace with all that is in it.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A server with number 2 of its namespace, and a client there that asks it once `go` exists.
fn served(pool: &Pool, go: &Path) -> Shell {
    let script = "\"$STRANDFS\" mount -f -o minfreespace=0 \"$1\" \"$2\" &
        until \"$STRANDFS\" get \"$2\" pid >\"$4\" 2>&1; do sleep 0.1; done
        until [ -e \"$3\" ]; do sleep 0.1; done
        \"$STRANDFS\" metrics \"$2\" >>\"$4\" 2>&1 || echo NOT TOLD >>\"$4\"
        \"$STRANDFS\" umount \"$2\" >>\"$4\" 2>&1
        echo end >>\"$4\"";
    let mut shell = apart(script);
    shell.args(["sh", text(&pool.on(0, "")), text(pool.root()), text(go)]);
    shell.arg(pool.outside("said")).stdin(Stdio::null());
    Shell(shell.spawn().unwrap())
}

fn said(pool: &Pool) -> String {
    fs::read_to_string(pool.outside("said")).unwrap_or_default()
}

/// Whether the server has said its number: the answer has come, and is whole.
fn is_number(said: &str) -> bool {
    said.strip_suffix('\n')
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

#[test]
fn of_two_servers_with_one_number_each_is_asked_in_its_own_namespace() {
    need_root!();
    need_tool!("unshare");
    let pools = [(); 4].map(|()| Pool::tmpfs(1).prepare());
    let go = pools[0].outside("go");
    let shells = pools.each_ref().map(|pool| served(pool, &go));
    for pool in &pools {
        eventually("all to serve", SOON, || is_number(&said(pool)));
    }
    let numbers = pools.each_ref().map(said);
    fs::write(&go, "").unwrap();
    for pool in &pools {
        eventually("an end", SOON, || said(pool).ends_with("end\n"));
    }
    drop(shells);
    for (pool, number) in pools.iter().zip(&numbers) {
        assert_eq!(number, &numbers[0], "the servers have one number");
        let (own, said) = (text(pool.root()), said(pool));
        assert!(
            said.contains(own) && !said.contains("NOT TOLD"),
            "{own}: {said}"
        );
        let others = pools.iter().filter(|other| other.root() != pool.root());
        for other in others {
            assert!(!said.contains(text(other.root())), "{own}: {said}");
        }
    }
}

//! What the server of a volume gives up, does without, and says about it; and servers that hang.

use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::thread::scope;
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, capabilities};

use crate::ground::{Ground, text, ways};
use crate::support::command::{Run, binary};
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{Aligned, open_with, pattern};
use crate::support::threads::Stopped;
use crate::support::threads::threads;
use crate::support::{Kind, run, strandfs};
use crate::{need_root, need_tool};

/// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE` of linux/sched.h: what PR_SET_IO_FLUSHER sets.
const IO_FLUSHER_FLAGS: u64 = 0x0018_0000;

/// `volume serve` by a program that takes something away first.
fn serve_through(program: &str, taken: &[&str], ground: &Ground, args: &[&str]) -> Run {
    let (binary, backing, served) = (binary(), ground.backing(), ground.served());
    let serve = [
        text(&binary),
        "volume",
        "serve",
        text(&backing),
        text(&served),
    ];
    run(program, [taken, &serve, &["--size", "16M"], args].concat())
}

fn warnings(ground: &Ground) -> String {
    ground.status().warnings.concat()
}

/// The value of a field of `/proc/PID/status`, for each thread of the server.
fn of_each_thread(ground: &Ground, field: &str) -> Vec<String> {
    let threads = threads(ground.server().cast_unsigned()).into_iter();
    threads.filter_map(|thread| thread.status(field)).collect()
}

#[test]
fn the_server_keeps_only_the_capabilities_it_works_with() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    let needed = CapabilitySet::DAC_OVERRIDE | CapabilitySet::SYS_ADMIN | CapabilitySet::IPC_LOCK;
    for field in ["CapEff", "CapPrm", "CapInh", "CapBnd"] {
        for value in of_each_thread(&ground, field) {
            let bits = u64::from_str_radix(&value, 16).unwrap();
            assert_eq!(bits & !needed.bits(), 0, "{field}: {value}");
        }
    }
    for value in of_each_thread(&ground, "NoNewPrivs") {
        assert_eq!(value, "1");
    }
    ground.detach(&ground.served()).ok();
}

#[test]
fn without_the_io_flusher_it_says_so_and_with_it_every_thread_is_one() {
    need_root!();
    need_tool!("setpriv");
    let ground = Ground::new(Kind::Tmpfs("64m"));
    let less = ["--bounding-set=-sys_resource"];
    serve_through("setpriv", &less, &ground, &["--io", "sync"]).ok();
    let said = warnings(&ground);
    assert!(said.contains("PR_SET_IO_FLUSHER is refused") && said.contains("CAP_SYS_RESOURCE"));
    let shown = strandfs(["volume", "list"]).ok().stdout;
    assert!(shown.contains("warning: PR_SET_IO_FLUSHER"), "{shown}");
    ground.detach(&ground.served()).ok();

    let own = capabilities(None).unwrap().effective;
    if !own.contains(CapabilitySet::SYS_RESOURCE) {
        crate::support::say("left out: being an IO flusher needs CAP_SYS_RESOURCE");
        return;
    }
    ground.serve(&["--io", "sync"]).ok();
    assert!(!warnings(&ground).contains("PR_SET_IO_FLUSHER"));
    let stats = threads(ground.server().cast_unsigned()).into_iter();
    for stat in stats.filter_map(|thread| thread.stat()) {
        // The flags are the seventh field after the name.
        let flags: u64 = stat[6].parse().unwrap();
        assert_eq!(flags & IO_FLUSHER_FLAGS, IO_FLUSHER_FLAGS, "{stat:?}");
    }
    ground.detach(&ground.served()).ok();
}

#[test]
fn buffers_that_may_not_be_locked_are_used_all_the_same_and_it_says_so() {
    need_root!();
    need_tool!("setpriv", "prlimit");
    for (way, args) in ways().filter(|(way, _)| way.starts_with("uring")) {
        let ground = Ground::new(Kind::Loop("xfs", "400M"));
        // Enough for the rings, less than the buffers of a single queue.
        let less = ["--memlock=4194304", "setpriv", "--bounding-set=-ipc_lock"];
        serve_through("prlimit", &less, &ground, args).ok();
        let said = warnings(&ground);
        for words in [
            "are not registered with the kernel",
            "ulimit -l",
            "memory is not locked",
        ] {
            assert!(said.contains(words), "{way}: {words}: {said}");
        }
        let volume = open_with(ground.file(), libc::O_DIRECT).unwrap();
        let data = pattern(5, 2 << 20);
        volume.write_all_at(Aligned::new(&data).slice(), 0).unwrap();
        let mut back = Aligned::new(&vec![0; 2 << 20]);
        volume.read_exact_at(back.slice(), 0).unwrap();
        assert!(back.slice() == data, "{way}");
        drop(volume);
        ground.detach(&ground.served()).ok();
    }
}

#[test]
fn a_server_that_does_not_answer_holds_up_neither_the_list_nor_others() {
    need_root!();
    let stuck = Ground::new(Kind::Tmpfs("64m"));
    let args = ["--size", "16M", "--io", "sync", "--transport", "dev"];
    stuck.serve(&args).ok();
    let stopped = Stopped::new(stuck.server().cast_unsigned());
    let begin = Instant::now();
    let listed = strandfs(["volume", "list", "--json"]);
    let other = Ground::new(Kind::Tmpfs("64m"));
    let served = other.serve(&["--size", "16M"]);
    let again = stuck.attach(&[]);
    let took = begin.elapsed();
    drop(stopped);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(listed.ok().stdout.contains("does not answer"));
    served.ok();
    assert_eq!(again.code(), 2, "{again:?}");
    assert!(again.stderr.contains("does not answer"), "{again:?}");
    other.detach(&other.served()).ok();
    stuck.detach(&stuck.served()).ok();
}

/// Its server has taken the question, and a thread that waits for the answer cannot be killed: the commands
/// said what they had to say and never ended.
#[test]
fn commands_end_while_the_disk_of_a_volume_hangs() {
    need_root!();
    let stuck = Ground::new(Kind::Tmpfs("64m"));
    let disk = DelayFs::mount(&stuck.mounted(), &stuck.disk());
    let args = ["--size", "16M", "--io", "sync", "--transport", "dev"];
    stuck.serve(&args).ok();
    disk.set(Mood::Stuck);
    let (ended, wait) = channel();
    let disk = &disk;
    let took = scope(|scope| {
        scope.spawn(move || {
            // Even a test that fails has to end.
            let _ = wait.recv_timeout(Duration::from_secs(25));
            disk.set(Mood::Well);
        });
        let begin = Instant::now();
        let listed = strandfs(["volume", "list", "--json"]).ok();
        assert!(listed.stdout.contains("does not answer"), "{listed:?}");
        let other = Ground::new(Kind::Tmpfs("64m"));
        other.serve(&["--size", "16M"]).ok();
        let took = begin.elapsed();
        ended.send(()).ok();
        other.detach(&other.served()).ok();
        took
    });
    assert!(took < Duration::from_secs(20), "{took:?}");
    stuck.detach(&stuck.served()).ok();
}

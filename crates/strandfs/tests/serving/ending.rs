//! Servers that are told to end while somebody uses the pool.

use std::fs::OpenOptions;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::need_root;
use crate::support::Pool;
use crate::support::files::{SharedMap, get, pattern, put};

#[test]
fn a_signal_to_the_server_of_a_pool_in_use_loses_nothing_that_was_written() {
    need_root!();
    for options in [
        "cache.writeback=true,cache.files=full,passthrough.io=off",
        "cache.files=full,passthrough.io=off",
    ] {
        let mut pool = Pool::tmpfs(1).option(options).mount();
        let (written, mapped) = (pool.path("written"), pool.path("mapped"));
        let data = pattern(6, 3 << 20);
        put(&written, "");
        put(&mapped, vec![0; 8192]);
        let open = |path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        };
        let (file, other) = (open(&written), open(&mapped));
        let mut map = SharedMap::new(&other, 8192).unwrap();
        std::io::Write::write_all(&mut &file, &data).unwrap();
        map.store(4096, b"mapped");
        let pid = Pid::from_raw(pool.pid() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let ended = pool.wait_for_exit(Duration::from_secs(20));
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
        assert!(get(pool.on(0, "written")) == data, "{options}: written");
        let found = get(pool.on(0, "mapped"));
        assert_eq!(found[4096..4102], *b"mapped", "{options}");
        drop((map, file, other));
        pool.bury();
    }
}

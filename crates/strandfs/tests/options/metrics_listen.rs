//! `metrics.listen`: who can read the metrics of a pool, and that nobody keeps others from it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::need_root;
use crate::support::{Pool, eventually, mounts, strandfs};

/// Far more than anything here takes.
const IN_TIME: Duration = Duration::from_secs(25);

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends a request and reads the whole answer.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A port that nobody listens at, for the moment.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn listening_at(option: &str) -> Pool {
    Pool::tmpfs(1)
        .option(&format!("metrics.listen={option}"))
        .mount()
}

#[test]
fn whoever_collects_metrics_reads_them_over_http() {
    need_root!();
    let port = free_port();
    let pool = listening_at(&port.to_string());
    let connect = || TcpStream::connect(port).unwrap();
    let answer = ask(connect(), GET);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    assert!(
        body.contains("# TYPE strandfs_requests_total counter\n"),
        "{body}"
    );
    let open = GET.replace(
        "\r\n\r\n",
        "\r\nAccept: application/openmetrics-text\r\n\r\n",
    );
    let answer = ask(connect(), &open);
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    // The same as the command's, but for what has been counted since.
    let names = |text: &str| -> Vec<String> {
        let types = text.lines().filter(|line| line.starts_with("# TYPE "));
        types.map(str::to_owned).collect()
    };
    let ran = strandfs(["metrics", pool.root().to_str().unwrap()]).ok();
    assert_eq!(names(&answer), names(&ran.stdout));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /metrics HTTP/1.1\r\nHost: pool.example\r\n\r\n", "403"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let answer = ask(connect(), request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
}

#[test]
fn a_unix_socket_is_for_its_owner_and_goes_with_the_pool() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    let socket = pool.outside("metrics");
    pool.add_option(&format!("metrics.listen={}", socket.display()));
    pool.start();
    let about = fs::symlink_metadata(&socket).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o7777, 0o600);
    let connect = || UnixStream::connect(&socket).unwrap();
    assert!(ask(connect(), GET).starts_with("HTTP/1.1 200 OK"));
    pool.stop();
    assert!(!socket.exists());
    // The file of a server that was killed is no obstacle for the next one.
    pool.start();
    let pid = Pid::from_raw(pool.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    pool.bury();
    assert!(socket.exists());
    pool.start();
    assert!(ask(connect(), GET).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn where_nobody_may_listen_is_refused() {
    let pool = Pool::tmpfs(1).prepare();
    let file = pool.outside("file");
    fs::write(&file, "kept").unwrap();
    let path = |path: &Path| path.display().to_string();
    for (place, why) in [
        ("0.0.0.0:9345".to_owned(), "127.0.0.1:PORT"),
        ("192.168.1.1:9345".to_owned(), "127.0.0.1:PORT"),
        ("metrics.sock".to_owned(), "127.0.0.1:PORT"),
        (path(&pool.path("metrics")), "in the pool"),
        (path(&pool.outside("no/such")), "No such file"),
        (path(&file), "left alone"),
    ] {
        let option = format!("metrics.listen={place}");
        let mut args = vec!["mount".to_owned(), "-f".to_owned(), "-o".to_owned(), option];
        args.extend(pool.branch_args());
        args.push(pool.root().display().to_string());
        let refused = strandfs(&args);
        assert_eq!(refused.code(), 2, "{refused:?}");
        assert!(refused.stderr.contains(why), "{why}: {refused:?}");
        assert!(!mounts::is_mounted(pool.root()), "{refused:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

/// A pool that takes the place of another has the other's server beside it until that has no users.
#[test]
fn the_next_server_listens_when_the_one_before_has_ended() {
    need_root!();
    let first = free_port();
    let mut before = listening_at(&first.to_string());
    let after = listening_at(&first.to_string());
    assert!(after.log().contains("another program listens there"));
    let told_of = |pool: &Pool| {
        let stream = TcpStream::connect(first);
        stream.is_ok_and(|stream| {
            ask(stream, GET).contains(&format!("pool=\"{}\"", pool.root().display()))
        })
    };
    assert!(told_of(&before) && !told_of(&after));
    before.stop();
    eventually("the other to take over", IN_TIME, || told_of(&after));
}

/// So many descriptors may this process have.
fn raise_descriptor_limit(most: u64) {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(most, |maximum| maximum.min(most));
    let raised = Rlimit {
        current: Some(current.max(limit.current.unwrap_or(most))),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

#[test]
fn nobody_keeps_others_from_the_metrics() {
    need_root!();
    raise_descriptor_limit(4096);
    let port = free_port();
    let pool = listening_at(&port.to_string());
    let connect = || TcpStream::connect(port).unwrap();
    let served = |when: &str| {
        let begun = Instant::now();
        // Those who crowd the queue of connections may have this one dropped, but not again and again.
        let answered = || {
            let Ok(mut stream) = TcpStream::connect(port) else {
                return false;
            };
            let mut answer = String::new();
            stream.set_read_timeout(Some(IN_TIME)).unwrap();
            stream.write_all(GET.as_bytes()).is_ok()
                && stream.read_to_string(&mut answer).is_ok()
                && answer.starts_with("HTTP/1.1 200 OK")
        };
        eventually(when, IN_TIME, answered);
        assert!(begun.elapsed() < IN_TIME, "{when}: {:?}", begun.elapsed());
    };
    served("an answer");
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", pool.pid())).unwrap();
        let of = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (of("VmRSS:"), of("Threads:"))
    };
    let (before_kib, threads) = resident();
    let crowd: Vec<TcpStream> = (0..1000).map(|_| connect()).collect();
    served("an answer beside a thousand who say nothing");
    // Those who say a little at a time.
    let mut slow: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    for byte in GET.as_bytes().iter().take(10) {
        for stream in &mut slow {
            // Some are shown the door.
            let _ = stream.write_all(&[*byte]);
        }
        served("an answer beside slow ones");
    }
    // A head without end, and an answer that nobody takes.
    let mut endless = connect();
    let line = format!("A: {}\r\n", "b".repeat(1000));
    let _ = endless.write_all(b"GET /metrics HTTP/1.1\r\n");
    let sent = (0..20_000).take_while(|_| endless.write_all(line.as_bytes()).is_ok());
    assert!(sent.count() < 20_000, "an endless request was taken");
    let takes_nothing: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut stream = connect();
            stream.write_all(GET.as_bytes()).unwrap();
            stream
        })
        .collect();
    served("an answer beside those who take none");
    let (after_kib, threads_after) = resident();
    assert!(
        after_kib < before_kib + 16 * 1024,
        "{before_kib} KiB, then {after_kib} KiB"
    );
    // The pool's own come and go.
    assert!(
        threads_after < threads + 10,
        "{threads}, then {threads_after}"
    );
    drop((crowd, slow, takes_nothing));
}

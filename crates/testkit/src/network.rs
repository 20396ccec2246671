//! Network filesystems on this machine: a server on the loopback interface and its client.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{eventually, mounts, run};

/// Where Debian and Ubuntu have it.
pub const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// A mounted one. The client is unmounted and the server ended when it is dropped.
pub struct Network {
    mountpoint: PathBuf,
    server: Child,
}

impl Network {
    /// sshfs over TCP from an SFTP server of its own, which shows `far` at `mountpoint`. Without
    /// SSH between them: that would need a daemon and keys, and changes nothing for who mounts it.
    pub fn sshfs(_work: &Path, far: &Path, mountpoint: &Path) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let option = format!("directport={}", listener.local_addr().unwrap().port());
        let server = std::thread::spawn(move || {
            let connection = OwnedFd::from(listener.accept().unwrap().0);
            let mut server = Command::new(SFTP_SERVER);
            server.stdin(connection.try_clone().unwrap());
            server.stdout(connection).spawn().unwrap()
        });
        let source = format!("127.0.0.1:{}", far.display());
        let target = mountpoint.to_str().unwrap();
        run("sshfs", ["-o", &option, &source, target]).ok();
        Network {
            mountpoint: mountpoint.to_path_buf(),
            server: server.join().unwrap(),
        }
    }

    /// A brick of GlusterFS and its client, without a daemon that manages them.
    pub fn gluster(work: &Path, brick: &Path, mountpoint: &Path) -> Network {
        let at = |name: &str| work.join(name).to_str().unwrap().to_owned();
        let port = free_port();
        let server = format!(
            "volume posix\n type storage/posix\n option directory {}\nend-volume\n\
             volume brick\n type features/locks\n subvolumes posix\nend-volume\n\
             volume server\n type protocol/server\n option transport-type tcp\n \
             option transport.socket.bind-address 127.0.0.1\n \
             option transport.socket.listen-port {port}\n \
             option auth.addr.brick.allow 127.0.0.1\n subvolumes brick\nend-volume\n",
            brick.display()
        );
        let client = format!(
            "volume client\n type protocol/client\n option transport-type tcp\n \
             option remote-host 127.0.0.1\n option remote-port {port}\n \
             option remote-subvolume brick\nend-volume\n"
        );
        fs::write(at("brick.vol"), server).unwrap();
        fs::write(at("client.vol"), client).unwrap();
        let mut server = Command::new("glusterfsd");
        server.args(["-N", "-f", &at("brick.vol"), "-l", &at("brick.log")]);
        server.args(["-p", &at("brick.pid")]);
        server.stdin(Stdio::null()).stdout(Stdio::null());
        let mut network = Network {
            mountpoint: mountpoint.to_path_buf(),
            server: server.stderr(Stdio::null()).spawn().unwrap(),
        };
        let target = mountpoint.to_str().unwrap();
        network.mount(
            "glusterfs",
            &["-f", &at("client.vol"), "-l", &at("client.log"), target],
        );
        network
    }

    /// Until the server listens the client fails, at once or at its first request.
    fn mount(&mut self, program: &str, arguments: &[&str]) {
        let probe = self.mountpoint.join("probe");
        let mountpoint = self.mountpoint.clone();
        let works = || {
            assert_eq!(self.server.try_wait().unwrap(), None, "the server ended");
            let is_mounted = || mounts::list().iter().any(|it| it.0 == mountpoint);
            if !is_mounted() {
                run(program, arguments);
            }
            let written = is_mounted() && fs::write(&probe, "x").is_ok();
            written && fs::remove_file(&probe).is_ok()
        };
        eventually(
            "the network filesystem works",
            Duration::from_secs(60),
            works,
        );
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        mounts::detach(&self.mountpoint);
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// Somebody else may take it before it is used, which is no error of what is tested.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

//! The option `setuid`: root mounts, and the server runs as another user.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::MountArgs;
use crate::daemon;
use crate::exit::Exit;
use crate::failure::Failure;

/// Where programs are; a mount helper may have no PATH.
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Whether the mount is to be started once more, as that user.
///
/// # Errors
/// `setuid` was given, and this is neither root nor already the user root has chosen.
pub fn is_to_switch(args: &MountArgs, user: Option<&str>) -> Result<bool, Failure> {
    match user {
        None => Ok(false),
        Some(_) if args.as_user => Ok(false),
        Some(_) if rustix::process::geteuid().is_root() => Ok(true),
        Some(user) => Err(Failure::NotPermitted {
            path: format!("setuid={user}").into(),
            why: "only root may choose the user; leave the option out".to_owned(),
        }),
    }
}

/// Starts the same mount as that user, with all their groups; returns how that ended when it serves;
/// in the foreground this process becomes that mount.
///
/// # Errors
/// There is no such user, or a program that does it is missing.
pub fn mount(args: &MountArgs, user: &str) -> Result<Exit, Failure> {
    let refuse = |why: String| Failure::SwitchUser {
        user: user.to_owned(),
        why,
    };
    let find = |name: &str, package: &str| {
        let mut places = PLACES.iter().map(|place| Path::new(place).join(name));
        let found = places.find(|path| path.exists());
        found.ok_or_else(|| refuse(format!("{name}(1) of {package} is missing; install it")))
    };
    let ids = Command::new(find("id", "coreutils")?)
        .args(["-g", "--", user])
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::system("starting id"))?;
    let group = String::from_utf8_lossy(&ids.stdout).trim().to_owned();
    if !ids.status.success() || group.is_empty() {
        return Err(refuse(
            "there is no such user; name one of `getent passwd`".to_owned(),
        ));
    }
    let program = std::env::current_exe().map_err(Failure::system("finding the program"))?;
    let mut switch = Command::new(find("setpriv", "util-linux")?);
    switch
        .arg(format!("--reuid={user}"))
        .arg(format!("--regid={group}"))
        .args(["--init-groups", "--"])
        .arg(program)
        .args(["mount", "--as-user"])
        .args(args.foreground.then_some("--foreground"))
        .args(daemon::mount_arguments(args))
        .stdin(Stdio::null());
    if args.foreground {
        // Whoever waits for this process, or signals it, means the server.
        return Err(Failure::system("starting setpriv")(switch.exec()));
    }
    let status = switch
        .status()
        .map_err(Failure::system("starting setpriv"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map(Exit::of_code)
        .ok_or_else(|| refuse(format!("its mount ended with {status}")))
}

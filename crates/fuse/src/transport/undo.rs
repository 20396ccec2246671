//! A reply nobody waits for any more: what it gave to the kernel is taken back.

use zerocopy::FromBytes;

use super::Server;
use crate::abi::{EntryOut, InHeader, Opcode, OpenOut};
use crate::filesystem::{Context, Worker};
use crate::types::{Handle, NodeId, Release};

/// Takes back what the answer in `payload` gave: a lookup, an open file, or both. Listings with
/// look-ups are left: the kernel drops such a reply only with the whole connection.
pub(super) fn undo(server: &Server, header: &InHeader, payload: &[u8], worker: &dyn Worker) {
    let Ok(opcode) = Opcode::try_from(header.opcode) else {
        return;
    };
    let entry = || EntryOut::read_from_prefix(payload).ok();
    match opcode {
        Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link => {
            if let Some((entry, _)) = entry() {
                forget(server, entry.nodeid);
            }
        }
        Opcode::Create | Opcode::Tmpfile => {
            if let Some((entry, rest)) = entry() {
                close(server, header, entry.nodeid, rest, worker, false);
                forget(server, entry.nodeid);
            }
        }
        Opcode::Open => close(server, header, header.nodeid, payload, worker, false),
        Opcode::Opendir => close(server, header, header.nodeid, payload, worker, true),
        _ => {}
    }
}

fn forget(server: &Server, node: u64) {
    if node != 0 {
        server.filesystem.forget(NodeId(node), 1);
    }
}

fn close(
    server: &Server,
    header: &InHeader,
    node: u64,
    reply: &[u8],
    worker: &dyn Worker,
    directory: bool,
) {
    let Ok((open, _)) = OpenOut::read_from_prefix(reply) else {
        return;
    };
    let cx = Context {
        unique: header.unique,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        supplementary_gid: None,
        worker,
    };
    let args = Release {
        handle: Handle(open.fh),
        flags: 0,
        flock_owner: None,
        flush: false,
    };
    // Nobody is left to be told of an error.
    let _ = if directory {
        server.filesystem.releasedir(&cx, NodeId(node), &args)
    } else {
        server.filesystem.release(&cx, NodeId(node), &args)
    };
}

//! Which transport a session uses: decided in three steps, each of which may find that it must be
//! `/dev/fuse`.

use crate::abi::InitFlags;
use crate::connection::Connection;
use crate::mount::MountError;
use crate::negotiate::{Negotiated, Wants};
use crate::report::{RingUnavailable, TransportReport};
use crate::transport::{Prepared, TransportChoice, possible, prepare};

/// What is known so far.
pub(super) struct Plan {
    /// io_uring, or nothing.
    pub(super) required: bool,
    ring: Result<Option<Box<Prepared>>, RingUnavailable>,
}

impl Plan {
    /// What can be told before there is a mount.
    pub(super) fn possible(
        choice: TransportChoice,
        max_threads: usize,
    ) -> Result<Self, MountError> {
        let required = choice == TransportChoice::Ring;
        let ring = match choice {
            TransportChoice::Device => Err(RingUnavailable::NotAsked),
            TransportChoice::Auto | TransportChoice::Ring => possible(max_threads).map(|()| None),
        };
        Self { required, ring }.or_fail()
    }

    /// Gets all that the ring needs, and asks the kernel for it: once it agrees there is no way
    /// back.
    pub(super) fn prepare(
        mut self,
        connection: &Connection,
        wants: &mut Wants,
    ) -> Result<Self, MountError> {
        if self.ring.is_ok() {
            self.ring =
                prepare(connection, wants.most_payload_bytes()).map(|it| Some(Box::new(it)));
        }
        wants.flags.set(InitFlags::OVER_IO_URING, self.ring.is_ok());
        self.or_fail()
    }

    /// What the kernel said.
    pub(super) fn agreed(
        mut self,
        connection: &Connection,
        negotiated: &Negotiated,
    ) -> Result<Self, MountError> {
        if self.ring.is_ok() && !negotiated.flags.contains(InitFlags::OVER_IO_URING) {
            self.ring = Err(RingUnavailable::NotAgreed);
        }
        if let Err(reason) = &self.ring {
            connection.set_transport(TransportReport::Device(reason.clone()));
        }
        self.or_fail()
    }

    /// What to start the ring with.
    pub(super) fn take(&mut self) -> Option<Box<Prepared>> {
        self.ring.as_mut().ok().and_then(Option::take)
    }

    fn or_fail(self) -> Result<Self, MountError> {
        match self.ring {
            Err(reason) if self.required => Err(MountError::Ring(reason)),
            ring => Ok(Self { ring, ..self }),
        }
    }
}

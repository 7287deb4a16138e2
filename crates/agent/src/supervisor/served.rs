//! A segment's memory for a client on another machine: the node's progress thread carries out what is asked of it.
//!
//! The client knows the memory by its key, which is good as long as the lease. It has one connection, which it proves to be
//! its own as it proves those of workers; another takes the place of the one before.

use std::sync::Arc;

use sublet_fabric::exposed::{Exposed, OWN, RemoteRegion};
use sublet_fabric::progress::Progress;
use sublet_fabric::region::Region;
use sublet_fabric::tcp::{self, Stream};
use sublet_fabric::tls::Identity;
use sublet_proto::Error;
use sublet_proto::v1::RegionKey;

use crate::links::Arrival;

/// See the [module](self). When it is dropped, nobody reaches the memory any more.
pub(super) struct Served {
    exposed: Arc<Exposed>,
    reached: RemoteRegion,
    end: Option<Arc<tcp::Endpoint>>,
}

impl Served {
    pub(super) fn new(region: &Region) -> Result<Served, Error> {
        let exposed = Arc::new(Exposed::alone(region)?);
        Ok(Served { reached: exposed.expose(OWN)?, exposed, end: None })
    }

    /// By which the client reaches it.
    pub(super) fn key(&self) -> RegionKey {
        let RemoteRegion { key, base, .. } = self.reached;
        RegionKey { key, base }
    }

    /// Serves a connection, whose client is answered first: it goes on with TLS where that is meant.
    pub(super) fn take(
        &mut self,
        arrival: Arrival,
        identity: Option<&Identity>,
        progress: &Progress,
    ) -> Result<(), Error> {
        arrival.greeting.accept(&arrival.socket)?;
        let stream = match identity {
            None => Stream::plain(arrival.socket)?,
            Some(identity) => Stream::encrypted_server(arrival.socket, identity)?,
        };
        let end = Arc::new(tcp::Endpoint::new(self.exposed.clone(), None));
        end.connect(stream)?;
        self.disconnect("another connection has taken its place");
        self.end = Some(end.clone());
        Ok(progress.serve(end)?)
    }

    fn disconnect(&mut self, reason: &str) {
        if let Some(end) = self.end.take() {
            end.disconnect(reason);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.exposed.withdraw(OWN);
        self.disconnect("the lease has ended");
    }
}

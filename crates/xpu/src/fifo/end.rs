//! Implements the ends of connections, as the shim makes them: shared memory within a processing unit, and a socket
//! between two.
//!
//! A socket carries at most two FIFOs, of opposite directions between the same two processes. The acknowledgements are
//! then sent together with the answer, and TCP's own with them. Each end lends a region for each of the two FIFOs when
//! the connection is made, by keys that the shims have made, so that a later FIFO needs only a message. The peer gets
//! the second key when it has the right to that FIFO.

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::bell::Bell;
use sublet_fabric::exposed::{ExposedMemory, RemoteRegion};
use sublet_fabric::line::Turn;
use sublet_fabric::region::{Region, punch_hole, take_pages};
use sublet_fabric::sync::{Mutex, lock};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::tls::Identity;
use sublet_fabric::window::{LineAddress, RegionAddress, Window};
use sublet_fabric::{Endpoint, FabricError, shm};
use sublet_proto::v1::{FifoAcross, FifoJoined};
use sublet_proto::{Code, Error};

use super::{FifoShape, REGION};
use crate::shim_messages::{descriptors, out_of_turn, shape};

/// The number of the FIFO of the other direction. The numbers are those in the keys.
pub const BACK: u32 = 1;
/// Number of FIFOs that a connection carries.
const NUMBERS: u32 = 2;

/// An end of a FIFO's connection.
pub(crate) struct FifoEnd {
    endpoint: Arc<Endpoint>,
    /// Number under which both ends have lent the regions of this FIFO.
    number: u32,
    /// The region that the other end writes.
    region: Arc<Region>,
    /// Rung by a writer within this processing unit.
    bell: Option<Bell>,
}

/// State of a connection that a FIFO of the other direction can share.
struct SpareConnection {
    endpoint: Weak<Endpoint>,
    region: Arc<Region>,
    shape: FifoShape,
}

/// The spare connections of a process, by FIFO and connection.
#[derive(Default)]
pub(crate) struct Spares(Mutex<HashMap<(u64, u32), SpareConnection>>);

/// An end of a FIFO.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FifoSide {
    Reader,
    Writer,
}

impl Spares {
    /// An end as its reader has it.
    pub(crate) fn read(
        &self,
        joined: &FifoJoined,
        fds: Vec<OwnedFd>,
        expected: FifoShape,
    ) -> Result<FifoEnd, Error> {
        if shape(joined.lines, joined.slot_bytes)? != expected {
            return Err(out_of_turn());
        }
        let end = match &joined.across {
            Some(across) => self.across((joined, across), fds, FifoSide::Reader, expected)?,
            None => {
                let [file, bell] = descriptors("a FIFO's region and bell", fds)?;
                let region = Region::attach(file, expected.region_bytes())?;
                within(region, None, Some(Bell(Some(bell))))?
            }
        };
        // The pages count as the reader's, also those that a writer writes first.
        take_pages(end.region.fd(), 0, end.region.len_bytes())?;
        Ok(end)
    }

    /// An end as its writer has it, and how large the ring is.
    pub(crate) fn write(
        &self,
        joined: &FifoJoined,
        fds: Vec<OwnedFd>,
    ) -> Result<(FifoEnd, FifoShape), Error> {
        let shape = shape(joined.lines, joined.slot_bytes)?;
        let end = match &joined.across {
            Some(across) => self.across((joined, across), fds, FifoSide::Writer, shape)?,
            None => {
                let [file, bell] = descriptors("a FIFO's region and bell", fds)?;
                within(Region::attach(file, shape.region_bytes())?, Some(bell), None)?
            }
        };
        Ok((end, shape))
    }

    fn across(
        &self,
        (joined, across): (&FifoJoined, &FifoAcross),
        fds: Vec<OwnedFd>,
        side: FifoSide,
        shape: FifoShape,
    ) -> Result<FifoEnd, Error> {
        let remote = |side| RemoteRegion { key: across.peer_key, base: 0, len_bytes: bytes(side, shape) };
        if let Some(along) = &across.along {
            let [] = descriptors("a FIFO that goes along another", fds)?;
            let (endpoint, region) = self.take((along.object, along.connection), shape).ok_or_else(|| {
                Error::new(Code::TryLater, "the connection that it was to go along is over")
            })?;
            if let Endpoint::Tcp(end) = &*endpoint {
                end.reach(BACK, remote(side.other()))?;
                // A thread that sleeps on the connection now has another one that receives data for it.
                end.bell().ring();
            }
            return Ok(FifoEnd { endpoint, number: BACK, region, bell: None });
        }
        let [socket] = descriptors("a FIFO's connection", fds)?;
        let regions = [side, side.other()].map(|side| Region::create("sublet-fifo", bytes(side, shape)));
        let [region, spare] = regions;
        let (region, spare) = (Arc::new(region?), Arc::new(spare?));
        let stream = secure(socket, across, side)?;
        let exposed = ExposedMemory::lending(NUMBERS);
        exposed.lend_by(across.own_key, region.clone())?;
        exposed.lend_by(across.spare_key, spare.clone())?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::new(Code::System, format!("eventfd failed: {errno}")))?;
        let end = tcp::TcpEndpoint::new(Arc::new(exposed), Some(bell));
        end.connect(stream)?;
        end.reach(REGION, remote(side.other()))?;
        let endpoint = Arc::new(Endpoint::Tcp(end));
        let spare = SpareConnection { endpoint: Arc::downgrade(&endpoint), region: spare, shape };
        self.keep((joined.object, joined.connection), spare);
        Ok(FifoEnd { endpoint, number: REGION, region, bell: None })
    }

    fn keep(&self, way: (u64, u32), spare: SpareConnection) {
        let mut spares = lock(&self.0);
        spares.retain(|_, spare| spare.endpoint.strong_count() > 0);
        spares.insert(way, spare);
    }

    fn take(&self, way: (u64, u32), shape: FifoShape) -> Option<(Arc<Endpoint>, Arc<Region>)> {
        let spare = lock(&self.0).remove(&way).filter(|spare| spare.shape == shape)?;
        Some((spare.endpoint.upgrade()?, spare.region))
    }
}

impl FifoSide {
    fn other(self) -> FifoSide {
        match self {
            FifoSide::Reader => FifoSide::Writer,
            FifoSide::Writer => FifoSide::Reader,
        }
    }
}

/// Size of the region that a side lends: the ring for the reader, the acknowledgements for the writer.
fn bytes(side: FifoSide, shape: FifoShape) -> u64 {
    match side {
        FifoSide::Reader => shape.region_bytes(),
        FifoSide::Writer => FifoShape::WRITER_BYTES,
    }
}

impl FifoEnd {
    /// The region that the other end writes.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// An address in the other end's region.
    #[inline]
    pub(crate) fn there(&self, offset: u64) -> RegionAddress {
        RegionAddress { region: self.number, offset }
    }

    /// A line of the other end's.
    #[inline]
    pub(crate) fn line_there(&self, at: LineAddress) -> LineAddress {
        LineAddress { region: self.number, ..at }
    }

    /// Acknowledges that a quarter was taken.
    #[inline]
    pub(crate) fn acknowledge(&self, at: LineAddress, turn: Turn) {
        // A writer that is gone needs no acknowledgement.
        let _ = self.endpoint.put_imm(self.line_there(at), turn, 0, &[]);
    }

    /// Acknowledges together with the next data, if there is any, or when more is taken: see [`FifoEnd::hurry`].
    #[inline]
    pub(crate) fn acknowledge_soon(&self, at: LineAddress, turn: Turn) {
        match &*self.endpoint {
            Endpoint::Tcp(end) if self.is_shared() => {
                let _ = end.put_imm_soon(self.line_there(at), turn, 0, &[]);
            }
            _ => self.acknowledge(at, turn),
        }
    }

    /// Sends the messages that were held back.
    #[inline]
    pub(crate) fn hurry(&self) {
        if let Endpoint::Tcp(end) = &*self.endpoint {
            end.hurry();
        }
    }

    /// Whether the connection carries another FIFO, so that the ends receive data for each other.
    #[inline]
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.endpoint) > 1
    }

    /// Whether a line that asks for it rings a bell when it is there.
    pub(crate) fn has_bell(&self) -> bool {
        self.bell.is_some() || self.is_shared()
    }

    /// The descriptors that become readable when there may be new data.
    pub(crate) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (bell, stream) = match &*self.endpoint {
            Endpoint::Tcp(end) => (Some(end.bell()), end.readable()),
            _ => (self.bell.as_ref(), None),
        };
        bell.and_then(|bell| bell.0.as_ref()).map(AsFd::as_fd).into_iter().chain(stream)
    }

    /// Receives, after waking, data that has come.
    pub(crate) fn hush(&self) {
        match &*self.endpoint {
            Endpoint::Tcp(end) => {
                // A failure shows at the next access.
                let _ = end.progress();
                end.bell().hush();
            }
            _ => self.bell.iter().for_each(Bell::hush),
        }
    }
}

impl Deref for FifoEnd {
    type Target = Endpoint;

    #[inline]
    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for FifoEnd {
    fn drop(&mut self) {
        // The other FIFO continues, and late data for this one is dropped.
        if let Endpoint::Tcp(end) = &*self.endpoint
            && self.is_shared()
        {
            end.withdraw(self.number, "a FIFO has ended");
            // They stay with the connection as places alone.
            let _ = punch_hole(self.region.fd(), 0, self.region.len_bytes());
        }
    }
}

fn secure(socket: OwnedFd, across: &FifoAcross, side: FifoSide) -> Result<ByteStream, Error> {
    let socket = socket.into();
    let FifoAcross { certificate, private_key, .. } = across;
    Ok(match side {
        _ if certificate.is_empty() => ByteStream::plain(socket)?,
        FifoSide::Reader => {
            let identity = Identity { certificate: certificate.clone(), private_key: private_key.clone() };
            ByteStream::encrypted_server(socket, &identity)?
        }
        FifoSide::Writer => ByteStream::encrypted_client(socket, certificate).map_err(unheard)?,
    })
}

/// The reader takes part in the handshake when it reads. Until then its writers try again.
fn unheard(error: FabricError) -> Error {
    match error {
        FabricError::Disconnected { reason } => Error::new(
            Code::TryLater,
            format!("the reader of the FIFO has not taken the connection: {reason}"),
        ),
        error => error.into(),
    }
}

/// Within a processing unit: the other end's region is this one's.
fn within(region: Region, rings: Option<OwnedFd>, bell: Option<Bell>) -> Result<FifoEnd, Error> {
    let window = Window::new(1, region.len_bytes())?;
    window.map(REGION, region.fd(), region.len_bytes())?;
    let endpoint = Arc::new(Endpoint::Shm(shm::ShmEndpoint::new(window, rings)));
    Ok(FifoEnd { endpoint, number: REGION, region: Arc::new(region), bell })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use sublet_fabric::exposed::new_key;
    use sublet_fabric::line::{Line, Watch};
    use sublet_fabric::ring::Position;
    use sublet_proto::v1::FifoWay;

    use super::*;

    const SHAPE: FifoShape = FifoShape { lines: 4, slot_bytes: 4096 };
    const FORTH: (u64, u32) = (7, 1);

    /// A process, with the messages from its shim.
    #[derive(Default)]
    struct ShimMessages {
        spares: Spares,
        keys: [u64; 2],
    }

    fn told() -> [ShimMessages; 2] {
        [(); 2].map(|()| ShimMessages {
            spares: Spares::default(),
            keys: [REGION, BACK].map(|n| new_key(n).unwrap()),
        })
    }

    fn joined((object, connection): (u64, u32), across: FifoAcross) -> FifoJoined {
        let FifoShape { lines, slot_bytes } = SHAPE;
        FifoJoined { connection, peer: 1, object, lines, slot_bytes, across: Some(across) }
    }

    /// Describes the first FIFO to one of the two processes.
    fn first(own: &ShimMessages, peer: &ShimMessages) -> FifoJoined {
        let across = FifoAcross {
            own_key: own.keys[0],
            peer_key: peer.keys[0],
            spare_key: own.keys[1],
            ..FifoAcross::default()
        };
        joined(FORTH, across)
    }

    fn second(peer: &ShimMessages) -> FifoJoined {
        let along = Some(FifoWay { object: FORTH.0, connection: FORTH.1 });
        joined((8, 1), FifoAcross { peer_key: peer.keys[1], along, ..FifoAcross::default() })
    }

    /// The first FIFO's two ends.
    fn connect([reader, writer]: &[ShimMessages; 2]) -> [FifoEnd; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let two = listener.accept().unwrap().0;
        let read = reader.spares.read(&first(reader, writer), vec![one.into()], SHAPE).unwrap();
        let (write, shape) = writer.spares.write(&first(writer, reader), vec![two.into()]).unwrap();
        assert_eq!(shape, SHAPE);
        [read, write]
    }

    fn send(end: &FifoEnd, number: u64) {
        let at = Position::new(number, SHAPE.lines);
        end.put_imm(end.line_there(SHAPE.line(at.line)), at.turn, number as u32, &[number; 2]).unwrap();
    }

    fn has(end: &FifoEnd, number: u64) -> bool {
        let position = Position::new(number, SHAPE.lines);
        let at = SHAPE.line(position.line);
        is_there(end, at, position.turn)
    }

    fn is_there(end: &FifoEnd, at: LineAddress, turn: Turn) -> bool {
        let line: &Line = end.region().view(at.line).unwrap();
        let watch: &Watch = end.region().view(at.watch).unwrap();
        (0..1000).any(|_| end.spin((line, watch), turn, 1 << 10))
    }

    #[test]
    fn reverse_fifo_shares_the_connection_and_each_ends_alone() {
        let told = told();
        let [from, to] = connect(&told);
        send(&to, 0);
        assert!(has(&from, 0));
        let back_from = told[1].spares.read(&second(&told[0]), Vec::new(), SHAPE).unwrap();
        let (back_to, _) = told[0].spares.write(&second(&told[1]), Vec::new()).unwrap();
        assert!(
            Arc::ptr_eq(&from.endpoint, &back_to.endpoint) && Arc::ptr_eq(&to.endpoint, &back_from.endpoint)
        );
        // Acknowledgements are sent together with data.
        let (at, turn) = SHAPE.acknowledgement(Position::new(0, SHAPE.lines));
        from.acknowledge_soon(at, turn);
        send(&back_to, 0);
        assert!(has(&back_from, 0) && is_there(&to, at, turn));
        // They are also sent when an end polls, or when more is taken.
        let (at, turn) = SHAPE.acknowledgement(Position::new(1, SHAPE.lines));
        from.acknowledge_soon(at, turn);
        assert!(!has(&from, 1) && is_there(&to, at, turn));
        let (at, turn) = SHAPE.acknowledgement(Position::new(2, SHAPE.lines));
        from.acknowledge_soon(at, turn);
        assert!(!is_there(&to, at, turn));
        from.hurry();
        assert!(is_there(&to, at, turn));
        drop(from);
        send(&to, 1);
        for number in 1..4 {
            send(&back_to, number);
            assert!(has(&back_from, number));
        }
        drop(back_to);
        assert!(!has(&back_from, 4) && back_from.down().is_some());
    }

    #[test]
    fn unknown_or_shared_connections_are_refused_with_try_later() {
        let told = told();
        let refused =
            |told: &ShimMessages, peer| told.spares.write(&second(peer), Vec::new()).err().unwrap().code;
        assert_eq!(refused(&told[0], &told[1]), Code::TryLater);
        let _ends = connect(&told);
        let shared = told[0].spares.write(&second(&told[1]), Vec::new()).unwrap();
        assert_eq!(refused(&told[0], &told[1]), Code::TryLater);
        drop(shared);
        let mut other = second(&told[0]);
        other.lines = 8;
        let error = told[1].spares.write(&other, Vec::new()).err().unwrap();
        assert_eq!(error.code, Code::TryLater);
    }
}

//! Tracks the reader of each FIFO and the connected writers.

use sublet_proto::v1::{self, shim_message::Body};
use sublet_proto::{Code, Error};
use sublet_xpu::{FifoRights, FifoShape, GlobalId};

use super::{
    DelayedRequest, FifoConnectionId, FifoDescriptor, FifoTarget, MAX_WRITERS, Peer, ProcessDescriptor,
    ShimCore, ShimEffect, Tag, TenantFifoName, denied, no_fifo, no_process,
};

impl ShimCore {
    /// Connects a process to a FIFO as a writer.
    pub(super) fn connect(
        &mut self,
        (by, tag): (GlobalId, Tag),
        to: &FifoTarget,
    ) -> Result<Option<u64>, Error> {
        let object = self.find(by, to)?;
        if !self.is_here(object) {
            return self.connect_there((by, tag), object, to).map(|()| None);
        }
        let (way, shape, reader) = self.admit(by, object)?;
        let what = FifoDescriptor::Writer { object, connection: way.connection, is_over: false };
        let writer = match self.describe(by, what) {
            Ok(at) => at,
            Err(error) => {
                self.drop_writer(way);
                return Err(error);
            }
        };
        if let Some((_, descriptor)) =
            self.fifos.get_mut(&object).and_then(|fifo| fifo.writers.get_mut(&way.connection))
        {
            *descriptor = Some(writer.descriptor);
        }
        self.out.push_back(ShimEffect::Join { way, shape, reader, writer, tag });
        Ok(None)
    }

    fn connect_there(
        &mut self,
        (by, tag): (GlobalId, Tag),
        object: GlobalId,
        to: &FifoTarget,
    ) -> Result<(), Error> {
        let peer = self.route(object)?;
        if !self.rights(by, object).contains(FifoRights::WRITE) {
            return Err(denied(by, "write to", object));
        }
        let token = self.await_peers(DelayedRequest::Connect { by, tag, peer, object, to: to.clone() })?;
        let (object, writer) = (object.to_bits(), by.to_bits());
        self.tell(peer, Body::Connect(v1::FifoConnect { token, object, writer }));
        Ok(())
    }

    /// Finds the FIFO that a target identifies.
    fn find(&self, by: GlobalId, to: &FifoTarget) -> Result<GlobalId, Error> {
        match to {
            FifoTarget::Object(object) => Ok(*object),
            FifoTarget::Named(name) => {
                let name = TenantFifoName { tenant: self.process(by)?.tenant.clone(), name: name.clone() };
                let found = self.held_here(&name).or_else(|| self.names.holders(&name).next());
                found.ok_or_else(|| no_fifo(&format!("{:?}", name.name)))
            }
        }
    }

    /// Handles a neighbour's refusal to connect a process. If the FIFO is gone, another one may have its name by now,
    /// so the call is tried again.
    pub(super) fn refused(
        &mut self,
        (by, tag): (GlobalId, Tag),
        object: GlobalId,
        to: FifoTarget,
        error: Error,
    ) {
        let FifoTarget::Named(name) = &to else { return self.answer((by, tag), Err(error)) };
        if error.code == Code::InvalidArgument
            && let Some(tenant) = self.processes.get(&by).map(|process| process.tenant.clone())
        {
            self.names.remove(&TenantFifoName { tenant, name: name.clone() }, object);
            return self.call(by, tag, super::ShimCall::Connect { to });
        }
        self.answer((by, tag), Err(error));
    }

    /// Admits a writer, on whichever unit it runs.
    fn admit(
        &mut self,
        writer: GlobalId,
        object: GlobalId,
    ) -> Result<(FifoConnectionId, FifoShape, ProcessDescriptor), Error> {
        if !self.fifo_for(writer, object)?.rights_of(writer).contains(FifoRights::WRITE) {
            return Err(denied(writer, "write to", object));
        }
        let fifo = self.fifos.get_mut(&object).ok_or_else(|| no_fifo(&object.to_string()))?;
        let none = || Error::new(Code::TryLater, format!("FIFO {object} has no reader"));
        let (process, descriptor) = fifo.reader.ok_or_else(none)?;
        if fifo.writers.len() >= MAX_WRITERS {
            let message = format!("{MAX_WRITERS} processes write to FIFO {object} already");
            return Err(Error::new(Code::TooManyInFlight, message));
        }
        let (shape, bytes) = (fifo.shape, fifo.shape.region_bytes());
        // After all numbers were used once, one of them may still be in use.
        while fifo.writers.contains_key(&fifo.next_connection) {
            fifo.next_connection = fifo.next_connection.wrapping_add(1).max(1);
        }
        let connection = fifo.next_connection;
        let reader = self.processes.get_mut(&process).ok_or_else(|| no_process(process))?;
        if reader.rings_bytes + bytes > reader.capacity_bytes {
            let message = format!(
                "the rings of process {process} take {} bytes: with {bytes} more it would be more than {}",
                reader.rings_bytes, reader.capacity_bytes
            );
            return Err(Error::new(Code::InsufficientResources, message));
        }
        reader.rings_bytes += bytes;
        fifo.next_connection = connection.wrapping_add(1).max(1);
        let before = fifo.writers.insert(connection, (writer, None));
        debug_assert!(before.is_none(), "connection {connection} to FIFO {object} was of {before:?}");
        Ok((FifoConnectionId { object, connection }, shape, ProcessDescriptor { process, descriptor }))
    }

    /// The connections by which a process of this agent writes.
    pub(crate) fn written_by(&self, process: GlobalId) -> impl Iterator<Item = FifoConnectionId> {
        let descriptors = self.processes.get(&process).into_iter().flat_map(|it| it.descriptors.values());
        descriptors.filter_map(|what| match *what {
            FifoDescriptor::Writer { object, connection, is_over: false } => {
                Some(FifoConnectionId { object, connection })
            }
            _ => None,
        })
    }

    /// Handles the request of a neighbour's process to connect as a writer.
    pub(super) fn asked_to_connect(&mut self, peer: Peer, asked: &v1::FifoConnect) {
        let (object, writer) = (GlobalId::from_bits(asked.object), GlobalId::from_bits(asked.writer));
        match self.admit(writer, object) {
            Ok((way, shape, reader)) => {
                self.out.push_back(ShimEffect::Invite {
                    way,
                    shape,
                    reader,
                    writer,
                    peer,
                    token: asked.token,
                });
            }
            Err(error) => self.done(peer, asked.token, Err(error)),
        }
    }

    /// Handles the invitation of a neighbour for a process of this agent.
    pub(super) fn invited(&mut self, peer: Peer, invited: v1::FifoInvited) {
        let token = invited.token;
        if !matches!(self.pending.get(&token), Some(DelayedRequest::Connect { peer: asked, .. }) if *asked == peer)
        {
            return;
        }
        let Some(DelayedRequest::Connect { by, tag, object, .. }) = self.pending.remove(&token) else {
            return;
        };
        let connection = invited.connection;
        match self.describe(by, FifoDescriptor::Writer { object, connection, is_over: false }) {
            Ok(at) => self.out.push_back(ShimEffect::Dial { at, tag, peer, object, invited }),
            Err(error) => {
                self.tell(peer, Body::Closed(v1::FifoClosed { object: object.to_bits(), connection }));
                self.answer((by, tag), Err(error));
            }
        }
    }

    /// Connects a process to a FIFO of its own processing unit as the reader, if the FIFO has none.
    pub(super) fn connect_to_read(
        &mut self,
        (by, tag): (GlobalId, Tag),
        to: &FifoTarget,
    ) -> Result<Option<u64>, Error> {
        let object = self.find(by, to)?;
        if !self.is_here(object) {
            let message = format!("FIFO {object} is read on its own processing unit, {:x}", object.pu);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let fifo = self.fifo_for(by, object)?;
        if !fifo.rights_of(by).contains(FifoRights::READ) {
            return Err(denied(by, "read", object));
        }
        if let Some((reader, _)) = fifo.reader {
            return Err(Error::new(Code::AlreadyAllocated, format!("process {reader} reads FIFO {object}")));
        }
        let shape = fifo.shape;
        let at = self.describe(by, FifoDescriptor::Reader(object))?;
        if let Some(fifo) = self.fifos.get_mut(&object) {
            debug_assert!(fifo.reader.is_none(), "{by} reads FIFO {object} beside {:?}", fifo.reader);
            fifo.reader = Some((by, at.descriptor));
        }
        self.out.push_back(ShimEffect::Read { at, tag, object, shape });
        Ok(None)
    }

    /// Closes a descriptor of a process.
    pub(super) fn close(&mut self, at: ProcessDescriptor) -> Result<(), Error> {
        let what = self.described(at)?;
        if let Some(process) = self.processes.get_mut(&at.process) {
            process.descriptors.remove(&at.descriptor);
        }
        match what {
            FifoDescriptor::Reader(object) => {
                self.stop_reading(object, at);
                self.end_unread(object);
            }
            FifoDescriptor::Writer { is_over: true, .. } => {}
            FifoDescriptor::Writer { object, connection, .. } if self.is_here(object) => {
                self.part(FifoConnectionId { object, connection }, false);
            }
            FifoDescriptor::Writer { object, connection, .. } => {
                self.out.push_back(ShimEffect::Forget { way: FifoConnectionId { object, connection } });
                if let Ok(peer) = self.route(object) {
                    self.tell(peer, Body::Closed(v1::FifoClosed { object: object.to_bits(), connection }));
                }
            }
        }
        self.out.push_back(ShimEffect::Closed { at });
        Ok(())
    }

    /// Handles the end of a connection that a neighbour's process has closed.
    pub(super) fn closed_there(&mut self, peer: Peer, closed: &v1::FifoClosed) {
        let way =
            FifoConnectionId { object: GlobalId::from_bits(closed.object), connection: closed.connection };
        let writer = self.fifos.get(&way.object).and_then(|fifo| fifo.writers.get(&way.connection));
        if writer.is_some_and(|(writer, _)| self.routes.get(&writer.pu) == Some(&peer)) {
            self.part(way, false);
        }
    }

    /// Gives up the connection of a neighbour's writer that has not come.
    pub(crate) fn give_up(&mut self, way: FifoConnectionId) {
        self.end_connection(way, Code::DeadlineExceeded);
    }

    /// Closes a descriptor whose connection could not be completed.
    pub(crate) fn undo(&mut self, at: ProcessDescriptor) {
        // The descriptor was allocated just now, so it can be closed.
        let _ = self.close(at);
    }

    /// Ends a connection on the reader's request.
    pub(super) fn cut(&mut self, at: ProcessDescriptor, connection: u32) -> Result<(), Error> {
        let FifoDescriptor::Reader(object) = self.described(at)? else {
            let message = format!("descriptor {} is not one that is read", at.descriptor);
            return Err(Error::new(Code::InvalidArgument, message));
        };
        self.end_connection(FifoConnectionId { object, connection }, Code::Protocol);
        Ok(())
    }

    /// Ends a writer's connection, and informs its process and the reader.
    fn end_connection(&mut self, way: FifoConnectionId, code: Code) {
        let FifoConnectionId { object, connection } = way;
        let Some(&(writer, descriptor)) =
            self.fifos.get(&object).and_then(|fifo| fifo.writers.get(&connection))
        else {
            return;
        };
        match descriptor {
            Some(descriptor) => {
                self.end_descriptor(ProcessDescriptor { process: writer, descriptor }, Some(way), code)
            }
            None => {
                if let Ok(peer) = self.route(writer) {
                    let (object, writer) = (object.to_bits(), writer.to_bits());
                    self.tell(
                        peer,
                        Body::Ended(v1::FifoEnded { object, connection, writer, code: code.number() }),
                    );
                }
            }
        }
        // The reader still reads all that a process has written before it died.
        self.part(way, code != Code::WorkerDied);
    }

    /// Ends all connections of a process to a FIFO.
    pub(super) fn end_writer(&mut self, object: GlobalId, writer: GlobalId, code: Code) {
        let Some(fifo) = self.fifos.get(&object) else { return };
        let of = fifo.writers.iter().filter(|(_, (by, _))| *by == writer);
        for connection in of.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.end_connection(FifoConnectionId { object, connection }, code);
        }
    }

    /// Handles the end of a connection of this agent's process, as the FIFO's agent reports it.
    pub(super) fn ended_there(&mut self, ended: &v1::FifoEnded) {
        let (object, writer) = (GlobalId::from_bits(ended.object), GlobalId::from_bits(ended.writer));
        let is_it = |what: &FifoDescriptor| matches!(what, FifoDescriptor::Writer { object: of, connection, .. } if (*of, *connection) == (object, ended.connection));
        let process = self.processes.get(&writer);
        let found = process.and_then(|process| process.descriptors.iter().find(|(_, what)| is_it(what)));
        if let Some((&descriptor, _)) = found {
            let way = FifoConnectionId { object, connection: ended.connection };
            self.end_descriptor(
                ProcessDescriptor { process: writer, descriptor },
                Some(way),
                Code::from_number(ended.code),
            );
            self.out.push_back(ShimEffect::Forget { way });
        }
    }

    /// Ends a descriptor. It stays allocated, without any use, until it is closed.
    fn end_descriptor(&mut self, at: ProcessDescriptor, way: Option<FifoConnectionId>, code: Code) {
        let process = self.processes.get_mut(&at.process);
        if let Some(FifoDescriptor::Writer { is_over, .. }) =
            process.and_then(|process| process.descriptors.get_mut(&at.descriptor))
        {
            *is_over = true;
        }
        self.out.push_back(ShimEffect::End { at, way, code });
    }

    /// Informs the reader that a connection has ended, and removes the connection.
    fn part(&mut self, way: FifoConnectionId, at_once: bool) {
        let reader = self.fifos.get(&way.object).and_then(|fifo| fifo.reader);
        if !self.drop_writer(way) {
            return;
        }
        if let Some((process, descriptor)) = reader {
            self.out.push_back(ShimEffect::Part {
                reader: ProcessDescriptor { process, descriptor },
                way,
                at_once,
            });
        }
        self.out.push_back(ShimEffect::Forget { way });
    }

    fn drop_writer(&mut self, way: FifoConnectionId) -> bool {
        let Some(fifo) = self.fifos.get_mut(&way.object) else { return false };
        let is_known = fifo.writers.remove(&way.connection).is_some();
        if is_known && let Some(reader) = fifo.reader.and_then(|(pid, _)| self.processes.get_mut(&pid)) {
            let bytes = fifo.shape.region_bytes();
            debug_assert!(
                bytes <= reader.rings_bytes,
                "{way:?} gives back {bytes} of {}",
                reader.rings_bytes
            );
            reader.rings_bytes = reader.rings_bytes.saturating_sub(bytes);
        }
        is_known
    }

    /// Ends the reading descriptor of a process whose right to read is revoked.
    pub(super) fn end_reader(&mut self, object: GlobalId, pid: GlobalId, code: Code) {
        let reader =
            self.fifos.get(&object).and_then(|fifo| fifo.reader).filter(|(reader, _)| *reader == pid);
        if let Some((process, descriptor)) = reader {
            let at = ProcessDescriptor { process, descriptor };
            self.out.push_back(ShimEffect::End { at, way: None, code });
            self.stop_reading(object, at);
        }
    }

    /// Removes the reader of a FIFO and ends the connections of its writers.
    fn stop_reading(&mut self, object: GlobalId, at: ProcessDescriptor) {
        let Some(fifo) = self.fifos.get(&object) else { return };
        if fifo.reader != Some((at.process, at.descriptor)) {
            return;
        }
        for connection in fifo.writers.keys().copied().collect::<Vec<_>>() {
            self.end_connection(FifoConnectionId { object, connection }, Code::LeaseEnded);
        }
        if let Some(fifo) = self.fifos.get_mut(&object) {
            debug_assert!(
                fifo.writers.is_empty(),
                "FIFO {object} has no reader, and the writers {:?}",
                fifo.writers
            );
            fifo.reader = None;
        }
    }

    /// Ends a FIFO without a reader if no process but its creator may read it.
    fn end_unread(&mut self, object: GlobalId) {
        let is_done = |fifo: &super::FifoState| {
            let mut others = fifo.rights.iter().filter(|(pid, _)| **pid != fifo.creator);
            fifo.reader.is_none() && !others.any(|(_, rights)| rights.contains(FifoRights::READ))
        };
        if self.fifos.get(&object).is_some_and(is_done) {
            self.end_fifo(object);
        }
    }

    /// Ends a FIFO whose creator is gone, or that no process can read any more.
    pub(super) fn end_fifo(&mut self, object: GlobalId) {
        if let Some((process, descriptor)) = self.fifos.get(&object).and_then(|fifo| fifo.reader) {
            let at = ProcessDescriptor { process, descriptor };
            self.out.push_back(ShimEffect::End { at, way: None, code: Code::LeaseEnded });
            self.stop_reading(object, at);
        }
        let Some(fifo) = self.fifos.remove(&object) else { return };
        if let Some(creator) = self.processes.get_mut(&fifo.creator) {
            creator.fifos.remove(&object);
        }
        if let Some(name) = &fifo.name {
            self.release_name(name, object);
        }
    }
}

//! A client's end of its conversations with a manager and an agent, message by message, for tests that say what no
//! library would.

use std::net::TcpStream;

use prost::Message;
use sublet::{Access, Code, Error};
use sublet_fabric::connection::Connection;
use sublet_fabric::greeting::{self, ConnectionPurpose};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::remote::RemoteSocket;
use sublet_proto::v1::agent_to_client::Body as Heard;
use sublet_proto::v1::client_to_agent::Body as Said;
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::{AgentToClient, Attach, ClientToAgent, LeaseGrant, LeaseRequest, Release};
use tokio::runtime::Builder;

use crate::process::PATIENCE;

/// Asks the first manager of an access for a core, once, and no other manager, as a client that knows the package does.
///
/// # Errors
/// What the manager says.
pub fn ask(access: &Access, package: &str) -> Result<LeaseGrant, Error> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let request = LeaseRequest { package: package.into(), cores: 1, ..LeaseRequest::default() };
    let request = access.authorize(tonic::Request::new(request));
    let answer = runtime.block_on(async {
        let channel = access.channel(0).unwrap_or_else(|error| panic!("{error}"));
        ManagerClient::new(channel).request_lease(request).await
    });
    Ok(answer.map_err(|status| Error::from_status(&status))?.into_inner().grants.remove(0))
}

/// A connection to an agent.
pub struct ByHand(Connection);

impl ByHand {
    /// Connects to the agent of a grant's node, on its machine.
    pub fn to(grant: &LeaseGrant) -> ByHand {
        let path = grant.agent.strip_prefix("unix:").expect("an agent has a Unix socket");
        ByHand(PacketSocket::connect(path).unwrap_or_else(|error| panic!("{path}: {error}")).into())
    }

    /// Connects to the agent of a grant's node, as from another machine.
    pub fn from_afar(grant: &LeaseGrant) -> ByHand {
        let network = grant.network.as_ref().expect("the node is on a network");
        let socket = TcpStream::connect(&network.address).expect("the agent listens");
        greeting::greet(&socket, &ConnectionPurpose::Control, None).unwrap_or_else(|error| panic!("{error}"));
        let agent = RemoteSocket::connect(socket, &network.certificate);
        ByHand(agent.unwrap_or_else(|error| panic!("{error}")).into())
    }

    /// Shows a ticket to an agent, and gives the connection and the answer to it.
    pub fn show(grant: &LeaseGrant, ticket: &[u8]) -> (ByHand, Result<Heard, Error>) {
        let agent = ByHand::to(grant);
        agent.say(Said::Attach(Attach { ticket: ticket.to_vec(), ..Attach::default() }));
        let heard = agent.hear();
        (agent, heard)
    }

    /// Says something.
    pub fn say(&self, body: Said) {
        let message = ClientToAgent { body: Some(body) }.encode_to_vec();
        self.0.send(&message, &[]).unwrap_or_else(|error| panic!("cannot send to the agent: {error}"));
    }

    /// The next message; a failure or the lease's end as an error.
    pub fn hear(&self) -> Result<Heard, Error> {
        let packet =
            self.0.receive(Some(PATIENCE)).unwrap_or_else(|error| panic!("the agent is silent: {error}"));
        let gone = || Error::new(Code::AgentUnreachable, "the agent closed the connection");
        let message = AgentToClient::decode(packet.ok_or_else(gone)?.bytes.as_slice());
        let failed = |code, message| Err(Error::new(Code::from_number(code), message));
        match message.expect("an agent's message").body.expect("a message says something") {
            Heard::Failure(failure) => failed(failure.code, failure.message),
            Heard::LeaseEnded(ended) if ended.code != 0 => failed(ended.code, ended.reason),
            heard => Ok(heard),
        }
    }

    /// Gives the lease back, and waits for its end.
    pub fn release(&self) {
        self.say(Said::Release(Release {}));
        while !matches!(self.hear(), Ok(Heard::LeaseEnded(_)) | Err(_)) {}
    }

    /// The socket itself.
    pub fn socket(&self) -> &Connection {
        &self.0
    }
}

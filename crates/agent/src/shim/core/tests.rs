//! Property tests of the shim's core: several agents that exchange messages in any order.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// Several agents whose messages are delivered only on demand.
struct Computer {
    cores: Vec<ShimCore>,
    /// Messages under way, from one agent to another.
    wires: BTreeMap<(usize, usize), VecDeque<v1::ShimMessage>>,
    up: BTreeSet<(usize, usize)>,
    /// First messages of which not all parts have arrived.
    begun: BTreeMap<(usize, usize), v1::ShimSync>,
    answers: HashMap<(GlobalId, Tag), Result<u64, Error>>,
    others: Vec<ShimEffect>,
    tag: Tag,
}

const NODES: [&str; 3] = ["here", "there", "yonder"];

fn unit(index: usize) -> u32 {
    index as u32 + 1
}

impl Computer {
    fn new(agents: usize) -> Computer {
        let cores = (0..agents)
            .map(|index| ShimCore::new((NODES[index], pu::PROCESSOR), format!("{index}"), &[unit(index)], 1))
            .collect();
        let (wires, up, begun, answers) = Default::default();
        let mut computer = Computer { cores, wires, up, begun, answers, others: Vec::new(), tag: 0 };
        for one in 0..agents {
            for other in one + 1..agents {
                computer.link(one, other);
            }
        }
        computer.deliver_all();
        computer
    }

    /// Links two agents. Each sends the other all that it knows; these messages are under way afterwards.
    fn link(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            self.wires.insert((from, to), VecDeque::new());
            self.up.insert((from, to));
            self.cores[from].greet(unit(to), NODES[to], &[unit(to)]);
        }
        self.settle();
    }

    fn unlink(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            self.up.remove(&(from, to));
            self.begun.remove(&(from, to));
            self.wires.remove(&(from, to));
            self.cores[to].unlinked(unit(from));
        }
        self.settle();
    }

    /// Carries out the effects of the cores; messages wait on their wires.
    fn settle(&mut self) {
        for index in 0..self.cores.len() {
            let effects: Vec<ShimEffect> = std::iter::from_fn(|| self.cores[index].next_effect()).collect();
            for effect in effects {
                match effect {
                    ShimEffect::Tell { peer, message } => {
                        let wire = self.wires.get_mut(&(index, peer as usize - 1));
                        wire.expect("messages go only to linked peers").push_back(message);
                    }
                    ShimEffect::Answer { process, tag, answer } => {
                        assert!(self.answers.insert((process, tag), answer).is_none(), "answered twice");
                    }
                    ShimEffect::Read { at, tag, object, .. } => {
                        self.answers.insert((at.process, tag), Ok(object.to_bits()));
                    }
                    ShimEffect::Join { writer, tag, .. } => {
                        self.answers.insert((writer.process, tag), Ok(u64::from(writer.descriptor)));
                    }
                    ShimEffect::Dial { at, tag, .. } => {
                        self.answers.insert((at.process, tag), Ok(u64::from(at.descriptor)));
                    }
                    ShimEffect::Invite { way, reader, peer, token, .. } => {
                        let (connection, reader) = (way.connection, reader.process.to_bits());
                        let invited =
                            v1::FifoInvited { token, connection, reader, ..v1::FifoInvited::default() };
                        let message = said(shim_message::Body::Invited(invited));
                        self.wires.get_mut(&(index, peer as usize - 1)).unwrap().push_back(message);
                    }
                    effect => self.others.push(effect),
                }
            }
        }
    }

    /// Delivers one message.
    fn deliver(&mut self, (from, to): (usize, usize)) {
        if let Some(message) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
            match message.body {
                Some(shim_message::Body::Sync(sync)) => self.hear_first((from, to), sync),
                body => self.cores[to].heard(unit(from), v1::ShimMessage { body }).unwrap(),
            }
            self.settle();
        }
    }

    fn hear_first(&mut self, wire: (usize, usize), sync: v1::ShimSync) {
        let begun = self.begun.remove(&wire).unwrap_or_default();
        let (names, rights) = ([begun.names, sync.names].concat(), [begun.rights, sync.rights].concat());
        let all = v1::ShimSync { names, rights, ..sync };
        if all.more {
            self.begun.insert(wire, all);
            return;
        }
        let (from, to) = wire;
        self.cores[to].linked(unit(from), &all, &[unit(from)]).unwrap();
    }

    fn deliver_all(&mut self) {
        while let Some(wire) =
            self.wires.iter().find(|(_, waiting)| !waiting.is_empty()).map(|(wire, _)| *wire)
        {
            self.deliver(wire);
        }
    }

    fn enter(&mut self, agent: usize, tenant: &str) -> GlobalId {
        self.cores[agent].enter(tenant, unit(agent), 1 << 20).unwrap()
    }

    fn core(&mut self, id: GlobalId) -> &mut ShimCore {
        &mut self.cores[id.pu as usize - 1]
    }

    /// Makes a call, without waiting for its answer.
    fn begin(&mut self, by: GlobalId, call: ShimCall) -> Tag {
        self.tag += 1;
        let tag = self.tag;
        self.core(by).call(by, tag, call);
        self.settle();
        tag
    }

    fn call(&mut self, by: GlobalId, call: ShimCall) -> Result<u64, Error> {
        let tag = self.begin(by, call);
        self.deliver_all();
        self.answers.remove(&(by, tag)).expect("a call is answered when all messages have come")
    }

    fn init(&mut self, by: GlobalId, name: &str) -> Result<GlobalId, Error> {
        self.call(by, init(name)).map(GlobalId::from_bits)
    }

    fn rights_of(&mut self, by: GlobalId, object: GlobalId) -> FifoRights {
        FifoRights::from_bits(self.call(by, ShimCall::Rights { object }).unwrap() as u32).unwrap()
    }
}

/// A message of one agent to another.
fn said(body: shim_message::Body) -> v1::ShimMessage {
    v1::ShimMessage { body: Some(body) }
}

fn init(name: &str) -> ShimCall {
    ShimCall::Init { name: name.into(), shape: FifoShape::default() }
}

fn connect(name: &str) -> ShimCall {
    ShimCall::Connect { to: FifoTarget::Named(name.into()) }
}

fn grant(to: GlobalId, object: GlobalId, rights: FifoRights) -> ShimCall {
    ShimCall::Grant { to, object, rights }
}

#[test]
fn only_processes_with_the_right_connect_from_any_unit() {
    let mut computer = Computer::new(2);
    let (reader, near, far) = (computer.enter(0, "t"), computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "frames").unwrap();
    for writer in [near, far] {
        let refused = computer.call(writer, connect("frames")).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        assert!(refused.message.contains(&writer.to_string()), "{refused}");
        // A right other than to write is not enough, and a process without the right to own grants nothing.
        computer.call(reader, grant(writer, object, FifoRights::READ)).unwrap();
        assert_eq!(computer.call(writer, connect("frames")).unwrap_err().code, Code::PermissionDenied);
        let refused = computer.call(writer, grant(writer, object, FifoRights::WRITE)).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        computer.call(reader, grant(writer, object, FifoRights::WRITE)).unwrap();
        assert_eq!(computer.rights_of(writer, object), FifoRights::READ | FifoRights::WRITE);
        computer.call(writer, connect("frames")).unwrap();
    }
    // A process with the right to own grants from any unit, and revokes rights of others.
    computer.call(reader, grant(far, object, FifoRights::OWN)).unwrap();
    let another = computer.enter(1, "t");
    computer.call(far, grant(another, object, FifoRights::WRITE)).unwrap();
    computer.call(another, connect("frames")).unwrap();
    computer.call(far, ShimCall::Revoke { from: near, object, rights: FifoRights::WRITE }).unwrap();
    assert_eq!(computer.rights_of(near, object), FifoRights::READ);
    assert_eq!(computer.call(near, connect("frames")).unwrap_err().code, Code::PermissionDenied);
}

#[test]
fn refuses_a_spawn_with_rights_the_parent_cannot_grant() {
    let mut computer = Computer::new(2);
    let (owner, parent) = (computer.enter(0, "t"), computer.enter(0, "t"));
    let object = computer.init(owner, "f").unwrap();
    computer.call(owner, grant(parent, object, FifoRights::READ | FifoRights::WRITE)).unwrap();
    let program = v1::Program { path: "bin/child".into(), ..v1::Program::default() };
    for on in [0, 1] {
        let capabilities = vec![(object, FifoRights::WRITE)];
        let spawn =
            SpawnRequest { unit: unit(on), program: program.clone(), package: String::new(), capabilities };
        let refused = computer.call(parent, ShimCall::Spawn(Box::new(spawn.clone()))).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        assert!(refused.message.contains("no right to own"), "{refused}");
        assert_eq!(computer.others, [], "and nothing is leased");
        computer.begin(owner, ShimCall::Spawn(Box::new(spawn)));
        assert!(matches!(computer.others.pop(), Some(ShimEffect::Spawn { by, .. }) if by == owner));
    }
}

#[test]
fn a_program_is_one_of_its_package() {
    let mut computer = Computer::new(2);
    let parent = computer.enter(0, "t");
    for path in ["../child", "/bin/sh", "bin/../../sh"] {
        let program = v1::Program { path: path.into(), ..v1::Program::default() };
        let spawn = SpawnRequest { unit: unit(1), program, package: String::new(), capabilities: vec![] };
        let refused = computer.call(parent, ShimCall::Spawn(Box::new(spawn))).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.contains(path), "{refused}");
        assert_eq!(computer.others, [], "and nothing is leased");
    }
}

#[test]
fn revoking_ends_connections_before_it_is_answered() {
    let mut computer = Computer::new(2);
    let (reader, near, far) = (computer.enter(0, "t"), computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "f").unwrap();
    for writer in [near, far] {
        computer.call(reader, grant(writer, object, FifoRights::WRITE)).unwrap();
        let descriptor = computer.call(writer, connect("f")).unwrap() as u32;
        computer.others.clear();
        let tag =
            computer.begin(reader, ShimCall::Revoke { from: writer, object, rights: FifoRights::WRITE });
        // The connection ends at once where the FIFO is, whatever the other agent does.
        let parted = |effect: &ShimEffect| matches!(effect, ShimEffect::Part { at_once: true, .. });
        assert!(computer.others.iter().any(parted), "{:?}", computer.others);
        assert_eq!(computer.answers.contains_key(&(reader, tag)), writer == near);
        computer.deliver_all();
        computer.answers.remove(&(reader, tag)).unwrap().unwrap();
        let at = ProcessDescriptor { process: writer, descriptor };
        let ended = |effect: &ShimEffect| matches!(effect, ShimEffect::End { at: of, code: Code::PermissionDenied, .. } if *of == at);
        assert!(computer.others.iter().any(ended), "{:?}", computer.others);
        // It is closed once, and not twice.
        computer.call(writer, ShimCall::Close { descriptor }).unwrap();
        let again = computer.call(writer, ShimCall::Close { descriptor }).unwrap_err();
        assert_eq!((again.code, again.message.contains("not open")), (Code::InvalidArgument, true));
    }
}

#[test]
fn revokes_the_right_of_an_unreachable_process_at_once() {
    let mut computer = Computer::new(2);
    let (reader, far) = (computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "f").unwrap();
    computer.call(reader, grant(far, object, FifoRights::WRITE)).unwrap();
    computer.call(far, connect("f")).unwrap();
    // On its way, the answer is lost with the link.
    let tag = computer.begin(reader, ShimCall::Revoke { from: far, object, rights: FifoRights::WRITE });
    computer.unlink(0, 1);
    computer.answers.remove(&(reader, tag)).unwrap().unwrap();
    let granted = computer.call(reader, grant(far, object, FifoRights::WRITE)).unwrap_err();
    assert_eq!(granted.code, Code::AgentUnreachable);
    computer.call(reader, ShimCall::Revoke { from: far, object, rights: FifoRights::ALL }).unwrap();
    assert_eq!(computer.call(far, connect("f")).unwrap_err().code, Code::InvalidArgument);
    let by_id = ShimCall::Connect { to: FifoTarget::Object(object) };
    assert_eq!(computer.call(far, by_id).unwrap_err().code, Code::AgentUnreachable);
    computer.link(0, 1);
    computer.deliver_all();
    assert_eq!(computer.rights_of(far, object), FifoRights::NONE);
    assert_eq!(computer.call(far, connect("f")).unwrap_err().code, Code::PermissionDenied);
}

#[test]
fn sends_no_answer_to_an_unreachable_requester() {
    let mut computer = Computer::new(2);
    let (reader, far) = (computer.enter(0, "t"), computer.enter(1, "t"));
    let (another, object) = (computer.enter(1, "t"), computer.init(reader, "f").unwrap());
    computer.call(reader, grant(far, object, FifoRights::OWN)).unwrap();
    // It waits for the agent that has asked for it, in its turn, when the link is lost.
    let tag = computer.begin(far, grant(another, object, FifoRights::WRITE));
    computer.deliver((1, 0));
    computer.unlink(0, 1);
    assert_eq!(computer.answers.remove(&(far, tag)).unwrap().unwrap_err().code, Code::AgentUnreachable);
    assert_eq!(computer.cores[0].fifos[&object].rights_of(another), FifoRights::NONE);
    computer.link(0, 1);
    computer.deliver_all();
    assert_eq!(computer.rights_of(another, object), FifoRights::NONE);
}

#[test]
fn what_is_granted_twice_and_fails_twice_is_not_granted() {
    let mut computer = Computer::new(2);
    let (reader, far) = (computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "f").unwrap();
    let tags = [0; 2].map(|_| computer.begin(reader, grant(far, object, FifoRights::WRITE)));
    computer.unlink(0, 1);
    for tag in tags {
        assert_eq!(
            computer.answers.remove(&(reader, tag)).unwrap().unwrap_err().code,
            Code::AgentUnreachable
        );
    }
    assert_eq!(computer.cores[0].fifos[&object].rights_of(far), FifoRights::NONE);
}

#[test]
fn revokes_a_right_that_is_being_announced() {
    let mut computer = Computer::new(2);
    let (reader, far) = (computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "f").unwrap();
    computer.call(reader, grant(far, object, FifoRights::WRITE)).unwrap();
    computer.unlink(0, 1);
    computer.link(0, 1);
    let tag = computer.begin(reader, ShimCall::Revoke { from: far, object, rights: FifoRights::WRITE });
    computer.answers.remove(&(reader, tag)).unwrap().unwrap();
    computer.deliver_all();
    assert_eq!(computer.rights_of(far, object), FifoRights::NONE);
}

#[test]
fn tenants_have_separate_names_and_grant_each_other_nothing() {
    let mut computer = Computer::new(2);
    let (ours, theirs, far) = (computer.enter(0, "a"), computer.enter(0, "b"), computer.enter(1, "b"));
    let object = computer.init(ours, "name").unwrap();
    computer.init(theirs, "name").unwrap();
    assert_eq!(computer.init(far, "name").unwrap_err().code, Code::AlreadyAllocated);
    for other in [theirs, far, GlobalId { pu: 2, local: 4711 }] {
        let refused = computer.call(ours, grant(other, object, FifoRights::WRITE)).unwrap_err();
        assert_eq!(
            (refused.code, refused.message),
            (Code::InvalidArgument, format!("there is no process {other}"))
        );
        assert_eq!(computer.rights_of(ours, object), FifoRights::ALL);
    }
    let nowhere = GlobalId { pu: 9, local: 1 };
    assert_eq!(
        computer.call(ours, grant(nowhere, object, FifoRights::READ)).unwrap_err().code,
        Code::AgentUnreachable
    );
}

#[test]
fn a_fifo_of_another_tenant_does_not_exist() {
    let mut computer = Computer::new(1);
    let (ours, theirs) = (computer.enter(0, "a"), computer.enter(0, "b"));
    let object = computer.init(ours, "name").unwrap();
    for call in [
        ShimCall::Connect { to: FifoTarget::Object(object) },
        ShimCall::ConnectToRead { to: FifoTarget::Object(object) },
        grant(theirs, object, FifoRights::WRITE),
        ShimCall::Revoke { from: ours, object, rights: FifoRights::READ },
    ] {
        let refused = computer.call(theirs, call).unwrap_err();
        assert_eq!(refused.message, format!("there is no FIFO {object}"));
    }
}

#[test]
fn one_of_two_concurrent_claims_gets_the_name() {
    for order in 0..6 {
        let mut computer = Computer::new(3);
        let (low, high) = (computer.enter(0, "t"), computer.enter(1, "t"));
        let tags = [(low, computer.begin(low, init("n"))), (high, computer.begin(high, init("n")))];
        let mut wires = [(0, 1), (1, 0), (0, 2), (1, 2), (2, 0), (2, 1)];
        wires.rotate_left(order);
        for _ in 0..8 {
            wires.into_iter().for_each(|wire| computer.deliver(wire));
        }
        let outcomes = tags.map(|call| computer.answers.remove(&call).unwrap());
        assert!(outcomes[0].is_ok(), "who has the lower id wins: {outcomes:?}");
        assert_eq!(outcomes[1].as_ref().unwrap_err().code, Code::AlreadyAllocated);
        let somebody = computer.enter(2, "t");
        let object = GlobalId::from_bits(*outcomes[0].as_ref().unwrap());
        computer.call(low, grant(somebody, object, FifoRights::WRITE)).unwrap();
        computer.call(somebody, connect("n")).unwrap();
    }
}

#[test]
fn the_lower_id_keeps_a_name_taken_twice_while_apart() {
    let mut computer = Computer::new(2);
    let (low, high, writer) = (computer.enter(0, "t"), computer.enter(1, "t"), computer.enter(1, "t"));
    computer.unlink(0, 1);
    let (kept, lost) = (computer.init(low, "n").unwrap(), computer.init(high, "n").unwrap());
    computer.call(high, grant(writer, lost, FifoRights::WRITE)).unwrap();
    computer.call(writer, connect("n")).unwrap();
    computer.link(0, 1);
    computer.deliver_all();
    computer.cores.iter_mut().for_each(ShimCore::tick);
    computer.settle();
    computer.deliver_all();
    // The other FIFO continues, and is reached by its id.
    let refused = computer.call(writer, connect("n")).unwrap_err();
    assert!(
        refused.code == Code::PermissionDenied && refused.message.contains(&kept.to_string()),
        "{refused}"
    );
    computer.call(writer, ShimCall::Connect { to: FifoTarget::Object(lost) }).unwrap();
}

#[test]
fn an_agent_that_returns_anew_has_none_of_its_processes() {
    let mut computer = Computer::new(2);
    let (reader, far) = (computer.enter(0, "t"), computer.enter(1, "t"));
    let (object, theirs) = (computer.init(reader, "f").unwrap(), computer.init(far, "g").unwrap());
    computer.call(reader, grant(far, object, FifoRights::WRITE)).unwrap();
    computer.call(far, grant(reader, theirs, FifoRights::WRITE)).unwrap();
    computer.call(far, connect("f")).unwrap();
    let descriptor = computer.call(reader, connect("g")).unwrap() as u32;
    computer.unlink(0, 1);
    computer.cores[1] = ShimCore::new((NODES[1], pu::PROCESSOR), "anew".into(), &[2], 100);
    assert!(computer.cores[0].peers.is_empty());
    computer.others.clear();
    computer.link(0, 1);
    computer.deliver_all();
    assert!(computer.others.iter().any(|effect| matches!(effect, ShimEffect::Part { at_once: false, .. })));
    let at = ProcessDescriptor { process: reader, descriptor };
    assert!(
        computer.others.iter().any(|effect| matches!(effect, ShimEffect::End { at: of, .. } if *of == at))
    );
    let anew = computer.enter(1, "t");
    assert_eq!((computer.rights_of(reader, theirs), anew.local), (FifoRights::NONE, 100));
    assert_eq!(computer.cores[0].fifos[&object].rights.len(), 1);
    assert!(computer.cores[0].fifos[&object].writers.is_empty());
    computer.init(anew, "g").unwrap();
}

#[test]
fn an_ended_process_loses_its_fifos_and_rights() {
    let mut computer = Computer::new(2);
    let (reader, near, far) = (computer.enter(0, "t"), computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(reader, "f").unwrap();
    for writer in [near, far] {
        computer.call(reader, grant(writer, object, FifoRights::WRITE)).unwrap();
        computer.call(writer, connect("f")).unwrap();
    }
    computer.others.clear();
    computer.cores[0].leave(near);
    computer.settle();
    // The reader still reads what the process has written before.
    assert!(computer.others.iter().any(|effect| matches!(effect, ShimEffect::Part { at_once: false, .. })));
    computer.cores[0].leave(reader);
    computer.settle();
    computer.deliver_all();
    let ended = |effect: &ShimEffect| matches!(effect, ShimEffect::End { at, code: Code::LeaseEnded, .. } if at.process == far);
    assert!(computer.others.iter().any(ended), "{:?}", computer.others);
    // The copy of the name is stale until the agent has told, and harmless.
    assert_eq!(computer.call(far, connect("f")).unwrap_err().code, Code::InvalidArgument);
    computer.init(far, "f").unwrap();
    assert!(computer.cores[0].processes.is_empty() && computer.cores[0].fifos.is_empty());
}

#[test]
fn reader_can_change_and_writers_learn_when_it_is_gone() {
    let mut computer = Computer::new(2);
    let (creator, next, far) = (computer.enter(0, "t"), computer.enter(0, "t"), computer.enter(1, "t"));
    let object = computer.init(creator, "f").unwrap();
    let to_read = || ShimCall::ConnectToRead { to: FifoTarget::Named("f".into()) };
    assert_eq!(computer.call(next, to_read()).unwrap_err().code, Code::PermissionDenied);
    computer.call(creator, grant(next, object, FifoRights::READ)).unwrap();
    assert_eq!(computer.call(next, to_read()).unwrap_err().code, Code::AlreadyAllocated);
    computer.call(creator, grant(far, object, FifoRights::READ | FifoRights::WRITE)).unwrap();
    let written = computer.call(far, connect("f")).unwrap() as u32;
    computer.others.clear();
    computer.call(creator, ShimCall::Close { descriptor: 0 }).unwrap();
    let at = ProcessDescriptor { process: far, descriptor: written };
    let ended = |effect: &ShimEffect| matches!(effect, ShimEffect::End { at: of, code: Code::LeaseEnded, .. } if *of == at);
    assert!(computer.others.iter().any(ended));
    assert_eq!(computer.call(far, connect("f")).unwrap_err().code, Code::TryLater);
    assert_eq!(
        computer.call(far, to_read()).unwrap_err().code,
        Code::InvalidArgument,
        "not from another unit"
    );
    computer.call(next, to_read()).unwrap();
    computer.call(far, connect("f")).unwrap();
    // And when the right to read is revoked.
    computer.call(creator, ShimCall::Revoke { from: next, object, rights: FifoRights::READ }).unwrap();
    assert_eq!(computer.call(far, connect("f")).unwrap_err().code, Code::TryLater);
}

#[test]
fn a_neighbour_speaks_for_itself_alone() {
    let mut computer = Computer::new(3);
    let (ours, third) = (computer.enter(0, "t"), computer.enter(2, "t"));
    let object = computer.init(ours, "f").unwrap();
    computer.call(ours, grant(third, object, FifoRights::WRITE | FifoRights::OWN)).unwrap();
    let (ours, third, object) = (ours.to_bits(), third.to_bits(), object.to_bits());
    let name = |object| v1::FifoName { tenant: "t".into(), name: "x".into(), object };
    let elsewhere = 3 << 32 | 9;
    for lie in [
        shim_message::Body::Change(v1::RightsChange {
            by: third,
            process: third,
            object,
            rights: 2,
            ..v1::RightsChange::default()
        }),
        shim_message::Body::Change(v1::RightsChange {
            by: ours,
            process: ours,
            object,
            rights: 2,
            ..v1::RightsChange::default()
        }),
        shim_message::Body::Connect(v1::FifoConnect { token: 1, object, writer: third }),
        shim_message::Body::Claim(v1::NameClaim { token: 1, name: Some(name(elsewhere)) }),
        shim_message::Body::Claim(v1::NameClaim { token: 1, name: None }),
        shim_message::Body::Update(v1::RightsUpdate {
            process: ours,
            object: elsewhere,
            ..v1::RightsUpdate::default()
        }),
        shim_message::Body::Ended(v1::FifoEnded {
            object: elsewhere,
            writer: ours,
            ..v1::FifoEnded::default()
        }),
        shim_message::Body::Gone(v1::ShimGone { processes: vec![third], names: vec![] }),
        shim_message::Body::Gone(v1::ShimGone { processes: vec![], names: vec![name(elsewhere)] }),
        shim_message::Body::Sync(v1::ShimSync::default()),
    ] {
        computer.cores[0].heard(2, said(lie.clone())).expect_err(&format!("{lie:?}"));
        assert_eq!(computer.cores[0].next_effect(), None, "{lie:?}");
    }
    let right = v1::RightsUpdate { process: ours, object: elsewhere, ..v1::RightsUpdate::default() };
    for (lie, why) in [
        (v1::ShimSync { units: vec![2, 3], ..v1::ShimSync::default() }, "unit 3"),
        (v1::ShimSync { kind: "A B".into(), ..v1::ShimSync::default() }, "of kind \"A B\""),
        (v1::ShimSync { names: vec![name(elsewhere)], ..v1::ShimSync::default() }, "not its own"),
        (v1::ShimSync { rights: vec![right], ..v1::ShimSync::default() }, "not its own"),
    ] {
        let refused = computer.cores[0].linked(2, &lie, &[2]).expect_err(why);
        assert!(refused.0.contains(why), "{lie:?}: {}", refused.0);
    }
    // Answers to what was not asked are nothing.
    for late in [
        shim_message::Body::Name(v1::NameAnswer { token: 77, holder: 0 }),
        shim_message::Body::Done(v1::ShimDone { token: 77, ..v1::ShimDone::default() }),
        shim_message::Body::Invited(v1::FifoInvited { token: 77, ..v1::FifoInvited::default() }),
        shim_message::Body::Closed(v1::FifoClosed { object, connection: 9 }),
    ] {
        computer.cores[0].heard(3, said(late)).unwrap();
        assert_eq!(computer.cores[0].next_effect(), None);
    }
}

#[test]
fn who_was_not_asked_answers_and_ends_nothing() {
    let mut computer = Computer::new(3);
    let (ours, third) = (computer.enter(0, "t"), computer.enter(2, "t"));
    let (object, theirs) = (computer.init(ours, "f").unwrap(), computer.init(third, "g").unwrap());
    computer.call(ours, grant(third, object, FifoRights::WRITE)).unwrap();
    computer.call(third, grant(ours, theirs, FifoRights::WRITE | FifoRights::OWN)).unwrap();
    computer.call(third, connect("f")).unwrap();
    let connection = *computer.cores[0].fifos[&object].writers.keys().next().unwrap();
    let closed = v1::FifoClosed { object: object.to_bits(), connection };
    computer.cores[0].heard(2, said(shim_message::Body::Closed(closed))).unwrap();
    assert_eq!(computer.cores[0].next_effect(), None);
    assert_eq!(computer.cores[0].fifos[&object].writers.len(), 1);
    for call in [grant(third, object, FifoRights::READ), grant(third, theirs, FifoRights::READ), connect("g")]
    {
        let tag = computer.begin(ours, call);
        let token = match computer.wires[&(0, 2)].back().and_then(|asked| asked.body.as_ref()) {
            Some(shim_message::Body::Update(update)) => update.token,
            Some(shim_message::Body::Change(change)) => change.token,
            Some(shim_message::Body::Connect(connect)) => connect.token,
            other => panic!("{other:?}"),
        };
        for answer in [
            shim_message::Body::Done(v1::ShimDone { token, ..v1::ShimDone::default() }),
            shim_message::Body::Done(v1::ShimDone { token, code: 10, message: "no".into() }),
            shim_message::Body::Invited(v1::FifoInvited { token, ..v1::FifoInvited::default() }),
        ] {
            computer.cores[0].heard(2, said(answer)).unwrap();
            assert_eq!(computer.cores[0].next_effect(), None);
        }
        computer.deliver_all();
        computer.answers.remove(&(ours, tag)).unwrap().unwrap();
    }
}

#[test]
fn refuses_messages_before_the_first_sync() {
    let mut computer = Computer::new(2);
    computer.unlink(0, 1);
    computer.cores[0].greet(unit(1), NODES[1], &[unit(1)]);
    let alive = shim_message::Body::Alive(v1::ShimAlive { alive: true });
    let heard = computer.cores[0].heard(unit(1), said(alive));
    assert!(heard.unwrap_err().0.contains("does not begin"));
}

#[test]
fn finds_devices_by_name_of_linked_processors_only() {
    let node = |name: &str| [pu::PROCESSOR, "opencl0"].map(|unit| pu::id(name, unit));
    let (here, there) = (node(NODES[0]), node(NODES[1]));
    let mut core = ShimCore::new((NODES[0], pu::PROCESSOR), "start".into(), &here, 1);
    let found =
        |core: &ShimCore, processor, name: &str| core.device(processor, name).map_err(|error| error.code);
    assert_eq!(found(&core, here[0], "opencl0"), Ok(here[1]));
    assert_eq!(found(&core, here[1], "opencl0"), Ok(here[1]), "as a process on it asks");
    for none in ["cuda0", "opencl1", pu::PROCESSOR, ""] {
        assert_eq!(found(&core, here[0], none), Err(Code::InvalidArgument), "{none:?}");
    }
    assert_eq!(found(&core, there[0], "opencl0"), Err(Code::AgentUnreachable));
    core.greet(there[0], NODES[1], &there);
    assert_eq!(found(&core, there[0], "opencl0"), Err(Code::AgentUnreachable), "before it has answered");
    let sync = v1::ShimSync { instance: "its".into(), units: there.into(), ..v1::ShimSync::default() };
    core.linked(there[0], &sync, &there).unwrap();
    assert_eq!(found(&core, there[0], "opencl0"), Ok(there[1]));
    assert_eq!(found(&core, there[0], "cuda0"), Err(Code::InvalidArgument));
    core.unlinked(there[0]);
    assert_eq!(found(&core, there[0], "opencl0"), Err(Code::AgentUnreachable));
}

#[test]
fn finds_a_unit_of_a_kind_locally_before_linked_nodes() {
    let node = |name: &str, units: &[&str]| units.iter().map(|unit| pu::id(name, unit)).collect::<Vec<_>>();
    let here = node(NODES[0], &[pu::PROCESSOR]);
    let there = node(NODES[1], &[pu::PROCESSOR, "opencl0"]);
    let mut core = ShimCore::new((NODES[0], "cpu"), "start".into(), &here, 1);
    let found = |core: &ShimCore, kind: &str| core.unit_of(kind).map_err(|error| error.code);
    assert_eq!(found(&core, "cpu"), Ok(here[0]));
    for none in ["dpu", "opencl", "cuda", ""] {
        assert_eq!(found(&core, none), Err(Code::AgentUnreachable), "{none:?}");
    }
    core.greet(there[0], NODES[1], &there);
    assert_eq!(found(&core, "dpu"), Err(Code::AgentUnreachable), "before it has answered");
    let sync = |kind: &str| v1::ShimSync {
        instance: "its".into(),
        units: there.clone(),
        kind: kind.into(),
        ..v1::ShimSync::default()
    };
    for wrong in ["opencl", "a/b"] {
        assert!(core.linked(there[0], &sync(wrong), &there).unwrap_err().0.contains("kind"), "{wrong:?}");
    }
    core.linked(there[0], &sync("dpu"), &there).unwrap();
    assert_eq!((found(&core, "dpu"), found(&core, "opencl")), (Ok(there[0]), Ok(there[1])));
    assert_eq!(found(&core, "cpu"), Ok(here[0]));
    core.unlinked(there[0]);
    assert_eq!(found(&core, "dpu"), Err(Code::AgentUnreachable));
    let both = node(NODES[0], &[pu::PROCESSOR, "opencl3"]);
    let core = ShimCore::new((NODES[0], "dpu"), "start".into(), &both, 1);
    assert_eq!((found(&core, "dpu"), found(&core, "opencl")), (Ok(both[0]), Ok(both[1])));
}

#[test]
fn everything_of_a_process_has_a_bound() {
    let mut computer = Computer::new(1);
    let (reader, writer) = (computer.enter(0, "t"), computer.enter(0, "t"));
    let room = (1u64 << 20) / FifoShape::default().region_bytes();
    let object = computer.init(reader, "").unwrap();
    computer.call(reader, grant(writer, object, FifoRights::WRITE)).unwrap();
    let to = || ShimCall::Connect { to: FifoTarget::Object(object) };
    for _ in 0..room {
        computer.call(writer, to()).unwrap();
    }
    assert_eq!(computer.call(writer, to()).unwrap_err().code, Code::InsufficientResources);
    computer.call(writer, ShimCall::Close { descriptor: 0 }).unwrap();
    computer.call(writer, to()).unwrap();
    for _ in 1..MAX_FIFOS {
        computer.init(reader, "").unwrap();
    }
    assert_eq!(computer.init(reader, "").unwrap_err().code, Code::TooManyInFlight);
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    assert_eq!(computer.init(writer, &long).unwrap_err().code, Code::InvalidArgument);
    for wrong in [
        ShimCall::Close { descriptor: 99 },
        ShimCall::Object { descriptor: 99 },
        ShimCall::Cut { descriptor: 99, connection: 1 },
    ] {
        assert_eq!(computer.call(writer, wrong).unwrap_err().code, Code::InvalidArgument);
    }
    assert_eq!(
        computer.call(writer, ShimCall::Cut { descriptor: 1, connection: 1 }).unwrap_err().code,
        Code::InvalidArgument
    );
}

/// A random event.
#[derive(Clone, Debug)]
enum Step {
    Enter(usize),
    Leave(usize),
    Init(usize, u8),
    Grant(usize, usize, usize, u32),
    Revoke(usize, usize, usize, u32),
    Connect(usize, u8),
    Close(usize, u32),
    Deliver(usize, usize),
    Unlink(usize, usize),
    Link(usize, usize),
    Tick(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0usize..3;
    let any = || 0usize..64;
    prop_oneof![
        2 => agent().prop_map(Step::Enter),
        1 => any().prop_map(Step::Leave),
        4 => (any(), 0u8..4).prop_map(|(by, name)| Step::Init(by, name)),
        4 => (any(), any(), any(), 1u32..8).prop_map(|(by, to, of, rights)| Step::Grant(by, to, of, rights)),
        2 => (any(), any(), any(), 1u32..8).prop_map(|(by, from, of, rights)| Step::Revoke(by, from, of, rights)),
        4 => (any(), 0u8..4).prop_map(|(by, name)| Step::Connect(by, name)),
        2 => (any(), 0u32..4).prop_map(|(by, descriptor)| Step::Close(by, descriptor)),
        16 => (agent(), agent()).prop_map(|(from, to)| Step::Deliver(from, to)),
        1 => (agent(), agent()).prop_map(|(one, other)| Step::Unlink(one, other)),
        1 => (agent(), agent()).prop_map(|(one, other)| Step::Link(one, other)),
        1 => agent().prop_map(Step::Tick),
    ]
}

fn live(computer: &Computer) -> Vec<GlobalId> {
    let mut all: Vec<_> = computer.cores.iter().flat_map(|core| core.processes.keys().copied()).collect();
    all.sort_unstable();
    all
}

fn objects(computer: &Computer) -> Vec<GlobalId> {
    let mut all: Vec<_> = computer.cores.iter().flat_map(|core| core.fifos.keys().copied()).collect();
    all.sort_unstable();
    all
}

/// Names that FIFOs have on their own agents.
fn held(computer: &Computer) -> Vec<(TenantFifoName, GlobalId)> {
    let of = |core: &ShimCore| {
        let named = core.fifos.iter().filter_map(|(object, fifo)| Some((fifo.name.clone()?, *object)));
        named.filter(|(name, object)| core.held_here(name) == Some(*object)).collect::<Vec<_>>()
    };
    computer.cores.iter().flat_map(of).collect()
}

fn perform(computer: &mut Computer, step: &Step) {
    let processes = live(computer);
    let fifos = objects(computer);
    let process = |index: usize| processes.get(index % processes.len().max(1)).copied();
    let fifo = |index: usize| fifos.get(index % fifos.len().max(1)).copied();
    let linked = |computer: &Computer, one: usize, other: usize| computer.up.contains(&(one, other));
    let rights = |bits: &u32| FifoRights::from_bits(*bits).unwrap();
    match step {
        Step::Enter(agent) => drop(computer.enter(*agent, "t")),
        Step::Leave(which) => {
            if let Some(pid) = process(*which) {
                computer.core(pid).leave(pid);
                computer.settle();
            }
        }
        Step::Init(by, name) => {
            if let Some(by) = process(*by) {
                computer.begin(by, init(&format!("n{name}")));
            }
        }
        Step::Grant(by, to, of, bits) => {
            if let (Some(by), Some(to), Some(object)) = (process(*by), process(*to), fifo(*of)) {
                computer.begin(by, grant(to, object, rights(bits)));
            }
        }
        Step::Revoke(by, from, of, bits) => {
            if let (Some(by), Some(from), Some(object)) = (process(*by), process(*from), fifo(*of)) {
                computer.begin(by, ShimCall::Revoke { from, object, rights: rights(bits) });
            }
        }
        Step::Connect(by, name) => {
            if let Some(by) = process(*by) {
                computer.begin(by, connect(&format!("n{name}")));
            }
        }
        Step::Close(by, descriptor) => {
            if let Some(by) = process(*by) {
                computer.begin(by, ShimCall::Close { descriptor: *descriptor });
            }
        }
        Step::Deliver(from, to) => computer.deliver((*from, *to)),
        Step::Unlink(one, other) if linked(computer, *one, *other) => computer.unlink(*one, *other),
        Step::Link(one, other) if one != other && !linked(computer, *one, *other) => {
            computer.link(*one, *other)
        }
        Step::Tick(agent) => {
            computer.cores[*agent].tick();
            computer.settle();
        }
        Step::Unlink(..) | Step::Link(..) => {}
    }
}

/// Links all agents, and delivers all messages.
fn come_to_rest(computer: &mut Computer) {
    for one in 0..3 {
        for other in one + 1..3 {
            if !computer.up.contains(&(one, other)) {
                computer.link(one, other);
            }
        }
    }
    for _ in 0..3 {
        computer.deliver_all();
        computer.cores.iter_mut().for_each(ShimCore::tick);
        computer.settle();
    }
    computer.deliver_all();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn whatever_happens_all_agree_when_it_is_quiet(steps in proptest::collection::vec(step(), 1..160)) {
        let mut computer = Computer::new(3);
        let mut parted = false;
        for step in &steps {
            perform(&mut computer, step);
            parted |= matches!(step, Step::Unlink(one, other) if one != other);
            if !parted {
                let held = held(&computer);
                let names: BTreeSet<_> = held.iter().map(|(name, _)| name).collect();
                prop_assert_eq!(names.len(), held.len(), "two FIFOs have one name: {:?}", held);
            }
        }
        come_to_rest(&mut computer);
        let held: BTreeSet<_> = held(&computer).into_iter().collect();
        let processes: BTreeSet<_> = live(&computer).into_iter().collect();
        for core in &computer.cores {
            prop_assert!(core.pending.is_empty());
            prop_assert_eq!(&core.names.all(), &held);
            for (object, fifo) in &core.fifos {
                for (pid, rights) in &fifo.rights {
                    if !processes.contains(pid) { continue; }
                    let home = &computer.cores[pid.pu as usize - 1];
                    prop_assert_eq!(home.rights(*pid, *object), *rights, "{} of {}", object, pid);
                }
                for (writer, _) in fifo.writers.values() {
                    prop_assert!(fifo.rights_of(*writer).contains(FifoRights::WRITE) || !processes.contains(writer));
                }
            }
            for (pid, process) in &core.processes {
                for (object, rights) in &process.rights {
                    let home = computer.cores[object.pu as usize - 1].fifos.get(object);
                    prop_assert!(home.is_none_or(|fifo| fifo.rights_of(*pid) == *rights), "{} of {}", object, pid);
                }
            }
        }
        // Every call of a process that still exists was answered.
        let names: BTreeSet<_> = held.iter().map(|(name, _)| name).collect();
        prop_assert_eq!(names.len(), held.len());
    }
}

//! Simulates the delivery of a message: when it arrives, how often, whether at all.
//!
//! Delays have a long tail and are drawn for each message, so messages overtake each other. Links are cut one way or
//! both ways, and slowed, by the owner of the [`SimNetwork`]; the rest is the [`Weather`].

use super::random::Random;

/// Hosts on which clients live: what a partition can cut off.
pub const CLIENT_HOSTS: u8 = 16;

/// Conditions of all links at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Messages lost, of a million.
    pub loss_ppm: u32,
    /// Messages that arrive twice, of a million.
    pub duplicate_ppm: u32,
    /// The usual delay in microseconds; see [`Random::long_tail`].
    pub delay_us: u64,
}

impl Weather {
    /// Nothing is lost or doubled.
    pub const FAIR: Weather = Weather { loss_ppm: 0, duplicate_ppm: 0, delay_us: 100 };
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// A manager, by its number.
    Manager(u8),
    /// An agent, by its number.
    Agent(u32),
    /// A host of clients.
    Host(u8),
}

/// Fate of a message: the times at which it arrives, in microseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFate {
    /// The message never arrives.
    Lost,
    /// The message arrives once, after this time.
    Once(u64),
    /// The message arrives twice, after these times.
    Twice(u64, u64),
}

/// State of a link, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// The link is as the weather is.
    #[default]
    Open,
    /// Messages take up to seconds.
    Slow,
    /// Nothing passes.
    Cut,
}

/// Longest time that a message is on its way: then its connection is given up.
const LONGEST_DELAY_US: u64 = 30_000_000;
/// Factor by which a slow link multiplies the delay.
const SLOWNESS: u64 = 2_000;

/// All links.
#[derive(Debug)]
pub struct SimNetwork {
    /// Conditions of all links.
    pub weather: Weather,
    random: Random,
    agents: usize,
    managers: usize,
    /// Links from each party to each party; see [`SimNetwork::index`].
    links: Vec<LinkState>,
}

impl SimNetwork {
    /// All links open.
    pub fn new(managers: u8, agents: u32, weather: Weather, random: Random) -> SimNetwork {
        let (managers, agents) = (usize::from(managers), agents as usize);
        let between_managers_and_agents = 2 * managers * agents;
        let of_hosts = 2 * usize::from(CLIENT_HOSTS) * (managers + agents);
        let links = vec![LinkState::Open; between_managers_and_agents + of_hosts];
        SimNetwork { weather, random, agents, managers, links }
    }

    /// Draws what becomes of a message.
    pub fn send(&mut self, from: LinkEnd, to: LinkEnd) -> MessageFate {
        let slowness = match self.links[self.index(from, to)] {
            LinkState::Open => 1,
            LinkState::Slow => SLOWNESS,
            LinkState::Cut => return MessageFate::Lost,
        };
        let weather = self.weather;
        if weather.loss_ppm > 0 && self.random.chance_ppm(weather.loss_ppm) {
            return MessageFate::Lost;
        }
        let delay_us = (self.random.long_tail(weather.delay_us) * slowness).min(LONGEST_DELAY_US);
        if weather.duplicate_ppm > 0 && self.random.chance_ppm(weather.duplicate_ppm) {
            return MessageFate::Twice(delay_us, delay_us + self.random.long_tail(weather.delay_us * 16));
        }
        MessageFate::Once(delay_us)
    }

    #[cfg(test)]
    fn is_cut(&self, from: LinkEnd, to: LinkEnd) -> bool {
        self.links[self.index(from, to)] == LinkState::Cut
    }

    /// Sets one direction of a link.
    pub fn set(&mut self, from: LinkEnd, to: LinkEnd, link: LinkState) {
        let index = self.index(from, to);
        self.links[index] = link;
    }

    /// Opens all links.
    pub fn heal(&mut self) {
        self.links.fill(LinkState::Open);
    }

    /// Index of a link's direction. Managers talk to each other only through their store, and agents and clients do not
    /// talk among themselves.
    fn index(&self, from: LinkEnd, to: LinkEnd) -> usize {
        let hosts_at = 2 * self.managers * self.agents;
        let parties = self.managers + self.agents;
        let of_host = |host: u8, party: usize| hosts_at + 2 * (usize::from(host) * parties + party);
        match (from, to) {
            (LinkEnd::Agent(agent), LinkEnd::Manager(manager)) => {
                2 * (usize::from(manager) * self.agents + agent as usize)
            }
            (LinkEnd::Host(host), LinkEnd::Manager(manager)) => of_host(host, usize::from(manager)),
            (LinkEnd::Host(host), LinkEnd::Agent(agent)) => of_host(host, self.managers + agent as usize),
            (LinkEnd::Manager(_), LinkEnd::Agent(_))
            | (LinkEnd::Manager(_) | LinkEnd::Agent(_), LinkEnd::Host(_)) => self.index(to, from) + 1,
            _ => unreachable!("{from:?} does not talk to {to:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(weather: Weather) -> SimNetwork {
        SimNetwork::new(3, 50, weather, Random::from_seed(4))
    }

    fn pairs() -> Vec<(LinkEnd, LinkEnd)> {
        let managers = (0..3).map(LinkEnd::Manager);
        let agents = (0..50).map(LinkEnd::Agent);
        let hosts = (0..CLIENT_HOSTS).map(LinkEnd::Host);
        let to_managers = managers
            .flat_map(|manager| agents.clone().chain(hosts.clone()).map(move |party| (party, manager)));
        let to_agents =
            (0..50).flat_map(|agent| hosts.clone().map(move |host| (host, LinkEnd::Agent(agent))));
        to_managers.chain(to_agents).flat_map(|(a, b)| [(a, b), (b, a)]).collect()
    }

    #[test]
    fn each_direction_of_each_link_is_cut_alone() {
        let mut network = network(Weather::FAIR);
        let pairs = pairs();
        assert_eq!(pairs.len(), network.links.len());
        for &(from, to) in &pairs {
            network.set(from, to, LinkState::Cut);
            assert_eq!(network.send(from, to), MessageFate::Lost);
            let cut = pairs.iter().filter(|&&(from, to)| network.is_cut(from, to)).count();
            assert_eq!(cut, 1, "{from:?} to {to:?}");
            network.heal();
        }
    }

    #[test]
    fn weather_loses_doubles_and_delays() {
        let mut network = network(Weather { loss_ppm: 100_000, duplicate_ppm: 100_000, delay_us: 100 });
        let (from, to) = (LinkEnd::Agent(7), LinkEnd::Manager(1));
        let mut send = || network.send(from, to);
        let fates: Vec<MessageFate> = (0..10_000).map(|_| send()).collect();
        let lost = fates.iter().filter(|fate| **fate == MessageFate::Lost).count();
        let twice = fates.iter().filter(|fate| matches!(fate, MessageFate::Twice(..))).count();
        assert!((800..1200).contains(&lost) && (700..1100).contains(&twice), "{lost} lost, {twice} twice");
        network.set(from, to, LinkState::Slow);
        assert!(
            (0..100)
                .any(|_| matches!(network.send(from, to), MessageFate::Once(delay_us) if delay_us > 200_000))
        );
    }
}

//! Simulates the delivery of a message: when it arrives, how often, whether at all.
//!
//! Delays have a long tail and are drawn for each message, so messages overtake each other. Links are cut one way or
//! both ways, and slowed, by the owner of the [`Network`]; the rest is the [`Weather`].

use super::random::Random;

/// Hosts on which clients live: what a partition can cut off.
pub const CLIENT_HOSTS: usize = 16;

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
pub enum Party {
    /// A manager, by its number.
    Manager(u8),
    /// An agent, by its number.
    Agent(u32),
    /// A host of clients.
    Host(u8),
}

/// Fate of a message: the times at which it arrives, in microseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The message never arrives.
    Lost,
    /// The message arrives once, after this time.
    Once(u64),
    /// The message arrives twice, after these times.
    Twice(u64, u64),
}

/// State of a link, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
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
pub struct Network {
    /// Conditions of all links.
    pub weather: Weather,
    random: Random,
    agents: usize,
    managers: usize,
    /// Links from each party to each party; see [`Network::index`].
    links: Vec<Link>,
}

impl Network {
    /// All links open.
    pub fn new(managers: u8, agents: u32, weather: Weather, random: Random) -> Network {
        let (managers, agents) = (usize::from(managers), agents as usize);
        let between_managers_and_agents = 2 * managers * agents;
        let of_hosts = 2 * CLIENT_HOSTS * (managers + agents);
        let links = vec![Link::Open; between_managers_and_agents + of_hosts];
        Network { weather, random, agents, managers, links }
    }

    /// Draws what becomes of a message.
    pub fn send(&mut self, from: Party, to: Party) -> Fate {
        let slowness = match self.links[self.index(from, to)] {
            Link::Open => 1,
            Link::Slow => SLOWNESS,
            Link::Cut => return Fate::Lost,
        };
        let weather = self.weather;
        if weather.loss_ppm > 0 && self.random.chance_ppm(weather.loss_ppm) {
            return Fate::Lost;
        }
        let delay_us = (self.random.long_tail(weather.delay_us) * slowness).min(LONGEST_DELAY_US);
        if weather.duplicate_ppm > 0 && self.random.chance_ppm(weather.duplicate_ppm) {
            return Fate::Twice(delay_us, delay_us + self.random.long_tail(weather.delay_us * 16));
        }
        Fate::Once(delay_us)
    }

    #[cfg(test)]
    fn is_cut(&self, from: Party, to: Party) -> bool {
        self.links[self.index(from, to)] == Link::Cut
    }

    /// Sets one direction of a link.
    pub fn set(&mut self, from: Party, to: Party, link: Link) {
        let index = self.index(from, to);
        self.links[index] = link;
    }

    /// Opens all links.
    pub fn heal(&mut self) {
        self.links.fill(Link::Open);
    }

    /// Index of a link's direction. Managers talk to each other only through their store, and agents and clients do not
    /// talk among themselves.
    fn index(&self, from: Party, to: Party) -> usize {
        let hosts_at = 2 * self.managers * self.agents;
        let parties = self.managers + self.agents;
        let of_host = |host: u8, party: usize| hosts_at + 2 * (usize::from(host) * parties + party);
        match (from, to) {
            (Party::Agent(agent), Party::Manager(manager)) => {
                2 * (usize::from(manager) * self.agents + agent as usize)
            }
            (Party::Host(host), Party::Manager(manager)) => of_host(host, usize::from(manager)),
            (Party::Host(host), Party::Agent(agent)) => of_host(host, self.managers + agent as usize),
            (Party::Manager(_), Party::Agent(_)) | (Party::Manager(_) | Party::Agent(_), Party::Host(_)) => {
                self.index(to, from) + 1
            }
            _ => unreachable!("{from:?} does not talk to {to:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(weather: Weather) -> Network {
        Network::new(3, 50, weather, Random::from_seed(4))
    }

    fn pairs() -> Vec<(Party, Party)> {
        let managers = (0..3).map(Party::Manager);
        let agents = (0..50).map(Party::Agent);
        let hosts = (0..CLIENT_HOSTS as u8).map(Party::Host);
        let to_managers = managers
            .flat_map(|manager| agents.clone().chain(hosts.clone()).map(move |party| (party, manager)));
        let to_agents = (0..50).flat_map(|agent| hosts.clone().map(move |host| (host, Party::Agent(agent))));
        to_managers.chain(to_agents).flat_map(|(a, b)| [(a, b), (b, a)]).collect()
    }

    #[test]
    fn each_direction_of_each_link_is_cut_alone() {
        let mut network = network(Weather::FAIR);
        let pairs = pairs();
        assert_eq!(pairs.len(), network.links.len());
        for &(from, to) in &pairs {
            network.set(from, to, Link::Cut);
            assert_eq!(network.send(from, to), Fate::Lost);
            let cut = pairs.iter().filter(|&&(from, to)| network.is_cut(from, to)).count();
            assert_eq!(cut, 1, "{from:?} to {to:?}");
            network.heal();
        }
    }

    #[test]
    fn weather_loses_doubles_and_delays() {
        let mut network = network(Weather { loss_ppm: 100_000, duplicate_ppm: 100_000, delay_us: 100 });
        let (from, to) = (Party::Agent(7), Party::Manager(1));
        let mut send = || network.send(from, to);
        let fates: Vec<Fate> = (0..10_000).map(|_| send()).collect();
        let lost = fates.iter().filter(|fate| **fate == Fate::Lost).count();
        let twice = fates.iter().filter(|fate| matches!(fate, Fate::Twice(..))).count();
        assert!((800..1200).contains(&lost) && (700..1100).contains(&twice), "{lost} lost, {twice} twice");
        network.set(from, to, Link::Slow);
        assert!(
            (0..100).any(|_| matches!(network.send(from, to), Fate::Once(delay_us) if delay_us > 200_000))
        );
    }
}

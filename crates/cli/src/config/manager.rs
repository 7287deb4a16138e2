//! Configuration of `sublet manager`.

mod keys;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use sublet_manager::core::{Level, QueueLimits};
use sublet_manager::store::NatsOptions;
use sublet_manager::{ConnectionLimits, MAX_CONNECTIONS, ManagerOptions, Retention, StoreOptions, Tls};
use sublet_proto::price::Prices;
use sublet_proto::v1::Price;
use sublet_proto::{Error, to_usize};

use super::{ConfiguredProgram, EffectiveSettings, Schema};
use crate::cli::parse::{absolute, duration, size, switch, whole};

pub(crate) use keys::SCHEMA;

/// The program `sublet manager`.
pub(crate) struct ManagerProgram;

impl ConfiguredProgram for ManagerProgram {
    const SCHEMA: &'static Schema = &SCHEMA;
}

/// Maximum length of the name of a store in NATS.
const MAX_NATS_NAME_BYTES: usize = 32;

/// Converts the settings to the manager's options.
pub(crate) fn options(settings: &EffectiveSettings) -> Result<ManagerOptions, Error> {
    let state = settings.needed("state", absolute)?;
    let socket = settings.value("socket", absolute)?.unwrap_or_else(|| state.join("manager.sock"));
    let listen = settings.list("listen", address)?;
    Ok(ManagerOptions {
        socket,
        tls: tls(settings, &listen)?,
        advertise: settings.value("advertise", advertised)?,
        store: store(settings)?,
        prices: prices(settings)?,
        queue: queue(settings)?,
        connections: connections(settings)?,
        balanced_bytes: settings.value("pools.balanced", balanced)?,
        watermark_permille: settings.needed("pools.watermark", permille)?,
        retention: Retention {
            ledger: settings.needed("retention.ledger", retention)?,
            runs: settings.needed("retention.runs", retention)?,
            unfinished_runs: settings.needed("retention.unfinished_runs", retention)?,
        },
        level: level(settings)?,
        listen,
        state,
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an address with a port: write it as 0.0.0.0:7433 or [::]:7433"))
}

fn advertised(text: &str) -> Result<String, String> {
    let address: sublet_runtime::Address = text.parse().map_err(|error: Error| error.message)?;
    Ok(address.to_string())
}

/// Returns the manager's level. A global manager shares its store with those of the racks.
fn level(settings: &EffectiveSettings) -> Result<Level, Error> {
    let shares_store = matches!(store(settings)?, StoreOptions::Nats(_));
    match settings.needed("global", switch)? {
        true if !shares_store => Err(settings.invalid("global", "it requires store.kind nats")),
        true => Ok(Level::Global),
        false => Ok(Level::Rack),
    }
}

fn tls(settings: &EffectiveSettings, listen: &[SocketAddr]) -> Result<Tls, Error> {
    let given = settings.is_set("tls.certificate") || settings.is_set("tls.key");
    let mode = settings.value("tls.mode", |text| match text {
        "generated" | "files" | "off" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not valid: use generated, files or off")),
    })?;
    match mode.as_deref().unwrap_or(if given { "files" } else { "generated" }) {
        "files" => {
            let file = |name| settings.needed(name, absolute);
            if settings.is_set("tls.names") {
                return Err(settings.invalid("tls.names", "it applies only to generated certificates"));
            }
            Ok(Tls::Files { certificate: file("tls.certificate")?, key: file("tls.key")? })
        }
        _ if given => {
            let key = if settings.is_set("tls.certificate") { "tls.certificate" } else { "tls.key" };
            Err(settings.invalid(key, "it requires tls.mode files"))
        }
        "off" => match listen.iter().find(|address| !address.ip().is_loopback()) {
            Some(open) => Err(settings.invalid(
                "tls.mode",
                &format!("off is only allowed on loopback addresses, and {open} is not one"),
            )),
            None => Ok(Tls::Plain),
        },
        _ => Ok(Tls::Generated { names: settings.list("tls.names", |name| Ok(name.to_owned()))? }),
    }
}

fn store(settings: &EffectiveSettings) -> Result<StoreOptions, Error> {
    let kind = settings.needed("store.kind", |text| match text {
        "embedded" | "nats" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not valid: use embedded or nats")),
    })?;
    if kind == "nats" {
        return Ok(StoreOptions::Nats(NatsOptions {
            url: settings.needed("store.url", |text| Ok(text.to_owned()))?,
            name: settings.needed("store.name", nats_name)?,
            replicas: settings.needed("store.replicas", replicas)?,
            ca_file: settings.value("store.ca", absolute)?,
        }));
    }
    match ["store.url", "store.ca", "store.name", "store.replicas"]
        .into_iter()
        .find(|name| settings.is_set(name))
    {
        Some(name) => Err(settings.invalid(name, "it requires store.kind nats")),
        None => Ok(StoreOptions::Embedded),
    }
}

fn nats_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !text.is_empty() && text.len() <= MAX_NATS_NAME_BYTES && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is not a valid name: use 1 to {MAX_NATS_NAME_BYTES} letters, digits, - and _"))
}

fn replicas(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err(format!("{text:?} is not valid: use 1, 3 or 5")),
    }
}

fn prices(settings: &EffectiveSettings) -> Result<Prices, Error> {
    let default = Price {
        allocation_nano_per_gib_s: settings.needed("price.allocation", nano)?,
        compute_nano_per_core_s: settings.needed("price.compute", nano)?,
        polling_nano_per_core_s: settings.needed("price.polling", nano)?,
    };
    let mut by_pu = BTreeMap::new();
    for pu in settings.names_under("price.pu.") {
        let of = |what: &str, otherwise| {
            let price = settings.value(&format!("price.pu.{pu}.{what}"), nano)?;
            Ok::<_, Error>(price.unwrap_or(otherwise))
        };
        let price = Price {
            allocation_nano_per_gib_s: of("allocation", default.allocation_nano_per_gib_s)?,
            compute_nano_per_core_s: of("compute", default.compute_nano_per_core_s)?,
            polling_nano_per_core_s: of("polling", default.polling_nano_per_core_s)?,
        };
        by_pu.insert(pu.to_owned(), price);
    }
    Ok(Prices { default, by_pu })
}

fn nano(text: &str) -> Result<u64, String> {
    whole(text, 0..=u64::MAX)
}

fn queue(settings: &EffectiveSettings) -> Result<QueueLimits, Error> {
    let requests = |text: &str| whole(text, 0..=1 << 20).map(to_usize);
    let total = settings.needed("queue.total", requests)?;
    let per_tenant = settings.needed("queue.per_tenant", requests)?;
    if per_tenant > total && settings.is_set("queue.per_tenant") {
        let why = format!("{per_tenant} is more than queue.total ({total})");
        return Err(settings.invalid("queue.per_tenant", &why));
    }
    Ok(QueueLimits { total, per_tenant: per_tenant.min(total) })
}

/// Minimum number of connections.
const LEAST_CONNECTIONS: u64 = 64;

const _: () = assert!(LEAST_CONNECTIONS <= MAX_CONNECTIONS as u64, "the default is below the minimum");

fn connections(settings: &EffectiveSettings) -> Result<ConnectionLimits, Error> {
    let number = |text: &str| whole(text, 1..=1 << 20).map(to_usize);
    let total = |text: &str| whole(text, LEAST_CONNECTIONS..=1 << 20).map(to_usize);
    let limits = ConnectionLimits {
        total: settings.value("connections.total", total)?,
        unauthenticated: settings.value("connections.unauthenticated", number)?,
        per_address: settings.value("connections.per_address", number)?,
        per_tenant: settings.value("connections.per_tenant", number)?,
        handshake: settings.needed("connections.handshake", limit)?,
        first_request: settings.needed("connections.first_request", limit)?,
        idle: settings.needed("connections.idle", limit)?,
    };
    let total = limits.total.unwrap_or(MAX_CONNECTIONS);
    let most = limits.unauthenticated.unwrap_or(total / 4);
    let parts = [
        ("connections.unauthenticated", limits.unauthenticated, total / 4, "a quarter of connections.total"),
        ("connections.per_address", limits.per_address, most, "connections.unauthenticated"),
        ("connections.per_tenant", limits.per_tenant, total, "connections.total"),
    ];
    for (name, part, most, of) in parts {
        if let Some(part) = part.filter(|part| *part > most) {
            return Err(settings.invalid(name, &format!("{part} is more than {most} ({of})")));
        }
    }
    Ok(limits)
}

/// Parses a time limit of connections.
fn limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < Duration::from_millis(100) => {
            Err(format!("{text} is too short: it must be at least 100ms"))
        }
        time => Ok(time),
    }
}

/// Parses a retention time; `None` means forever.
fn retention(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        return Ok(None);
    }
    match duration(text).map_err(|error| format!("{error}, or forever"))? {
        time if time < Retention::LEAST => Err(format!("{text} is too short: it must be at least 1d")),
        time => Ok(Some(time)),
    }
}

fn balanced(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("it must be more than 0".into()),
        bytes => Ok(bytes),
    }
}

/// Parses a part of a whole, as 0.7, with at most three decimals, and returns it in thousandths.
fn permille(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a part from 0 to 1 with at most three decimals, as 0.7");
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 3 {
        return Err(wrong());
    }
    let thousandths: u32 = format!("{decimals:0<3}").parse().map_err(|_| wrong())?;
    match whole.parse::<u32>() {
        Ok(0) => Ok(thousandths),
        Ok(1) if thousandths == 0 => Ok(1000),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sublet_manager::core::QueueLimits;
    use sublet_proto::price::Prices;

    use super::*;

    fn defaults() -> EffectiveSettings {
        let mut settings =
            EffectiveSettings { schema: &SCHEMA, settings: BTreeMap::new(), replaced: Vec::new() };
        settings.add_defaults();
        settings
    }

    #[test]
    fn defaults_match_the_manager() {
        let options = options(&defaults()).unwrap();
        assert_eq!(options.prices, Prices::default());
        let usual = QueueLimits::default();
        assert_eq!((options.queue.total, options.queue.per_tenant), (usual.total, usual.per_tenant));
        assert_eq!(options.retention, Retention::default());
        assert_eq!(options.watermark_permille, 700);
        assert!(matches!(options.tls, Tls::Generated { names } if names.is_empty()));
    }

    #[test]
    fn watermark_is_a_part_of_the_pool() {
        let parsed = ["0", "0.7", "0.125", "1", "1.000"].map(permille);
        assert_eq!(parsed, [Ok(0), Ok(700), Ok(125), Ok(1000), Ok(1000)]);
        for wrong in ["", ".5", "0.", "1.5", "2", "-0.5", "0.1234", "70%", "1e-1", "+1", "nan"] {
            assert!(permille(wrong).unwrap_err().contains("from 0 to 1"), "{wrong}");
        }
        let file =
            super::super::file::parse("m.toml".as_ref(), "[pools]\nwatermark = 0.25", &SCHEMA).unwrap();
        let mut settings = defaults();
        settings.settings.extend(file);
        assert_eq!(options(&settings).unwrap().watermark_permille, 250);
    }

    #[test]
    fn retention_is_days_or_forever() {
        assert_eq!(retention("forever"), Ok(None));
        assert_eq!(retention("1d"), Ok(Some(Retention::LEAST)));
        assert!(retention("23h").unwrap_err().contains("at least 1d"));
        assert!(retention("long").unwrap_err().contains("forever"));
    }

    #[test]
    fn global_manager_requires_shared_store() {
        let with = |text: &str| {
            let mut settings = defaults();
            settings.settings.extend(super::super::file::parse("m.toml".as_ref(), text, &SCHEMA).unwrap());
            options(&settings)
        };
        let nats = "[store]\nkind = 'nats'\nurl = 'nats://n:4222'";
        assert_eq!(with(nats).unwrap().level, Level::Rack);
        assert_eq!(with(&format!("global = true\n{nats}")).unwrap().level, Level::Global);
        let error = with("global = true").unwrap_err();
        assert!(error.message.contains("global") && error.message.contains("store.kind nats"), "{error}");
    }

    #[test]
    fn unset_prices_of_a_kind_default_to_common_prices() {
        let mut settings = defaults();
        let text = "[price]\npolling = 7\n[price.pu.gpu]\ncompute = 5";
        let file = super::super::file::parse("m.toml".as_ref(), text, &SCHEMA).unwrap();
        settings.settings.extend(file);
        let prices = options(&settings).unwrap().prices;
        let gpu = prices.by_pu["gpu"];
        assert_eq!((gpu.compute_nano_per_core_s, gpu.polling_nano_per_core_s), (5, 7));
        assert_eq!(prices.default.compute_nano_per_core_s, 20_000);
    }
}

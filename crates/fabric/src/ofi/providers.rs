//! Lists the providers that libfabric finds on this machine.

use std::ffi::{CString, c_void};

use super::ffi::{self, FfiFacts, FfiTable, Query};
use super::link::{MSG, RDM};
use crate::FabricError;

/// How the endpoints of a provider address each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressingKind {
    /// Each endpoint is connected to one other.
    Msg,
    /// Each endpoint sends to any other.
    Rdm,
}

/// A provider on one of this machine's interfaces, or one that has none here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// libfabric's name of the provider.
    pub name: String,
    /// The network, as the provider names it. Empty if there is none.
    pub fabric: String,
    /// The interface, as the provider names it. Empty if there is none.
    pub domain: String,
    /// How its endpoints address each other.
    pub kind: AddressingKind,
    /// The interface's IP address, where it has one.
    pub address: Option<String>,
    /// Speed of the link, as the interface reports it.
    pub link_bits_per_second: Option<u64>,
    /// The largest packet of the interface's port, as the port reports it.
    pub mtu_bytes: Option<u64>,
    /// Reason why the provider cannot be used, if it cannot.
    pub usable: Result<(), String>,
}

/// Providers that are worth looking for, best first. libfabric's other providers do not connect nodes, are a part of
/// another provider, or are slower than Sublet's own tcp provider.
const BETTER: &[&str] = &["verbs", "efa", "cxi", "opx", "psm3", "psm2"];
/// Providers that are used only if the user names them.
const ON_REQUEST: &[&str] = &["tcp;ofi_rxm", "tcp"];

impl ProviderInfo {
    /// Whether the provider may be chosen without being named.
    pub fn is_automatic(&self) -> bool {
        self.usable.is_ok() && BETTER.contains(&self.name.as_str())
    }
}

/// Lists the providers, best first. An error means that the library is missing.
pub fn providers() -> Result<Vec<ProviderInfo>, FabricError> {
    let table = ffi::table()?;
    let known = collect(|visit, context| {
        // SAFETY: the visitor gets its own context.
        unsafe { (table.providers)(visit, context) }
    });
    let known: Vec<String> = known.iter().map(FfiFacts::provider).collect();
    Ok(BETTER.iter().chain(ON_REQUEST).flat_map(|name| interfaces(table, name, &known)).collect())
}

fn interfaces(table: &FfiTable, name: &str, known: &[String]) -> Vec<ProviderInfo> {
    let found: Vec<ProviderInfo> = [RDM, MSG]
        .into_iter()
        .flat_map(|kind| found(table, name, kind))
        .map(|facts| describe(&facts))
        .collect();
    if !found.is_empty() {
        return found;
    }
    let core = name.split(';').next().unwrap_or(name);
    let reason = match known.iter().any(|known| known == core) {
        true => "no interface of this machine that it can use",
        false => "the installed libfabric does not have it",
    };
    vec![ProviderInfo {
        name: name.into(),
        fabric: String::new(),
        domain: String::new(),
        kind: AddressingKind::Rdm,
        address: None,
        link_bits_per_second: None,
        mtu_bytes: None,
        usable: Err(reason.into()),
    }]
}

fn found(table: &FfiTable, name: &str, kind: u32) -> Vec<FfiFacts> {
    let Ok(provider) = CString::new(name) else { return Vec::new() };
    let query = Query {
        provider: provider.as_ptr(),
        domain: std::ptr::null(),
        source: std::ptr::null(),
        kind,
        want_descriptor: 0,
    };
    collect(|visit, context| {
        // SAFETY: the query's string outlives the call, and the visitor gets its own context.
        unsafe { (table.interfaces)(&raw const query, visit, context) }
    })
}

fn describe(facts: &FfiFacts) -> ProviderInfo {
    let filled = |text: String| Some(text).filter(|text| !text.is_empty());
    ProviderInfo {
        name: facts.provider(),
        fabric: facts.fabric(),
        domain: facts.domain(),
        kind: if facts.kind == MSG { AddressingKind::Msg } else { AddressingKind::Rdm },
        address: filled(facts.address()),
        link_bits_per_second: Some(facts.link_bits_per_second).filter(|speed| *speed > 0),
        mtu_bytes: Some(facts.link_mtu_bytes).filter(|mtu| *mtu > 0),
        usable: if facts.is_up != 0 { Ok(()) } else { Err("the link is down".into()) },
    }
}

/// Collects all facts that a function of the shim passes to its visitor. A failure of the function means that there are
/// none.
fn collect(show: impl FnOnce(ffi::Visitor, *mut c_void) -> i32) -> Vec<FfiFacts> {
    unsafe extern "C" fn visit(context: *mut c_void, facts: *const FfiFacts) {
        // SAFETY: the context is the vector below, which no other code uses during the call; the facts are the shim's
        // for the call.
        unsafe { (*context.cast::<Vec<FfiFacts>>()).push((*facts).clone()) };
    }
    let mut all: Vec<FfiFacts> = Vec::new();
    show(visit, (&raw mut all).cast());
    all
}

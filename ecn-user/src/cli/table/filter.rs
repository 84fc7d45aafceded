//! Filters of rows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::{FlowRow, PortRow, SelectError};
use crate::cli::key::{protocol_name, protocol_number};
use crate::config::suggestion;

/// Short for `protocol`, as in ss and nft.
const PROTO: &str = "proto";

/// Reads pairs of words such as `dev eth0 src 10.0.0.1` and hands each to `set`.
fn read_pairs<'a>(
    words: impl IntoIterator<Item = &'a str>,
    names: &[&str],
    mut set: impl FnMut(&str, &'a str) -> Result<(), SelectError>,
) -> Result<(), SelectError> {
    let mut words = words.into_iter();
    let mut seen = Vec::new();
    while let Some(name) = words.next() {
        let name = if name == PROTO { "protocol" } else { name };
        if !names.contains(&name) {
            let hint = suggestion(name, names);
            return Err(SelectError(format!("cannot select by `{name}`: {hint}")));
        }
        if seen.contains(&name) {
            return Err(SelectError(format!("`{name}` is given twice")));
        }
        seen.push(name);
        let value = words
            .next()
            .ok_or_else(|| SelectError(format!("a value is missing after `{name}`")))?;
        set(name, value)?;
    }
    Ok(())
}

/// Which ports to show: `dev X`, `bridge X`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortFilter {
    /// Only this port.
    pub dev: Option<String>,
    /// Only ports of this bridge.
    pub bridge: Option<String>,
}

impl PortFilter {
    /// Reads a filter from the words of a command line.
    ///
    /// # Errors
    ///
    /// On unknown words, a word given twice, and a missing value.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectError> {
        let mut filter = Self::default();
        read_pairs(words, &["dev", "bridge"], |name, value| {
            match name {
                "dev" => filter.dev = Some(value.to_owned()),
                _ => filter.bridge = Some(value.to_owned()),
            }
            Ok(())
        })?;
        Ok(filter)
    }

    /// Whether the port matches.
    pub fn matches(&self, row: &PortRow) -> bool {
        is_or_any(&self.dev, &row.port) && is_or_any(&self.bridge, &row.bridge)
    }
}

fn is_or_any(wanted: &Option<String>, value: &str) -> bool {
    wanted.as_deref().is_none_or(|wanted| wanted == value)
}

/// An address, or all addresses with a prefix, with or without a port: `10.0.0.1`,
/// `10.0.0.0/24`, `10.0.0.1:5000`, `[fd00::1]:5000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressFilter {
    address: IpAddr,
    prefix: u8,
    port: Option<u16>,
}

impl AddressFilter {
    fn matches(&self, address: IpAddr, port: u16) -> bool {
        let same = |a: u128, b: u128, bits: u8| {
            let different = (a ^ b)
                .checked_shr(u32::from(bits - self.prefix))
                .unwrap_or(0);
            different == 0
        };
        let address = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        };
        address && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl FromStr for AddressFilter {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self {
                address,
                prefix: bits(address),
                port: None,
            });
        }
        if let Ok(socket) = text.parse::<SocketAddr>() {
            let (address, port) = (socket.ip(), Some(socket.port()));
            return Ok(Self {
                address,
                prefix: bits(address),
                port,
            });
        }
        text.split_once('/')
            .and_then(|(address, prefix)| {
                let address = address.parse().ok()?;
                let prefix = prefix
                    .parse()
                    .ok()
                    .filter(|prefix| *prefix <= bits(address))?;
                Some(Self {
                    address,
                    prefix,
                    port: None,
                })
            })
            .ok_or_else(|| {
                SelectError(format!(
                    "`{text}` is not an address: accepted are 10.0.0.1, 10.0.0.0/24, \
                     10.0.0.1:5000 and the same for IPv6, such as [fd00::1]:5000"
                ))
            })
    }
}

impl fmt::Display for AddressFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", SocketAddr::new(self.address, port)),
            None => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

/// The name that rows have for a protocol, from its name or number.
fn protocol(value: &str) -> Result<String, SelectError> {
    protocol_number(value).map(protocol_name).ok_or_else(|| {
        SelectError(format!(
            "unknown protocol `{value}`: expected a name such as udp, or a number from 0 to 255"
        ))
    })
}

/// Which flows to show: `dev X`, `src A`, `dst A`, `netns N`, `protocol P` or `proto P`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowFilter {
    /// Only flows that leave through this device.
    pub dev: Option<String>,
    /// Only flows from this address.
    pub src: Option<AddressFilter>,
    /// Only flows to this address.
    pub dst: Option<AddressFilter>,
    /// Only flows of this network namespace.
    pub netns: Option<String>,
    /// Only flows of this transport protocol.
    pub protocol: Option<String>,
}

impl FlowFilter {
    /// Reads a filter from the words of a command line.
    ///
    /// # Errors
    ///
    /// On unknown words, a word given twice, a missing value, bad addresses and unknown protocols.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectError> {
        let mut filter = Self::default();
        let names = ["dev", "src", "dst", "netns", "protocol"];
        read_pairs(words, &names, |name, value| {
            match name {
                "dev" => filter.dev = Some(value.to_owned()),
                "src" => filter.src = Some(value.parse()?),
                "dst" => filter.dst = Some(value.parse()?),
                "netns" => filter.netns = Some(value.to_owned()),
                _ => filter.protocol = Some(protocol(value)?),
            }
            Ok(())
        })?;
        Ok(filter)
    }

    /// Whether the flow matches.
    pub fn matches(&self, row: &FlowRow) -> bool {
        is_or_any(&self.dev, &row.device)
            && is_or_any(&self.netns, &row.netns)
            && is_or_any(&self.protocol, &row.protocol)
            && self
                .src
                .is_none_or(|src| src.matches(row.src, row.src_port))
            && self
                .dst
                .is_none_or(|dst| dst.matches(row.dst, row.dst_port))
    }
}

//! The text form of a flow: `10.0.0.1:1234>10.0.1.1:5001/udp`.
//!
//! IPv6 addresses are in brackets, `[fd83::1]:1>[fd83::2]:2/udp`; ports are omitted for protocols without ports,
//! `10.0.0.1>10.0.1.1/icmp`. Flows that share a limiter are printed as `*>10.0.1.1/any`, where `*` stands for all addresses.
//! `ecn flow show` prints flows in this form, and `ecn flow set` reads them. In a shell they
//! have to be quoted, because of the `>`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ecn_core::flow;

/// Names of transport protocols; others are given by number.
const PROTOCOLS: [(u8, &str); 13] = [
    (1, "icmp"),
    (2, "igmp"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (58, "icmpv6"),
    (89, "ospf"),
    (132, "sctp"),
    (136, "udplite"),
    (flow::ANY_PROTOCOL, "any"),
];

/// All addresses, in flows that share a limiter.
const ANY_ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

const fn is_any(protocol: u8, address: IpAddr) -> bool {
    protocol == flow::ANY_PROTOCOL && matches!(address, IpAddr::V6(v6) if v6.is_unspecified())
}

/// The name of a protocol, or its number.
pub fn protocol_name(number: u8) -> String {
    PROTOCOLS
        .iter()
        .find(|(known, _)| *known == number)
        .map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// The number of a protocol by its name or number.
pub fn protocol_number(text: &str) -> Option<u8> {
    let lower = text.to_ascii_lowercase();
    PROTOCOLS
        .iter()
        .find(|(_, name)| *name == lower)
        .map(|(number, _)| *number)
        .or_else(|| text.parse().ok())
}

/// Identifies a flow for users: the key of the maps without the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowName {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port; 0 where the protocol has none.
    pub src_port: u16,
    /// Destination port; 0 where the protocol has none.
    pub dst_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

/// The text is not a flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a flow: {reason} \
     (accepted: '10.0.0.1:1234>10.0.1.1:5001/udp', '[fd83::1]:1>[fd83::2]:2/udp', \
     '10.0.0.1>10.0.1.1/icmp'; in quotes, as `ecn flow show` prints it)"
)]
pub struct KeyError {
    text: String,
    reason: String,
}

impl FlowName {
    /// The key of this flow at an endpoint.
    pub fn key(&self, endpoint: u16) -> flow::Key {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        flow::Key {
            src: octets(self.src),
            dst: octets(self.dst),
            src_port: self.src_port,
            dst_port: self.dst_port,
            endpoint,
            protocol: self.protocol,
            _pad: 0,
        }
    }
}

impl From<&flow::Key> for FlowName {
    fn from(key: &flow::Key) -> Self {
        Self {
            src: Ipv6Addr::from(key.src).to_canonical(),
            dst: Ipv6Addr::from(key.dst).to_canonical(),
            src_port: key.src_port,
            dst_port: key.dst_port,
            protocol: key.protocol,
        }
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = protocol_name(self.protocol);
        let end = |address: IpAddr| {
            if is_any(self.protocol, address) {
                "*".to_owned()
            } else {
                address.to_string()
            }
        };
        let text = if self.src_port == 0 && self.dst_port == 0 {
            format!("{}>{}/{protocol}", end(self.src), end(self.dst))
        } else {
            let src = SocketAddr::new(self.src, self.src_port);
            let dst = SocketAddr::new(self.dst, self.dst_port);
            format!("{src}>{dst}/{protocol}")
        };
        f.pad(&text)
    }
}

impl FromStr for FlowName {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let error = |reason: String| KeyError {
            text: text.to_owned(),
            reason,
        };
        let trimmed = text.trim();
        let (src, rest) = trimmed
            .split_once("->")
            .or_else(|| trimmed.split_once('>'))
            .ok_or_else(|| {
                error("there is no `>`; without quotes the shell interprets it".to_owned())
            })?;
        let (dst, protocol) = rest
            .rsplit_once('/')
            .ok_or_else(|| error("the protocol is missing".to_owned()))?;
        let protocol = protocol_number(protocol)
            .ok_or_else(|| error(format!("unknown protocol `{protocol}`")))?;
        let end = |text: &str| {
            read_end(text).ok_or_else(|| error(format!("invalid address `{}`", text.trim())))
        };
        let ((src, src_port), (dst, dst_port)) = (end(src)?, end(dst)?);
        let is_mixed = src.is_ipv4() != dst.is_ipv4();
        if is_mixed && !is_any(protocol, src) && !is_any(protocol, dst) {
            return Err(error("one address is IPv4, the other IPv6".to_owned()));
        }
        match (src_port, dst_port) {
            (None, Some(_)) => return Err(error("the source port is missing".to_owned())),
            (Some(_), None) => return Err(error("the destination port is missing".to_owned())),
            _ => {}
        }
        Ok(Self {
            src,
            dst,
            src_port: src_port.unwrap_or(0),
            dst_port: dst_port.unwrap_or(0),
            protocol,
        })
    }
}

/// An address with or without a port.
fn read_end(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let text = text.trim();
    if text == "*" {
        return Some((ANY_ADDRESS, None));
    }
    if let Ok(end) = text.parse::<SocketAddr>() {
        return Some((end.ip().to_canonical(), Some(end.port())));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok()?;
    Some((address.to_canonical(), None))
}

/// The known flows that are most similar to one that was not found, at most `count`.
pub fn nearest(
    wanted: &FlowName,
    known: impl IntoIterator<Item = FlowName>,
    count: usize,
) -> Vec<String> {
    let text = wanted.to_string();
    let mut known: Vec<_> = known
        .into_iter()
        .map(|name| name.to_string())
        .map(|name| (strsim::damerau_levenshtein(&text, &name), name))
        .collect();
    known.sort();
    known.dedup();
    known
        .into_iter()
        .take(count)
        .map(|(_, name)| name)
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> FlowName {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn flows_are_parsed_and_printed() {
        for (text, printed) in [
            (
                "10.0.0.1:1234>10.0.1.1:5001/udp",
                "10.0.0.1:1234>10.0.1.1:5001/udp",
            ),
            (
                "10.0.0.1:1234->10.0.1.1:5001/UDP",
                "10.0.0.1:1234>10.0.1.1:5001/udp",
            ),
            (" 10.0.0.1:1 > 10.0.1.1:2/17", "10.0.0.1:1>10.0.1.1:2/udp"),
            ("[fd83::1]:1>[fd83::2]:2/tcp", "[fd83::1]:1>[fd83::2]:2/tcp"),
            ("10.0.0.1>10.0.1.1/icmp", "10.0.0.1>10.0.1.1/icmp"),
            ("[fd83::1]>fd83::2/icmpv6", "fd83::1>fd83::2/icmpv6"),
            ("10.0.0.1>10.0.1.1/254", "10.0.0.1>10.0.1.1/254"),
            ("10.0.0.1>10.0.1.1/any", "10.0.0.1>10.0.1.1/any"),
            ("*>10.0.1.1/any", "*>10.0.1.1/any"),
            ("* > */255", "*>*/any"),
            ("10.0.0.1:0>10.0.1.1:7/udp", "10.0.0.1:0>10.0.1.1:7/udp"),
            (
                "[::ffff:10.0.0.1]:1>10.0.1.1:2/udp",
                "10.0.0.1:1>10.0.1.1:2/udp",
            ),
        ] {
            assert_eq!(name(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn other_text_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "there is no `>`"),
            ("10.0.0.1:1234", "the shell interprets it"),
            ("10.0.0.1:1>10.0.1.1:2", "the protocol is missing"),
            ("10.0.0.1:1>10.0.1.1:2/udq", "unknown protocol `udq`"),
            ("10.0.0.1:1>10.0.1.1:2/256", "unknown protocol `256`"),
            (
                "10.0.0.300:1>10.0.1.1:2/udp",
                "invalid address `10.0.0.300:1`",
            ),
            (
                "10.0.0.1:70000>10.0.1.1:2/udp",
                "invalid address `10.0.0.1:70000`",
            ),
            ("10.0.0.1:1>10.0.1.1/udp", "the destination port is missing"),
            ("10.0.0.1>10.0.1.1:1/udp", "the source port is missing"),
            ("10.0.0.1>fd83::1/udp", "one address is IPv4"),
            ("*>10.0.1.1/udp", "one address is IPv4"),
        ] {
            let error = text.parse::<FlowName>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn keys_hold_ipv4_as_mapped_ipv6() {
        let key = name("10.0.0.1:1>10.0.1.1:2/udp").key(7);
        assert_eq!(
            key.src,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]
        );
        assert_eq!(
            (key.src_port, key.dst_port, key.endpoint, key.protocol),
            (1, 2, 7, 17)
        );
    }

    #[test]
    fn the_nearest_come_first() {
        let known = ["10.0.0.1:1>10.0.1.1:5001/udp", "10.0.0.2:1>10.9.1.1:80/tcp"].map(name);
        assert_eq!(
            nearest(&name("10.0.0.1:1>10.0.1.1:5002/udp"), known, 1),
            ["10.0.0.1:1>10.0.1.1:5001/udp"]
        );
    }

    fn address_pair() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
            // One that holds an IPv4 address is that address.
            any::<([u8; 16], [u8; 16])>()
                .prop_filter("mapped", |(a, b)| a[..10] != [0; 10] && b[..10] != [0; 10])
                .prop_map(|(a, b)| (a.into(), b.into())),
        ]
    }

    proptest! {
        #[test]
        fn printed_flows_are_parsed_to_the_same_flow(
            (src, dst) in address_pair(),
            (src_port, dst_port, protocol) in any::<(u16, u16, u8)>(),
            endpoint: u16,
        ) {
            let name = FlowName { src, dst, src_port, dst_port, protocol };
            prop_assert_eq!(name.to_string().parse::<FlowName>(), Ok(name));
            prop_assert_eq!(FlowName::from(&name.key(endpoint)), name);
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".{0,40}") {
            let _ = text.parse::<FlowName>();
        }

        #[test]
        fn text_like_a_flow_is_parsed_without_a_panic(text in "[0-9a-f:.\\[\\]>/-]{0,40}") {
            let _ = text.parse::<FlowName>();
        }
    }
}

use super::*;
use crate::net::testing::require_root;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// A rig of this test only.
fn topology(tag: &str) -> Topology {
    let name_prefix = format!("ecntest-{}-{tag}", std::process::id());
    Topology {
        name_prefix,
        ..Topology::default()
    }
}

#[test]
fn hosts_have_names_and_addresses_of_their_own() {
    let topology = Topology {
        local: 250,
        remote: 250,
        ..Topology::default()
    };
    let hosts = topology.hosts();
    assert_eq!(hosts.len(), 503);
    let distinct = |of: fn(&Host) -> String| {
        hosts
            .iter()
            .map(of)
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    };
    assert_eq!(distinct(|host| host.name.clone()), 503);
    assert_eq!(distinct(|host| host.port.clone()), 503);
    assert_eq!(distinct(|host| host.ipv4.to_string()), 503);
    assert_eq!(distinct(|host| host.ipv6.to_string()), 503);
    assert_eq!(distinct(|host| format!("{:?}", host.mac)), 503);
    let alone = Topology {
        victim: false,
        ..Topology::default()
    };
    assert_eq!(alone.hosts().len(), 21);
    assert_eq!(alone.rated_ports(), ["tob", "root"]);
}

#[test]
fn only_whole_names_belong_to_a_rig() {
    assert_eq!(host_of("ecn-rig-a10", "ecn-rig"), Some("a10"));
    assert_eq!(host_of("ecn-rig-sw", "ecn-rig"), Some("sw"));
    for other in [
        "ecn-rig",
        "ecn-rig-",
        "ecn-rig-a",
        "ecn-rig-x-a1",
        "ecn-rig-a1x",
        "ecn-riga1",
    ] {
        assert_eq!(host_of(other, "ecn-rig"), None, "{other}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    for bad in [
        Topology {
            local: 251,
            ..Topology::default()
        },
        Topology {
            mtu: 1000,
            ..Topology::default()
        },
        Topology {
            link_rate_bytes_per_s: 100,
            ..Topology::default()
        },
        Topology {
            leaf_limit: 0,
            ..Topology::default()
        },
    ] {
        assert!(
            matches!(Rig::up(&bad), Err(Error::Option { .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn a_rig_is_created_and_removed() {
    require_root!();
    let topology = Topology {
        leaf_limit: 77,
        mtu: 1500,
        ..topology("life")
    };
    assert!(Rig::find(&topology.name_prefix).expect("find").is_none());
    let links_before = Netlink::open(&NetNs::current().expect("own")).expect("open");
    let before = links_before.links().expect("links");

    let start = Instant::now();
    let rig = Rig::up(&topology).expect("up");
    println!("up in {:?}", start.elapsed());

    let again = Rig::up(&topology).expect_err("a second one");
    assert!(
        matches!(&again, Error::AlreadyUp { found } if found.len() == 24),
        "{again}"
    );
    assert!(again.to_string().contains("ecn rig down"), "{again}");
    let found = Rig::find(&topology.name_prefix)
        .expect("find")
        .expect("the rig");
    assert_eq!(found.topology(), &topology);
    drop(found); // and the rig stays

    // Every source reaches its sink, in both families, and no port floods.
    let pairs: Vec<_> = rig.hosts().iter().filter(|host| host.is_source()).collect();
    for host in &pairs {
        let role = if host.role == Role::Victim {
            Role::VictimSink
        } else {
            Role::Sink
        };
        let sink = rig
            .hosts()
            .iter()
            .find(|host| host.role == role)
            .expect("a sink");
        for to in [IpAddr::from(sink.ipv4), IpAddr::from(sink.ipv6)] {
            let at = rig.netns(sink).expect("sink");
            let server = at.run(|| UdpSocket::bind((to, 0))).expect("bind");
            let address = server.local_addr().expect("address");
            server
                .set_read_timeout(Some(Duration::from_secs(2)))
                .expect("timeout");
            let from = if to.is_ipv4() {
                host.ipv4.into()
            } else {
                IpAddr::from(host.ipv6)
            };
            let client = rig
                .netns(host)
                .expect("source")
                .run(|| UdpSocket::bind((from, 0)));
            client
                .expect("bind")
                .send_to(b"hello", address)
                .expect("send");
            let mut buffer = [0; 16];
            let (len, peer) = server.recv_from(&mut buffer).expect("receive");
            assert_eq!((&buffer[..len], peer.ip()), (&b"hello"[..], from));
        }
    }
    let ports = rig.port_counters().expect("counters");
    let packets: Vec<_> = ports
        .iter()
        .map(|(name, c)| (name.as_str(), c.packets))
        .collect();
    // 10 remote and 1 victim over the middle, 20 at the root, two families each. Not one more.
    assert_eq!(packets, [("tob", 22), ("root", 40), ("victim", 2)]);
    let sources = rig.source_counters().expect("counters");
    assert_eq!(sources.len(), 21);
    assert!(
        sources.iter().all(|(_, counters)| counters.packets >= 2),
        "{sources:?}"
    );
    assert_eq!(
        rig.probe("root")
            .expect("probe")
            .class()
            .expect("class")
            .packets,
        40
    );

    let start = Instant::now();
    rig.down().expect("down");
    println!("down in {:?}", start.elapsed());
    assert_eq!(leftovers(&topology.name_prefix).expect("list"), [""; 0]);
    assert_eq!(links_before.links().expect("links"), before);
}

#[test]
fn a_panic_takes_the_rig_down() {
    require_root!();
    let topology = Topology {
        local: 1,
        remote: 1,
        ..topology("panic")
    };
    let caught = std::panic::catch_unwind(|| {
        let _rig = Rig::up(&topology).expect("up");
        panic!("in the middle");
    });
    assert!(caught.is_err());
    assert_eq!(leftovers(&topology.name_prefix).expect("list"), [""; 0]);
}

#[test]
fn what_a_kill_leaves_is_found_and_removed() {
    require_root!();
    let topology = Topology {
        local: 1,
        remote: 1,
        ..topology("kill")
    };
    let mut rig = Rig::up(&topology).expect("up");
    rig.keep();
    drop(rig);
    NetNs::delete(&format!("{}-bc", topology.name_prefix)).expect("delete");
    let cut = Rig::find(&topology.name_prefix).expect_err("a part is missing");
    assert!(matches!(cut, Error::Incomplete { .. }), "{cut}");
    assert_eq!(remove(&topology.name_prefix).expect("remove").len(), 5);
    assert_eq!(leftovers(&topology.name_prefix).expect("list"), [""; 0]);
}

use super::*;
use crate::net::testing::{TempNs, require_root};

fn end(name: &str) -> VethEnd<'_> {
    VethEnd {
        name,
        ..VethEnd::default()
    }
}

#[test]
fn a_bridge_with_a_veth_port() {
    require_root!();
    let (sw, host) = (TempNs::new("sw"), TempNs::new("host"));
    let (nl, far) = (
        Netlink::open(&sw).expect("open"),
        Netlink::open(&host).expect("open"),
    );
    let bridge = nl.add_bridge("br").expect("bridge");
    let mac = [2, 0x83, 0, 0, 0, 7];
    let far_end = VethEnd {
        name: "eth0",
        mac: Some(mac),
        gso_max_segs: Some(1),
    };
    let port = nl
        .add_veth(&end("p1"), &far_end, &host, 2054)
        .expect("veth");
    nl.set_master(port.index, bridge.index).expect("master");
    nl.set_up(port.index).expect("up");

    let port = nl.link("p1").expect("p1");
    assert_eq!(
        (port.mtu, port.master, port.up),
        (2054, Some(bridge.index), true)
    );
    assert_eq!(port.kind.as_deref(), Some("veth"));
    let eth0 = far.link("eth0").expect("eth0");
    assert_eq!((eth0.mac, eth0.mtu, eth0.up), (Some(mac), 2054, false));
    assert_eq!(port.peer, Some(eth0.index));
    assert_eq!(port.peer_nsid, nl.nsid(&host).expect("nsid"));
    assert!(port.peer_nsid.is_some());
    let names: Vec<_> = nl
        .links()
        .expect("links")
        .into_iter()
        .map(|l| l.name)
        .collect();
    assert_eq!(names, ["lo", "br", "p1"]);

    let v4: IpAddr = "10.83.0.1".parse().expect("address");
    let v6: IpAddr = "fd83::1".parse().expect("address");
    far.add_address(eth0.index, v4, 16).expect("IPv4");
    far.add_address(eth0.index, v6, 64).expect("IPv6");
    let others: Vec<_> = (2..=200)
        .flat_map(|i| {
            let v4 = IpAddr::from([10, 83, 0, i]);
            let v6 = IpAddr::from([0xfd83, 0, 0, 0, 0, 0, 0, u16::from(i)]);
            [(v4, [2, 0, 0, 0, 0, i]), (v6, [2, 0, 0, 0, 0, i])]
        })
        .collect();
    far.add_neighbours(eth0.index, &others).expect("neighbours");
    nl.add_fdb(&[(port.index, mac)]).expect("bridge entry");
    nl.set_mtu(port.index, 1400).expect("mtu");
    assert_eq!(nl.link("p1").expect("p1").mtu, 1400);
}

#[test]
fn errors_say_what_and_where() {
    require_root!();
    let ns = TempNs::new("err");
    let nl = Netlink::open(&ns).expect("open");
    assert!(matches!(nl.link("nothing"), Err(Error::NoLink { .. })));
    assert!(matches!(
        nl.link("a name far too long"),
        Err(Error::LinkName { .. })
    ));
    nl.add_bridge("br").expect("bridge");
    let twice = nl.add_bridge("br").expect_err("a second one");
    assert_eq!(twice.errno(), Some(Errno::EEXIST));
    let text = twice.to_string();
    assert!(
        text.contains("\"br\"") && text.contains(ns.name()),
        "{text}"
    );
    // The kernel's explanation is passed on, and the socket stays in sync after a refusal.
    let index = nl.link("br").expect("br").index;
    let loop_ = nl
        .set_master(index, index)
        .expect_err("its own port")
        .to_string();
    assert!(loop_.contains("kernel: "), "{loop_}");
    assert_eq!(nl.links().expect("links").len(), 2);
}

#[test]
fn links_are_followed() {
    require_root!();
    let ns = TempNs::new("watch");
    let nl = Netlink::open(&ns).expect("open");
    let watch = Watch::open(&ns).expect("watch");
    assert!(!watch.drain().expect("drain").of_links());
    let bridge = nl.add_bridge("br").expect("bridge");
    let port = nl
        .add_veth(&end("p1"), &end("p2"), &ns, 1500)
        .expect("veth");
    nl.set_master(port.index, bridge.index).expect("master");
    let came = watch.drain().expect("drain");
    assert!(came.links.iter().any(|event| matches!(event,
        LinkEvent::Changed(link) if link.name == "p1" && link.master == Some(bridge.index))));
    nl.delete_link(bridge.index).expect("delete the bridge");
    nl.delete_link(port.index).expect("delete the port");
    let mut removed: Vec<_> = watch
        .drain()
        .expect("drain")
        .links
        .into_iter()
        .filter_map(|event| match event {
            LinkEvent::Removed { name, .. } => Some(name),
            _ => None,
        })
        .collect();
    removed.sort();
    assert_eq!(removed, ["br", "p1", "p2"]);
}

//! Echoes consumed by XDP in the sender's driver.

use aya::{
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported},
};
use ecn_core::{abi::Count, packet::protocol};
use ecn_tests::{
    Skip, eventually,
    frames::Ip,
    kernel_test,
    lab::{BRIDGE, Lab},
    running::{self, Running},
    s, skipped,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::{Agent, Options, state::Lock},
    config::{Config, Hook, Marking},
    net::ethtool::{Ethtool, Offload},
};

const LINK: u64 = 12_500_000;
const SENT: u64 = 500;

fn config(lab: &Lab, hook: Hook) -> Config {
    let config = running::config(lab, Marking::None);
    let mut config = running::with_endpoints(config, lab, &[0, 1], LINK);
    config.endpoints[0].hook = hook;
    config
}

/// Segmentation offload of the sender's port.
fn tso(lab: &Lab) -> bool {
    let ethtool = Ethtool::open(&lab.switch).expect("ethtool");
    let port = &lab.hosts[0].port;
    ethtool.is_on(port, Offload::Tso).expect("read TSO")
}

/// Sends from host 0 to host 1 over both families, until all of it was echoed.
fn echoed(lab: &Lab, running: &Running) {
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    for ipv6 in [false, true] {
        let sender = udp(from, ipv6, 40001);
        let _receiver = udp(to, ipv6, 7001);
        let target = (to.address(ipv6), 7001);
        for _ in 0..SENT {
            sender.send_to(&[7; 200], target).expect("send");
        }
        let from = match from.address(ipv6) {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            std::net::IpAddr::V6(v6) => v6,
        };
        let acked = || {
            let ours = |key: &ecn_core::flow::Key| {
                key.endpoint == 1 && key.protocol == protocol::UDP && key.src == from.octets()
            };
            running.acked(ours)
        };
        let all = eventually(s(10), || acked() == SENT);
        assert!(all, "{} of {SENT}: {}", acked(), running.counts());
    }
}

#[test]
fn echoes_are_consumed() {
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    assert!(tso(&lab), "no TSO to lose");
    let running = Running::start(config(&lab, Hook::Xdp), Options::default());
    assert_eq!(running.agent().state().endpoints[0].hook, Hook::Xdp);
    assert!(!tso(&lab), "native XDP on a veth costs its peer TSO");
    echoed(&lab, &running);
    let taken = running.count(Count::EchoXdp);
    let accepted = running.count(Count::EchoAccepted);
    assert!(accepted > 0, "{}", running.counts());
    assert_eq!(
        taken,
        accepted + running.count(Count::EchoDuplicate),
        "{}",
        running.counts()
    );
    // Others pass to the tc program: it refuses a forged echo, and leaves one of another version to the stack.
    let wire = Wire::open(&lab.hosts[1].ns, lab.hosts[1].ifindex);
    let mut forged = ecn_core::echo::Echo {
        protocol: protocol::UDP,
        src_port: 9,
        dst_port: 9,
        ..ecn_core::echo::Echo::default()
    }
    .to_bytes();
    let frame = |payload: &[u8]| {
        Ip::between(&lab.hosts[1], &lab.hosts[0], false).with(ecn_core::echo::PROTOCOL, payload)
    };
    wire.send(&frame(&forged));
    let unknown = || running.count(Count::EchoUnknown) == 1;
    assert!(eventually(s(3), unknown), "{}", running.counts());
    assert_eq!(running.count(Count::EchoXdp), taken);
    forged[0] = 77;
    wire.send(&frame(&forged));
    let malformed = || running.count(Count::EchoMalformed) == 1;
    assert!(eventually(s(3), malformed), "{}", running.counts());
    drop(running);
    assert!(eventually(s(3), || tso(&lab)), "TSO did not come back");
}

/// A veth's peer keeps its offload unless XDP is configured.
#[test]
fn auto_is_tc_on_veth() {
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    let running = Running::start(config(&lab, Hook::Auto), Options::default());
    assert_eq!(running.agent().state().endpoints[0].hook, Hook::Tc);
    assert!(tso(&lab));
    echoed(&lab, &running);
    assert!(running.count(Count::EchoAccepted) > 0);
    assert_eq!(running.count(Count::EchoXdp), 0);
}

/// A bridge device has no driver with XDP: if configured, that is an error; with `auto`, tc is used.
#[test]
fn a_device_without_driver_xdp() {
    kernel_test!();
    let lab = Lab::new(1);
    let mut config = running::config(&lab, Marking::None);
    let mut endpoint = ecn_user::config::Endpoint::new(BRIDGE);
    endpoint.netns = Some(lab.switch.name().to_owned());
    endpoint.link_rate = Some(running::rate(LINK));
    endpoint.hook = Hook::Xdp;
    config.endpoints.push(endpoint);
    {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let _entered = runtime.enter();
        let lock = Lock::take().expect("no other agent");
        let error = Agent::start(config.clone(), Options::default(), &lock)
            .err()
            .expect("no XDP there")
            .to_string();
        let expected = format!("device {BRIDGE} (namespace {})", lab.switch.name());
        assert!(error.contains(&expected), "{error}");
        assert!(error.contains("use hook = \"tc\""), "{error}");
        assert!(!running::pin().exists(), "pins are left");
    }
    config.endpoints[0].hook = Hook::Auto;
    let running = Running::start(config, Options::default());
    assert_eq!(running.agent().state().endpoints[0].hook, Hook::Tc);
}

/// Where the peer sends frames longer than a page, a program must read them in fragments.
#[test]
fn long_frames() {
    const MTU: u32 = 9000;
    kernel_test!();
    // The helper for the total length of all fragments: both were added in 5.18.
    let helper = BpfHelper::BPF_FUNC_xdp_get_buff_len;
    if !is_helper_supported(ProgramType::Xdp, helper).expect("a try") {
        let reason = "this kernel has no multi-buffer XDP";
        return skipped("xdp::long_frames", Skip::Kernel, reason);
    }
    let lab = Lab::with_super_packets(2);
    for host in &lab.hosts {
        host.nl.set_mtu(host.ifindex, MTU).expect("MTU of a host");
        lab.nl.set_mtu(host.port_index, MTU).expect("MTU of a port");
    }
    let running = Running::start(config(&lab, Hook::Xdp), Options::default());
    assert_eq!(running.agent().state().endpoints[0].hook, Hook::Xdp);
    echoed(&lab, &running);
    assert!(running.count(Count::EchoXdp) > 0, "{}", running.counts());
    // Towards the device with the program.
    let (from, to) = (&lab.hosts[1], &lab.hosts[0]);
    let (sender, receiver) = (udp(from, false, 40002), udp(to, false, 7002));
    let long = vec![9; 8900];
    let mut buffer = vec![0; 10_000];
    for _ in 0..10 {
        sender.send_to(&long, (to.v4, 7002)).expect("send");
        let len = receiver.recv(&mut buffer).expect("a long packet");
        assert_eq!(buffer[..len], long);
    }
}

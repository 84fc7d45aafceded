//! How programs are attached: by tcx, or by clsact on kernels without tcx.

use aya::programs::{loaded_links, loaded_programs};
use ecn_core::abi::{self, name};
use ecn_tests::{
    Skip,
    agent::Agent,
    ecn_or_skip, eventually,
    frames::Ip,
    kernel_test,
    lab::Lab,
    process,
    process::stdout,
    running::{self, pin},
    s, skipped,
    traffic::Stream,
    wire::Wire,
};
use ecn_user::{
    config::Marking,
    datapath::{self, Attached, AttachedBy, Datapath, Sizes},
};

const SIZES: Sizes = Sizes {
    bridges: 1,
    flows: 64,
};

fn has_clsact(lab: &Lab) -> bool {
    let port = lab.hosts[0].port_index;
    let qdiscs = lab.nl.qdiscs().expect("qdiscs");
    qdiscs
        .iter()
        .any(|qdisc| qdisc.ifindex == port && qdisc.kind == "clsact")
}

fn programs(lab: &Lab) -> Vec<String> {
    let filters = lab.nl.filters(lab.hosts[0].port_index).expect("filters");
    let shown = |egress| if egress { "out" } else { "in" };
    filters
        .iter()
        .map(|filter| format!("{} {}", filter.name, shown(filter.egress)))
        .collect()
}

fn on_clsact(lab: &Lab, datapath: &Datapath, program: &str) -> Attached {
    let mut copy = datapath.copy(lab.switch.inum(), 1).expect("a copy");
    let port = &lab.hosts[0].port;
    let attached = copy.attach_by(Some(AttachedBy::Clsact), &lab.switch, port, program);
    let attached = attached.expect("attach");
    assert_eq!(attached.hook(), AttachedBy::Clsact);
    attached
}

#[test]
fn clsact_is_removed_with_the_last_program() {
    kernel_test!();
    let lab = Lab::new(1);
    let datapath = Datapath::open(&pin(), SIZES).expect("load");
    let out = on_clsact(&lab, &datapath, name::PORT_OUT);
    let inward = on_clsact(&lab, &datapath, name::ENDPOINT_IN);
    let also_out = on_clsact(&lab, &datapath, name::ENDPOINT_OUT);
    let mut found = programs(&lab);
    found.sort();
    assert_eq!(
        found,
        ["ecn_ep_in in", "ecn_ep_out out", "ecn_port_out out"]
    );
    drop(out);
    drop(also_out);
    assert_eq!(programs(&lab), ["ecn_ep_in in"]);
    drop(inward);
    assert!(!has_clsact(&lab), "our clsact stays");
}

#[test]
fn clsact_of_others_stays() {
    kernel_test!();
    let lab = Lab::new(1);
    let port = lab.hosts[0].port_index;
    assert!(lab.nl.add_clsact(port).expect("clsact"));
    let datapath = Datapath::open(&pin(), SIZES).expect("load");
    drop(on_clsact(&lab, &datapath, name::PORT_OUT));
    assert_eq!(programs(&lab), Vec::<String>::new());
    assert!(has_clsact(&lab), "the other clsact was removed");
}

#[test]
fn clsact_filters_of_a_killed_agent_are_cleaned() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let lab = Lab::new(1);
    let datapath = Datapath::open(&pin(), SIZES).expect("load");
    let port = &lab.hosts[0].port;
    // Not detached, as after SIGKILL.
    std::mem::forget(on_clsact(&lab, &datapath, name::PORT_OUT));
    // The next agent replaces it.
    drop(on_clsact(&lab, &datapath, name::PORT_OUT));
    std::mem::forget(on_clsact(&lab, &datapath, name::PORT_OUT));
    drop(datapath);
    let left = datapath::leftovers(&lab.nl, lab.hosts[0].port_index).expect("leftovers");
    assert_eq!(left.len(), 1, "{left:?}");
    let printed = stdout(&process::run(&ecn, &["clean"]));
    let line = format!("removed program ecn_port_out of {port} in namespace ");
    assert!(printed.contains(&line), "{printed}");
    assert!(programs(&lab).is_empty() && !has_clsact(&lab), "{printed}");
}

#[test]
fn tcx_is_used_where_available() {
    kernel_test!();
    let lab = Lab::new(1);
    let datapath = Datapath::open(&pin(), SIZES).expect("load");
    let mut copy = datapath.copy(lab.switch.inum(), 0).expect("a copy");
    let port = &lab.hosts[0].port;
    let attached = copy.attach(&lab.switch, port, name::PORT_OUT);
    let hook = attached.expect("attach").hook();
    let only = copy.attach_by(Some(AttachedBy::Tcx), &lab.switch, port, name::PORT_OUT);
    assert_eq!(hook == AttachedBy::Tcx, only.is_ok(), "{hook}");
    drop(only);
    assert!(!has_clsact(&lab));
}

/// Our programs leave the decision to others: programs after them on the hook run, and so do clsact filters.
#[test]
fn programs_behind_ours_run_too() {
    const SENT: u64 = 100;
    kernel_test!();
    let lab = Lab::new(2);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let datapath = Datapath::open(&pin(), SIZES).expect("load");
    let mut maps = datapath.maps().expect("maps");
    let control = abi::Control {
        abi: abi::ABI,
        ..abi::Control::default()
    };
    maps.set_control(control).expect("control");
    let device = abi::Device {
        role: abi::ROLE_PORT,
        port: 1,
        ..abi::Device::default()
    };
    let key = abi::DeviceKey {
        netns: lab.switch.inum(),
        ifindex: to.port_index,
    };
    maps.set_device(key, device).expect("a port");
    // Each of three copies of one program counts each packet.
    let mut copies = [(); 3].map(|()| datapath.copy(lab.switch.inum(), 0).expect("a copy"));
    let hooks = [None, None, Some(AttachedBy::Clsact)];
    let attached = copies.iter_mut().zip(hooks).map(|(copy, hook)| {
        let attached = copy.attach_by(hook, &lab.switch, &to.port, name::PORT_OUT);
        attached.expect("attach")
    });
    let attached: Vec<_> = attached.collect();
    if attached[0].hook() != AttachedBy::Tcx {
        return skipped(
            "attach::programs_behind_ours_run_too",
            Skip::Kernel,
            "this kernel has no tcx",
        );
    }
    let wire = Wire::open(&from.ns, from.ifindex);
    let frame = Ip::between(from, to, false).udp(1, 2, b"hello");
    (0..SENT).for_each(|_| wire.send(&frame));
    let arrived = || maps.bridge(0).expect("counters").port(1).arrived;
    assert!(eventually(s(3), || arrived() >= 3 * SENT), "{}", arrived());
}

/// Number of links of a program in the whole kernel.
fn links(program: &str) -> usize {
    let named = |id: u32| {
        let mut loaded = loaded_programs().filter_map(Result::ok);
        loaded.any(|info| info.id() == id && info.name_as_str() == Some(program))
    };
    let links = loaded_links().filter_map(Result::ok);
    links.filter(|link| named(link.program_id())).count()
}

/// Nothing is attached until it is needed: programs are attached and detached with a port's queue and with a flow's limit.
#[test]
fn nothing_is_attached_without_a_queue_or_limit() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let lab = Lab::new(2);
    lab.no_queue(0);
    lab.no_queue(1);
    let config = running::config(&lab, Marking::InputOutput);
    let config = running::with_endpoints(config, &lab, &[0, 1], 5_000_000);
    let _agent = Agent::start(&ecn, &config);
    let of_port = || links(name::PORT_OUT) + programs(&lab).len();
    let attached = || (of_port() > 0, links(name::DEPART) + links(name::DROP));
    let becomes = |expected| eventually(s(15), || attached() == expected);
    assert_eq!(attached(), (false, 0));

    lab.queue(1);
    assert!(becomes((true, 2)), "with a queue: {:?}", attached());
    lab.no_queue(1);
    assert!(becomes((false, 0)), "without one: {:?}", attached());

    let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 100);
    let flow = || {
        let shown = stdout(&process::run(&ecn, &["flow", "show", "proto", "udp"]));
        let mut words = shown.split_whitespace();
        words.find(|word| word.contains('>')).map(str::to_owned)
    };
    assert!(eventually(s(5), || flow().is_some()), "no flow");
    let flow = flow().expect("a flow");
    process::run(&ecn, &["flow", "set", &flow, "--rate", "2mbit"]);
    assert!(becomes((false, 2)), "with a limit: {:?}", attached());
    process::run(&ecn, &["flow", "unset", &flow]);
    drop(stream);
    assert!(becomes((false, 0)), "without one: {:?}", attached());

    // Its entry outlives the device.
    lab.unplug(0);
    let mut refused = String::new();
    let is_refused = eventually(s(5), || {
        let set = process::run(&ecn, &["flow", "set", &flow, "--rate", "2mbit"]);
        refused = String::from_utf8_lossy(&set.stderr).into_owned();
        set.status.code() == Some(1)
    });
    assert!(is_refused && refused.contains("was removed"), "{refused}");
}

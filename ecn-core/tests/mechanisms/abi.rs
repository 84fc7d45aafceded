//! What the kernel checks when maps and programs are created, and what user space reads by position.

use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};

use ecn_core::abi::{self, Count, name};
use ecn_core::{ace, backward, bcn, echo, flow, marking, qcn, reaction, response, shares};

/// BPF_OBJ_NAME_LEN is 16 with the terminating zero, and the kernel takes letters, digits, `_`, `.`.
#[test]
fn names() {
    let all: Vec<&str> = name::SHARED.into_iter().chain(name::PROGRAMS).collect();
    for name in &all {
        assert!(
            !name.is_empty() && name.len() <= 15,
            "{name}: {} characters",
            name.len()
        );
        assert!(
            name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'),
            "{name}"
        );
    }
    let unique: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(unique.len(), all.len());
}

/// Each name constant is in one of the lists: a map that is not in `SHARED` would be created again for every loaded copy of
/// the object.
#[test]
fn lists_are_complete() {
    let shared: BTreeSet<&str> = name::SHARED.into();
    for map in [
        name::CONTROL,
        name::DEVICE,
        name::NEAR,
        name::BRIDGE,
        name::MARKING,
        name::ENDPOINT,
        name::FLOW,
        name::RECEIVER,
        name::DEPARTED,
        name::CLASS,
        name::IN_FORCE,
        name::PIN,
        name::LIMIT,
        name::SOCKET,
        name::RATE,
        name::TRACE,
        name::MARKED,
        name::TAIL,
        name::WORK,
        name::COUNT,
    ] {
        assert!(shared.contains(map), "{map}");
    }
    let text = include_str!("../../src/abi.rs");
    let constants = text
        .lines()
        .filter(|l| l.trim().starts_with("pub const") && l.contains(": &str"));
    // A program may be replaced by another one where the kernel accepts it.
    assert_eq!(
        constants.count(),
        name::SHARED.len() + name::PROGRAMS.len() + 1
    );
}

/// The sum of the members' sizes: there is no implicit padding, which the kernel would compare or show uninitialised.
#[test]
fn no_hidden_padding() {
    const LOCK: usize = size_of::<abi::bpf_spin_lock>();
    assert_eq!(LOCK, 4);
    assert_eq!(size_of::<flow::Key>(), 16 + 16 + 2 + 2 + 2 + 1 + 1);
    assert_eq!(
        size_of::<flow::Flow>(),
        size_of::<response::State>()
            + size_of::<echo::Sender>()
            + size_of::<ace::Sender>()
            + size_of::<backward::Sender>()
            + size_of::<reaction::Reaction>()
            + 20 * 8
            + 8 * 4
    );
    assert_eq!(
        size_of::<abi::Scratch>(),
        2 * size_of::<flow::Key>()
            + 4 * 4
            + 2 * 4
            + size_of::<abi::ResponseInput>()
            + size_of::<backward::Report>()
    );
    assert_eq!(
        size_of::<abi::ResponseInput>(),
        size_of::<echo::FeedbackDelta>() + 3 * 8 + 4 * 4
    );
    assert_eq!(size_of::<backward::Report>(), 8 + 6 * 4);
    assert_eq!(size_of::<backward::Sender>(), 2 * 4 + 2 * 8);
    assert_eq!(size_of::<backward::Point>(), 4 * 8 + 6 * 4);
    assert_eq!(size_of::<backward::Sampling>(), 6 * 4 + 8);
    assert_eq!(
        size_of::<backward::Policy>(),
        4 * 4 + 3 * 8 + 2 * 8 + size_of::<backward::Sampling>()
    );
    assert_eq!(size_of::<qcn::Limiter>(), 4 * 8 + 2 * 4);
    assert_eq!(
        size_of::<reaction::Reaction>(),
        size_of::<qcn::Limiter>() + 2 * 4
    );
    assert_eq!(size_of::<qcn::Policy>(), 9 * 8 + 2 * 4);
    assert_eq!(size_of::<bcn::Policy>(), 2 * 4 + 4 * 8);
    assert_eq!(size_of::<ace::Sender>(), 10 * 4);
    assert_eq!(size_of::<ace::Receiver>(), 8 + 8 * 4);
    assert_eq!(
        size_of::<echo::Receiver>(),
        6 * 8 + 2 * 4 + size_of::<ace::Receiver>()
    );
    assert_eq!(size_of::<echo::Sender>(), 4 + 4 + 2 + 2 + 7 * 4);
    assert_eq!(size_of::<echo::Policy>(), 8 + 2 * 4 + 4 * 8);
    assert_eq!(size_of::<marking::Port>(), 10 * 4 + 9 * 8);
    assert_eq!(size_of::<marking::Policy>(), 8 * 4);
    assert_eq!(size_of::<marking::Decision>(), 6 * 4);
    assert_eq!(size_of::<shares::Source>(), 4 + 2 + 2 + 2 * 4);
    assert_eq!(size_of::<shares::Output>(), 8 + 14 * 4);
    assert_eq!(
        size_of::<abi::Shares>(),
        4 * 4 + 8 + 256 * size_of::<shares::Output>() + (256 + 4096) * size_of::<shares::Source>()
    );
    assert_eq!(size_of::<abi::Control>(), 2 * 4 + 2 * 8);
    assert_eq!(size_of::<abi::Device>(), 6 * 4 + 8);
    assert_eq!(
        size_of::<abi::Endpoint>(),
        2 * 4
            + 2 * 8
            + size_of::<response::Policy>()
            + size_of::<echo::Policy>()
            + size_of::<bcn::Policy>()
            + size_of::<qcn::Policy>()
            + 2 * 4
    );
    assert_eq!(
        size_of::<abi::LockedFlow>(),
        LOCK + 4 + size_of::<flow::Flow>()
    );
    assert_eq!(
        size_of::<abi::LockedReceiver>(),
        LOCK + 4 + size_of::<echo::Receiver>()
    );
    assert_eq!(
        size_of::<abi::RateEvent>(),
        2 * 4 + 2 * 8 + 2 * 4 + 8 + size_of::<flow::Key>()
    );
    assert_eq!(size_of::<abi::Siblings>(), 3 * 8);
    assert_eq!(size_of::<abi::FlowChange>(), size_of::<flow::Key>() + 2 * 4);
    assert_eq!(
        size_of::<response::State>(),
        8 + 2 * 4 + 3 * 8 + 2 * 4 + 3 * 8
    );
    assert_eq!(
        size_of::<abi::PortEvent>(),
        8 * 4 + size_of::<marking::Decision>() + 2 * 8 + 4 * 4
    );
    assert_eq!(size_of::<abi::Offsets>(), 14 * 4 + 2 * 8);
    assert_eq!(
        size_of::<abi::Bridge>(),
        LOCK + 4 + 256 * size_of::<marking::Port>() + 256 * 256 * 4 + size_of::<abi::Shares>()
    );
}

/// The verifier wants a spin lock 4-aligned; the counters behind it are read as 64-bit words.
#[test]
fn locks() {
    assert_eq!(offset_of!(abi::Bridge, lock) % 4, 0);
    assert_eq!(offset_of!(abi::LockedFlow, lock) % 4, 0);
    assert_eq!(offset_of!(abi::LockedReceiver, lock) % 4, 0);
    assert_eq!(offset_of!(abi::Bridge, switch) % align_of::<u64>(), 0);
    assert_eq!(offset_of!(abi::LockedFlow, flow) % align_of::<u64>(), 0);
    assert_eq!(
        offset_of!(abi::LockedReceiver, receiver) % align_of::<u64>(),
        0
    );
    // The lock is found by this name in BTF.
    let name = std::any::type_name::<abi::bpf_spin_lock>();
    assert!(name.ends_with("::bpf_spin_lock"), "{name}");
}

/// A kernel program reads the four words of its packet by position.
#[test]
fn port_reset_is_four_words() {
    assert_eq!(size_of::<abi::PortReset>(), 16);
    assert_eq!(offset_of!(abi::PortReset, bridge), 0);
    assert_eq!(offset_of!(abi::PortReset, port), 4);
    assert_eq!(offset_of!(abi::PortReset, action), 8);
    assert_eq!(offset_of!(abi::PortReset, arrived), 12);
}

#[test]
fn counts_are_numbered_without_gaps() {
    for (number, count) in Count::ALL.into_iter().enumerate() {
        assert_eq!(count as usize, number, "{count:?}");
    }
}

#[test]
fn in_force_keeps_both_numbers() {
    for decrease in [0, 1, 0x8000_0000, u32::MAX] {
        for departed in [0, 1, 0x8000_0000, u32::MAX] {
            let entry = abi::in_force(decrease, departed);
            assert_eq!(((entry >> 32) as u32, entry as u32), (decrease, departed));
        }
    }
}

#[test]
fn flags_are_single_bits_and_distinct() {
    for flags in [
        &[abi::BYPASS, abi::TRACE_PORTS, abi::TRACE_LATENCY][..],
        &[
            abi::ROLE_PORT,
            abi::ROLE_ENDPOINT,
            abi::ROLE_WIRE_END,
            abi::ROLE_BACKLOG,
            abi::ROLE_NO_QUEUE,
            abi::ROLE_SAMPLES,
        ],
        &[
            abi::CONTROL_FLOWS,
            abi::OBSERVE,
            abi::ECHO,
            abi::EDT,
            abi::PACE,
            abi::CONTROL_TCP,
        ],
    ] {
        let mut seen = 0;
        for flag in flags {
            assert_eq!(flag.count_ones(), 1);
            assert_eq!(seen & flag, 0);
            seen |= flag;
        }
    }
}

#[test]
fn bounds() {
    // A slot is a u8, an endpoint number a u16 of the key, a class minor the low 16 bits of a packet's priority, of
    // which the device uses two for its own classes.
    assert_eq!(abi::PORTS, usize::from(u8::MAX) + 1);
    const { assert!(abi::ENDPOINTS <= 1 << 16) };
    assert_eq!(abi::CLASSES, 1 << 16);
    const { assert!(abi::FIRST_CLASS > 2 && abi::FIRST_CLASS < abi::CLASSES) };
    let tails = [
        abi::TAIL_OUT,
        abi::TAIL_IN,
        abi::TAIL_ACK,
        abi::TAIL_VIRTUAL,
        abi::TAIL_FLOW_MESSAGE,
        abi::TAIL_PORT_MESSAGE,
        abi::TAIL_SAMPLE,
        abi::TAIL_REACTION,
    ];
    assert_eq!(tails, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(tails.len(), abi::TAILS as usize);
    assert_ne!(abi::HTB_MAJOR, 0);
}

/// Endpoints that fill a table get equal quotas.
#[test]
fn quotas_of_a_table_are_equal() {
    const MAX: u64 = 1000;
    for greedy in 1..=9 {
        let (mut added, mut removed) = (vec![0u64; greedy], vec![0u64; greedy]);
        let all = |of: &[u64]| of.iter().sum::<u64>();
        // Entries are added and removed by programs and by the agent.
        for n in 0..10 * MAX as usize {
            let of = n % greedy;
            let (all_added, all_removed) = (all(&added), MAX + all(&removed));
            if abi::has_room(added[of], removed[of], all_added, all_removed) {
                added[of] += 1;
            } else if n % 7 == 0 {
                removed[of] += 1;
            }
        }
        let part = MAX / (greedy as u64 + 1);
        for (added, removed) in added.iter().zip(&removed) {
            let held = added - removed;
            assert!(held.abs_diff(part) <= 2, "{held} of {greedy}");
        }
        let (all_added, all_removed) = (all(&added), MAX + all(&removed));
        assert!(abi::has_room(0, 0, all_added, all_removed));
    }
    // Without quotas.
    assert!(abi::has_room(u64::MAX / 2, 0, u64::MAX / 2, 0));
    // Entries removed by programs that others had added.
    assert!(abi::has_room(u64::MAX, 0, u64::MAX, MAX));
}

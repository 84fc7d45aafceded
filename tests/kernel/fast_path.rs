//! Data of a TCP connection looks up the received flow only if there is new feedback: by `BPF_PROG_TEST_RUN`, segment by
//! segment.

use ecn_core::{
    abi::{self, name},
    echo,
    flow::{self, Flow},
    packet::{self, protocol},
    response::{self, Function},
};
use ecn_tests::{frames::Ip, kernel_test, lab::Lab, running::pin};
use ecn_user::datapath::{Copy, Datapath, Maps, Sizes, TestPacket};

/// The endpoint.
const ENDPOINT: u32 = 1;
/// TCP's flags, RFC 9293 section 3.1, RFC 3168 section 6.1.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
/// Payload of data.
const DATA: u32 = 1000;

/// An end of a connection: the programs, and the state of both directions.
struct End {
    copy: Copy,
    maps: Maps,
    /// Next sequence number out.
    next: u32,
    /// Next sequence number in.
    received: u32,
}

impl End {
    fn segment(&self, out: bool, ecn: u8, flags: u8, bytes: u32) -> Vec<u8> {
        let (ours, its) = ([10, 77, 0, 1], [10, 77, 0, 2]);
        let ((src, dst), (from, to), sequence, ack) = if out {
            ((ours, its), (1, 2), self.next, self.received)
        } else {
            ((its, ours), (2, 1), self.received, self.next)
        };
        let mut tcp = vec![0; 20 + bytes as usize];
        tcp[..4].copy_from_slice(&[0, from, 0, to]);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&ack.to_be_bytes());
        (tcp[12], tcp[13]) = (0x50, flags);
        // Addressed to the loopback device, whose address is zero.
        let ip = Ip::of(src, dst).ecn(ecn).to_mac([0; 6]);
        ip.with(protocol::TCP, &tcp)
    }

    /// Runs a segment through the program, and returns the resulting frame.
    fn pass(&mut self, out: bool, ecn: u8, flags: u8, bytes: u32) -> Vec<u8> {
        let frame = self.segment(out, ecn, flags, bytes);
        let packet = TestPacket {
            frame: &frame,
            ..TestPacket::default()
        };
        let program = if out {
            name::ENDPOINT_OUT
        } else {
            name::ENDPOINT_IN
        };
        let verdict = self.copy.test_run(program, &packet, 1).expect("run");
        assert_eq!(verdict.value, -1);
        if out {
            self.next += bytes;
        } else {
            self.received += bytes;
        }
        verdict.frame
    }

    /// Data goes out; returns its flow's state, which contains all of it.
    fn data(&mut self) -> Flow {
        self.pass(true, packet::NOT_ECT, ACK, DATA);
        let flow = self.flow();
        assert_eq!(flow.ace.end, self.next);
        flow
    }

    fn marked(&mut self) {
        self.pass(false, packet::CE, ACK, DATA);
    }

    /// A SYN goes out, and the SYN-ACK of a connection that did not negotiate ECN comes in.
    fn handshake(&mut self) {
        self.received += 1_000_000;
        self.next += 1_000_000;
        self.pass(true, packet::NOT_ECT, SYN, 0);
        self.next += 1;
        self.pass(false, packet::NOT_ECT, SYN | ACK, 0);
        self.received += 1;
    }

    fn flow(&self) -> Flow {
        let flows = self.maps.flows().expect("flows");
        flows.first().expect("a flow").1
    }

    fn receiver(&self) -> echo::Receiver {
        let receivers = self.maps.receivers().expect("receivers");
        receivers.first().expect("a receiver").1
    }
}

fn is_fast(flow: &Flow) -> bool {
    flow.seen_generation == flow.feedback_generation
}

fn with_an_end(test: impl FnOnce(End) + Send) {
    let lab = Lab::new(0);
    let sizes = Sizes {
        bridges: 1,
        flows: 16,
    };
    lab.switch.run(|| {
        let mut datapath = Datapath::open(&pin(), sizes).expect("load");
        datapath.load_endpoints().expect("load");
        datapath.load_backward().expect("load");
        let mut maps = datapath.maps().expect("maps");
        let control = abi::Control {
            abi: abi::ABI,
            flags: 0,
            valid_until_ns: u64::MAX,
            held_from_ns: u64::MAX,
        };
        maps.set_control(control).expect("control");
        let endpoint = abi::Endpoint {
            flags: abi::CONTROL_FLOWS | abi::ECHO,
            link_bytes_per_s: 1_250_000_000,
            response: response::Policy::hp(Function::Lipd),
            echo: echo::Policy {
                every_ns: 0,
                protocol: echo::PROTOCOL.into(),
                ..echo::Policy::default()
            },
            ..abi::Endpoint::default()
        };
        maps.set_endpoint(ENDPOINT, endpoint).expect("an endpoint");
        let copy = datapath.copy(lab.switch.inum(), ENDPOINT).expect("a copy");
        test(End {
            copy,
            maps,
            next: 100,
            received: 900,
        });
    });
}

/// With a handshake that was seen: marks are reported by ACKs, not by data, and a new connection with the same addresses is
/// another one.
#[test]
fn marks_are_noticed() {
    kernel_test!();
    with_an_end(|mut end| {
        for n in 1..3 {
            end.handshake();
            assert!(!is_fast(&end.data()), "it knows the connection");
            let flow = end.data();
            assert!(is_fast(&flow));
            assert_eq!((flow.flags, flow.sent_packets), (flow::PLAIN, n * 6 - 4));
            assert_eq!(end.receiver().flags, echo::PLAIN);
            assert!(is_fast(&end.data()));
            assert_eq!(end.receiver().ace.blocked_ns, 0);
            end.marked();
            assert_eq!(end.receiver().ace.pending, 1);
            assert!(!is_fast(&end.flow()));
            assert!(!is_fast(&end.data()));
            assert_ne!(end.receiver().ace.blocked_ns, 0, "marks wait behind data");
            let frame = end.pass(true, packet::NOT_ECT, ACK, 0);
            assert_eq!(frame[14 + 20 + 13], ACK | ECE, "one packet was marked");
            assert_eq!(end.receiver().ace.pending, 0);
            assert!(is_fast(&end.data()));
            assert!(is_fast(&end.data()));
        }
    });
}

/// Without: by the flags of its ACKs, or by their absence after a mark that TCP has seen.
#[test]
fn new_feedback_is_noticed() {
    kernel_test!();
    for ecn in [false, true] {
        with_an_end(|mut end| {
            end.data();
            assert!(is_fast(&end.data()));
            assert_eq!(end.flow().flags, flow::PLAIN, "new and not ECN-capable");
            end.marked();
            assert_eq!(end.receiver().flags, echo::PROBING);
            assert!(!is_fast(&end.flow()));
            let flags = if ecn { ACK | ECE } else { ACK };
            let answer = end.pass(true, packet::NOT_ECT, flags, 0);
            assert_eq!(answer[14 + 20 + 13], flags);
            let flow = end.data();
            if ecn {
                assert_eq!(end.receiver().flags, echo::NEGOTIATED);
                assert_eq!(flow.flags, flow::NEGOTIATED);
            } else {
                assert_eq!(end.receiver().flags, echo::PLAIN);
                assert_eq!(flow.flags, flow::PLAIN);
                assert!(is_fast(&flow));
                // Flags that come late are TCP's own, too.
                end.pass(true, packet::NOT_ECT, ACK | ECE, 0);
                assert_eq!(end.data().flags, flow::NEGOTIATED);
            }
        });
    }
}

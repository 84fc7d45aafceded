//! InfiniBand congestion control (annex A10): which packets a switch marks, and how a source reduces its rate by a
//! table; also IB CC+TCD. See `docs/sources.md`.
//!
//! Every mark is answered at once (BECN), in the ACK. The source's timer is not an event: its effect is computed when
//! the next packet is sent, which is when it matters.

use ecn_units::{Fraction, Rate, Size, keywords};
use serde::{Deserialize, Serialize};

use super::{
    Acknowledged, Cnm, Either, Endpoints, Hooks, Mark, Network, QueueView, Scheme, Sender, Sending,
    State, Switch, tcd,
};
use crate::bounds::{ModelError, in_range};
use crate::engine::{NS, Time};
use crate::fabric::packet::Packet;

/// IB CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ibcc {
    /// With TCD.
    pub tcd: bool,
}

impl Scheme for Ibcc {
    type Sender = IbccRules;
    type Switch = Either<Markers, tcd::Ports>;

    fn sender(&self, network: &Network) -> Result<IbccRules, ModelError> {
        network.schemes.ibcc.rules(network.line, network.buffer)
    }

    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError> {
        let rules = self.sender(network)?;
        let markers = Markers {
            rules,
            queues: vec![Marker::default(); network.queues as usize],
        };
        Ok(match rules.threshold {
            Some(threshold) if self.tcd => {
                Either::Other(tcd::Ports::new(network, threshold, Some(markers))?)
            }
            _ => Either::Plain(markers),
        })
    }
}

keywords! {
    /// Which ports mark although they lack credits (`Victim_Mask`).
    VictimMask {
        /// No ports.
        #[default]
        None = "none",
        /// Ports to hosts: they are held up by the host, not by a switch further downstream.
        Hosts = "hosts",
    }
}

/// IB CC's parameters, with the source of each default in `docs/sources.md`: those of the Omni-Path fabric
/// manager's code (F).
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IbccParameters {
    /// Threshold: 0 marks nothing; 1 to 15 mark above (16 - threshold)/16 of a port's buffer (F: 8; the levels: D).
    #[schemars(extend("unit" = "1/16 of the buffer"))]
    pub marking_threshold: u32,
    /// Packet_Size: smaller packets are not marked (F). At most 16320B.
    pub marking_size: Size,
    /// Marking_Rate: one of this many eligible packets is marked; 0 and 1 mark each (F).
    #[schemars(extend("unit" = "packets"))]
    pub marking_rate: u32,
    /// Victim_Mask: ports that mark although they lack credits (F).
    pub victim_mask: VictimMask,
    /// CCTI_Increase: what a notification adds to the index into the table (F).
    pub ccti_increase: u32,
    /// With TCD, what a notification adds to the index of a flow that passed only undetermined ports; by default
    /// nothing: it only restarts the timer (R).
    pub ccti_increase_undetermined: u32,
    /// CCTI_Timer: time after which the index falls by one, 1 to 65535 units of 1.024 us (F).
    #[schemars(extend("unit" = "1.024 us"))]
    pub ccti_timer: u32,
    /// CCTI_Min: lowest index (F).
    pub ccti_min: u32,
    /// CCTI_Limit: highest index (F).
    pub ccti_limit: u32,
    /// Delay after a packet per step of the index, in transmission times of that packet. With 1 the rate is 1/(1 +
    /// index) of the link's, as with LIPD (D). F has a maximum delay instead: 8 us, 94 packets of 1062 bytes at 100
    /// Gb/s.
    pub cct_step: Fraction,
}

impl Default for IbccParameters {
    fn default() -> Self {
        Self {
            marking_threshold: 8,
            marking_size: Size::from_bytes(0),
            marking_rate: 0,
            victim_mask: VictimMask::None,
            ccti_increase: 5,
            ccti_increase_undetermined: 0,
            ccti_timer: 10,
            ccti_min: 0,
            ccti_limit: 127,
            cct_step: Fraction::ratio(1, 1),
        }
    }
}

/// Unit of the timer.
const TIMER_UNIT: Time = 1_024 * NS;

/// A stopped timer.
const NEVER: Time = Time::MAX;

/// A table entry has 14 bits for the multiplier, and 2 for the shift.
const MOST_MULTIPLIER: u64 = (1 << 14) - 1;
const MOST_SHIFT: u32 = 3;

/// The parameters in computational form: bytes per second, bytes and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct IbccRules {
    line: u64,
    /// Queue length above which a port marks; `None` if nothing is marked.
    threshold: Option<u64>,
    marking_size: u64,
    marking_rate: u32,
    hosts_are_masked: bool,
    increase: u16,
    increase_undetermined: u16,
    timer: Time,
    least: u16,
    most: u16,
    /// Shift of all table entries.
    shift: u32,
    step: Fraction,
}

impl IbccParameters {
    /// Checks constraints that the types do not express. `buffer`: of an output port and virtual lane, bytes.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, line: Rate, buffer: u64) -> Result<IbccRules, ModelError> {
        for (key, value, most) in [
            ("marking_threshold", self.marking_threshold, 15),
            ("marking_rate", self.marking_rate, 65_535),
            ("ccti_increase", self.ccti_increase, 255),
            (
                "ccti_increase_undetermined",
                self.ccti_increase_undetermined,
                255,
            ),
            ("ccti_min", self.ccti_min, 255.min(self.ccti_limit)),
            ("ccti_limit", self.ccti_limit, 65_535),
        ] {
            in_range(key, value, 0..=most)?;
        }
        if !(1..=65_535).contains(&self.ccti_timer) {
            let reason = "must be between 1 and 65535, in units of 1.024 us";
            return Err(ModelError::new("ccti_timer", self.ccti_timer, reason));
        }
        // 8 bits, in units of 64 bytes.
        if self.marking_size.bytes() > 255 * 64 {
            let reason = "must be at most 16320B";
            return Err(ModelError::new("marking_size", self.marking_size, reason));
        }
        // F: the largest shift for which the longest delay still fits.
        let longest = |shift: u32| self.cct_step.of(u64::from(self.ccti_limit) << shift);
        let shift = (0..=MOST_SHIFT)
            .rev()
            .find(|shift| longest(*shift) <= MOST_MULTIPLIER)
            .ok_or_else(|| {
                let limit = self.ccti_limit;
                let reason = format!("must be at most 16383 divided by ccti_limit, {limit}");
                ModelError::new("cct_step", self.cct_step, reason)
            })?;
        let levels = u64::from(16 - self.marking_threshold);
        Ok(IbccRules {
            line: line.bytes_per_s(),
            threshold: (self.marking_threshold > 0)
                .then_some((u128::from(buffer) * u128::from(levels) / 16) as u64),
            marking_size: self.marking_size.bytes(),
            marking_rate: self.marking_rate,
            hosts_are_masked: self.victim_mask == VictimMask::Hosts,
            increase: self.ccti_increase as u16,
            increase_undetermined: self.ccti_increase_undetermined as u16,
            timer: Time::from(self.ccti_timer) * TIMER_UNIT,
            least: self.ccti_min as u16,
            most: self.ccti_limit as u16,
            shift,
            step: self.cct_step,
        })
    }
}

impl IbccRules {
    /// Multiplier of a table entry: after a packet with transmission time t, the source waits (t >> shift) times this.
    fn multiplier(&self, ccti: u16) -> u64 {
        self.step.of(u64::from(ccti) << self.shift)
    }

    /// The resulting rate: 1/(1 + multiplier/2^shift) of the link's.
    fn rate(&self, ccti: u16) -> u64 {
        let one = 1_u128 << self.shift;
        let rate = u128::from(self.line) * one / (one + u128::from(self.multiplier(ccti)));
        (rate as u64).max(1)
    }
}

/// Marking state of an output port and virtual lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marker {
    /// Eligible packets since the last mark.
    eligible: u32,
}

impl Marker {
    /// Whether to mark a departing packet (FECN). A long queue with credits is the root of congestion. Without credits
    /// it is a victim, which marks only if `to_host` and if ports to hosts have the mask.
    pub fn marks(
        &mut self,
        rules: &IbccRules,
        bytes: u32,
        queued: u64,
        has_credits: bool,
        to_host: bool,
    ) -> bool {
        let long = rules.threshold.is_some_and(|threshold| queued > threshold);
        let marks = has_credits || to_host && rules.hosts_are_masked;
        long && marks && self.is_selected(rules, bytes)
    }

    /// Marking with TCD: the port's state decides whether to mark and how; packet size and marking rate apply as
    /// without TCD. CE marks of earlier ports are not cleared.
    pub fn marks_by_state(&mut self, rules: &IbccRules, bytes: u32, own: Mark) -> Mark {
        if own > Mark::None && rules.threshold.is_some() && self.is_selected(rules, bytes) {
            own
        } else {
            Mark::None
        }
    }

    /// Selects one of `marking_rate` eligible packets.
    fn is_selected(&mut self, rules: &IbccRules, bytes: u32) -> bool {
        if u64::from(bytes) < rules.marking_size {
            return false;
        }
        self.eligible += 1;
        let is_due = self.eligible >= rules.marking_rate;
        if is_due {
            self.eligible = 0;
        }
        is_due
    }
}

/// Switches that mark by queue length and credits.
#[derive(Debug)]
pub struct Markers {
    rules: IbccRules,
    queues: Vec<Marker>,
}

impl Markers {
    /// Marking with TCD: the mark of a packet that leaves through a port whose state gives the mark `own`.
    pub fn by_state(&mut self, at: &QueueView, packet: &Packet, own: Mark) -> Mark {
        let marker = &mut self.queues[at.queue as usize];
        marker.marks_by_state(&self.rules, packet.bytes.into(), own)
    }
}

impl Switch for Markers {
    fn hooks(&self) -> Hooks {
        Hooks::ENQUEUE_QUEUED
    }

    fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) -> Option<Cnm> {
        let marker = &mut self.queues[at.queue as usize];
        let (bytes, queued) = (packet.bytes.into(), at.queued.into());
        if marker.marks(&self.rules, bytes, queued, at.on, at.to_host) {
            packet.mark = Mark::Congestion;
        }
        None
    }

    /// Roots count as congested, and victims as undetermined.
    fn state(&self, at: &QueueView) -> Option<State> {
        Some(match (self.rules.threshold, at.on) {
            (Some(threshold), true) if u64::from(at.queued) > threshold => State::Congestion,
            (Some(threshold), false) if u64::from(at.queued) > threshold => State::Undetermined,
            _ => State::NonCongestion,
        })
    }
}

impl Sender for IbccRules {
    type Flow = IbccFlow;

    fn on_start(&mut self, _: Endpoints) -> IbccFlow {
        IbccFlow::new(self)
    }

    fn on_send(&mut self, flow: &mut IbccFlow, packet: &Sending) -> Option<Time> {
        Some(packet.time_at(flow.on_send(self, packet.now)?))
    }

    fn on_ack(&mut self, flow: &mut IbccFlow, ack: &Acknowledged) -> Option<Time> {
        flow.on_notification(self, ack.now, ack.mark);
        None
    }
}

/// A source's state of a flow (a queue pair).
#[derive(Clone, Copy, Debug)]
pub struct IbccFlow {
    timer_due: Time,
    /// Index into the table.
    ccti: u16,
}

impl IbccFlow {
    /// A flow at the lowest index.
    pub const fn new(rules: &IbccRules) -> Self {
        Self {
            timer_due: NEVER,
            ccti: rules.least,
        }
    }

    /// Handles a BECN. It does not restart the timer (H), unless the flow passed undetermined ports only (TCD).
    pub fn on_notification(&mut self, rules: &IbccRules, now: Time, mark: Mark) {
        self.advance(rules, now);
        let increase = match mark {
            Mark::None => return,
            Mark::Undetermined => {
                if self.timer_due != NEVER {
                    self.timer_due = now + rules.timer;
                }
                rules.increase_undetermined
            }
            Mark::Congestion => rules.increase,
        };
        self.ccti = self.ccti.saturating_add(increase).min(rules.most);
        if self.timer_due == NEVER && self.ccti > rules.least {
            self.timer_due = now + rules.timer;
        }
    }

    /// The rate for the next packet, bytes per second, if it is below the link's. It is a rate because the delay after
    /// each packet is proportional to the packet.
    pub fn on_send(&mut self, rules: &IbccRules, now: Time) -> Option<u64> {
        self.advance(rules, now);
        (rules.multiplier(self.ccti) > 0).then(|| rules.rate(self.ccti))
    }

    /// Its index into the table.
    pub fn index(&mut self, rules: &IbccRules, now: Time) -> u16 {
        self.advance(rules, now);
        self.ccti
    }

    /// Applies all expiries of the timer up to `now`.
    fn advance(&mut self, rules: &IbccRules, now: Time) {
        if self.timer_due > now {
            return;
        }
        let above = Time::from(self.ccti.saturating_sub(rules.least));
        let expired = 1 + (now - self.timer_due) / rules.timer;
        if expired >= above {
            *self = Self::new(rules);
        } else {
            self.ccti -= expired as u16;
            self.timer_due += expired * rules.timer;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::cc::tests::{packet, queue_view, switches};
    use crate::fabric::packet::NONE;
    use ecn_core::response::{Function, IPD_LIMIT, Policy, Ratio, marked};
    use proptest::prelude::*;

    const LINE: u64 = 12_500_000_000;
    const BUFFER: u64 = 160_000;

    fn rules_of(change: impl FnOnce(&mut IbccParameters)) -> Result<IbccRules, ModelError> {
        let mut parameters = IbccParameters::default();
        change(&mut parameters);
        parameters.rules("100gbit".parse().unwrap(), BUFFER)
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut IbccParameters)| rules_of(change).unwrap_err().key;
        assert_eq!(refused(&|p| p.marking_threshold = 16), "marking_threshold");
        let size = Size::from_bytes(16_321);
        assert_eq!(refused(&|p| p.marking_size = size), "marking_size");
        assert_eq!(refused(&|p| p.marking_rate = 65_536), "marking_rate");
        assert_eq!(refused(&|p| p.ccti_increase = 256), "ccti_increase");
        let key = refused(&|p| p.ccti_increase_undetermined = 256);
        assert_eq!(key, "ccti_increase_undetermined");
        assert_eq!(refused(&|p| p.ccti_timer = 0), "ccti_timer");
        assert_eq!(refused(&|p| p.ccti_min = 128), "ccti_min");
        assert_eq!(refused(&|p| p.ccti_limit = 65_536), "ccti_limit");
        assert_eq!(
            refused(&|p| p.cct_step = Fraction::ratio(130, 1)),
            "cct_step"
        );
    }

    /// The table of section 4, and the entries: the largest shift for which the longest delay fits in 14 bits.
    #[test]
    fn a_linear_table_gives_the_rates_of_the_reference() {
        let one = rules_of(|_| {}).unwrap();
        let eighth = rules_of(|p| p.cct_step = Fraction::ratio(1, 8)).unwrap();
        for (ccti, of_one, of_eighth) in [
            (1, 0.5, 0.889),
            (5, 0.167, 0.615),
            (10, 0.0909, 0.444),
            (31, 0.0312, 0.205),
            (63, 0.0156, 0.113),
            (127, 0.0078, 0.0593),
        ] {
            let close = |rate: u64, expected: f64| {
                let share = rate as f64 / LINE as f64;
                (share - expected).abs() < 0.006 * expected
            };
            assert!(close(one.rate(ccti), of_one), "{ccti}");
            assert!(close(eighth.rate(ccti), of_eighth), "{ccti}");
        }
        assert_eq!((one.shift, one.multiplier(127)), (3, 1_016));
        let long = rules_of(|p| p.ccti_limit = 8_191).unwrap();
        assert_eq!((long.shift, long.multiplier(8_191)), (1, 16_382));
    }

    /// I5: LIPD's decrease of one more packet time per mark.
    #[test]
    fn the_decrease_is_lipds() {
        let rmin = Ratio::new(1, IPD_LIMIT);
        let lipd = Policy::new(Function::Lipd, rmin, Policy::HP_M).unwrap();
        let rules = rules_of(|p| p.ccti_increase = 1).unwrap();
        let mut flow = IbccFlow::new(&rules);
        let mut delay = ecn_core::fixed::ONE;
        for _ in 0..127 {
            flow.on_notification(&rules, 0, Mark::Congestion);
            delay = marked(&lipd, delay);
            let times = delay / ecn_core::fixed::ONE;
            assert_eq!(flow.on_send(&rules, 0), Some(LINE / times));
        }
    }

    /// I2: k marks raise the index k times, and do not affect the timer.
    #[test]
    fn marks_add_up_and_do_not_put_off_the_timer() {
        let rules = rules_of(|p| p.ccti_timer = 150).unwrap();
        let mut flow = IbccFlow::new(&rules);
        for k in 1..=40 {
            flow.on_notification(&rules, k * NS, Mark::Congestion);
            assert_eq!(Time::from(flow.ccti), (5 * k).min(127));
        }
        flow.advance(&rules, 153_600 * NS);
        assert_eq!(flow.ccti, 127);
        flow.advance(&rules, 153_601 * NS);
        assert_eq!(flow.ccti, 126);
    }

    /// I3: from 127 to 0 in 1.30 ms (F) and 19.5 ms (timer 150).
    #[test]
    fn the_index_decays_in_its_time() {
        for (timer, least, us) in [(10, 0, 1_300.48), (150, 0, 19_507.2), (10, 27, 1_024.0)] {
            let rules = rules_of(|p| (p.ccti_timer, p.ccti_min) = (timer, least)).unwrap();
            let mut flow = IbccFlow::new(&rules);
            (0..26).for_each(|_| flow.on_notification(&rules, 0, Mark::Congestion));
            let end = (us * 1_000.0) as Time * NS;
            flow.advance(&rules, end - 1);
            assert_eq!(u32::from(flow.ccti), least + 1);
            flow.advance(&rules, end);
            assert_eq!(u32::from(flow.ccti), least);
            assert_eq!(flow.timer_due, NEVER);
            assert_eq!(flow.on_send(&rules, end).is_some(), least > 0);
        }
    }

    /// IB CC+TCD: a notification restarts the timer if only undetermined ports were passed.
    #[test]
    fn an_undetermined_flow_holds_its_index() {
        let rules = rules_of(|_| {}).unwrap();
        let mut flow = IbccFlow::new(&rules);
        flow.on_notification(&rules, 0, Mark::Undetermined);
        assert_eq!((flow.ccti, flow.timer_due), (0, NEVER));
        flow.on_notification(&rules, 0, Mark::Congestion);
        for n in 1..100 {
            flow.on_notification(&rules, n * 10_000 * NS, Mark::Undetermined);
            flow.on_notification(&rules, n * 10_000 * NS, Mark::None);
            assert_eq!(flow.ccti, 5);
        }
        flow.advance(&rules, (990_000 + 10_240) * NS);
        assert_eq!(flow.ccti, 4);
        let rules = rules_of(|p| p.ccti_increase_undetermined = 1).unwrap();
        flow.on_notification(&rules, 990_000 * NS, Mark::Undetermined);
        assert_eq!(flow.ccti, 5);
    }

    #[test]
    fn roots_mark_and_victims_if_their_port_is_masked() {
        let plain = rules_of(|_| {}).unwrap();
        let masked = rules_of(|p| p.victim_mask = VictimMask::Hosts).unwrap();
        let marks = |rules, queued, credits, host| {
            Marker::default().marks(rules, 1_000, queued, credits, host)
        };
        // Half of the buffer.
        assert!(!marks(&plain, 80_000, true, false) && marks(&plain, 80_001, true, false));
        assert!(!marks(&plain, 160_000, false, false) && !marks(&plain, 160_000, false, true));
        assert!(!marks(&masked, 160_000, false, false) && marks(&masked, 160_000, false, true));
    }

    /// I9, and by TCD's states.
    #[test]
    fn small_packets_are_never_marked() {
        let rules = rules_of(|p| p.marking_size = Size::from_bytes(512)).unwrap();
        let mut marker = Marker::default();
        assert!(!marker.marks(&rules, 511, BUFFER, true, true));
        assert!(marker.marks(&rules, 512, BUFFER, true, true));
        for mark in [Mark::None, Mark::Undetermined, Mark::Congestion] {
            assert_eq!(marker.marks_by_state(&rules, 511, mark), Mark::None);
            assert_eq!(marker.marks_by_state(&rules, 512, mark), mark);
        }
    }

    /// I10: exactly one of `marking_rate` packets.
    #[test]
    fn one_of_marking_rate_is_marked() {
        for (rate, marked) in [(0, 12_000), (1, 12_000), (3, 4_000), (100, 120)] {
            let rules = rules_of(|p| p.marking_rate = rate).unwrap();
            let mut marker = Marker::default();
            let marks = (0..12_000).filter(|_| marker.marks(&rules, 1_000, BUFFER, true, false));
            assert_eq!(marks.count(), marked);
        }
    }

    /// IB CC: without credits a long queue is a victim, which is marked only at ports to hosts, and only if these have
    /// the mask.
    #[test]
    fn ibcc_marks_victims_before_hosts_with_the_mask() {
        for (mask, marks) in [("none", 0), ("hosts", 1)] {
            let mask = format!("ibcc.victim_mask={mask}");
            let settings = ["scheme=ibcc", "flow_control=cbfc", &mask];
            let mut switches = switches(&settings);
            let full = queue_view(0, 1, 0, 1, 900_000);
            for (on, to_host, expected) in [
                (true, true, 1),
                (true, false, 1),
                (false, true, marks),
                (false, false, 0),
            ] {
                let view = QueueView {
                    on,
                    to_host,
                    ..full
                };
                let mut packet = packet(NONE);
                switches.on_enqueue(&view, &mut packet, true);
                let marked = u32::from(packet.mark == Mark::Congestion);
                assert_eq!(marked, expected, "{mask} {on} {to_host}");
            }
        }
    }

    proptest! {
        /// I1: the index stays within its bounds; without marks it never rises.
        #[test]
        fn the_index_stays_in_its_bounds(
            least in 0u32..100,
            limit in 100u32..300,
            increase in 0u32..256,
            steps in prop::collection::vec((0u64..100_000, 0u8..3), 1..300),
        ) {
            let rules = rules_of(|p| {
                (p.ccti_min, p.ccti_limit, p.ccti_increase) = (least, limit, increase);
            }).unwrap();
            let mut flow = IbccFlow::new(&rules);
            let mut now = 0;
            for (ns, mark) in steps {
                now += ns * NS;
                let before = flow.ccti;
                let mark = [Mark::None, Mark::Undetermined, Mark::Congestion][usize::from(mark)];
                flow.on_notification(&rules, now, mark);
                prop_assert!((least..=limit).contains(&flow.ccti.into()));
                prop_assert!(mark == Mark::Congestion || flow.ccti <= before);
                prop_assert_eq!(flow.timer_due == NEVER, u32::from(flow.ccti) == least);
            }
        }

        /// I8: a threshold of 0 marks nothing, and a higher threshold never marks fewer packets.
        #[test]
        fn a_higher_threshold_marks_no_less(
            packets in prop::collection::vec((0..2 * BUFFER, any::<bool>(), any::<bool>()), 1..300),
            rate in 0u32..10,
        ) {
            let mut last = 0;
            for threshold in 0..=15 {
                let rules = rules_of(|p| {
                    (p.marking_threshold, p.marking_rate) = (threshold, rate);
                }).unwrap();
                let mut marker = Marker::default();
                let marks = packets
                    .iter()
                    .filter(|(queued, credits, host)| marker.marks(&rules, 1_000, *queued, *credits, *host))
                    .count();
                prop_assert!(threshold > 0 || marks == 0);
                prop_assert!(marks >= last);
                last = marks;
            }
        }
    }
}

//! The response functions compared with the papers' closed forms and tables, and invariants for every parameter. Reference
//! values are computed here in floating point from the published equations; the functions under test use integers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use ecn_core::fixed::{self, FRAC, LOG_FRAC, ONE};
use ecn_core::response::{
    Feedback, Function, IPD_LIMIT, MAX_DECREASES, Policy, PolicyError, Ratio, Reaction, Round,
    State, marked, rate, unmarked,
};
use proptest::prelude::*;

const CONTROLLED: [Function; 3] = [Function::Lipd, Function::Fimd, Function::Aimd];

fn ipd_of(r: f64) -> u64 {
    (ONE as f64 / r).round() as u64
}

fn rate_of(ipd: u64) -> f64 {
    ONE as f64 / ipd as f64
}

fn policy(function: Function, rmin: (u64, u64), m: (u64, u64)) -> Policy {
    Policy::new(function, Ratio::new(rmin.0, rmin.1), Ratio::new(m.0, m.1)).unwrap()
}

#[track_caller]
fn close(got: f64, want: f64, relative: f64) {
    let error = (got / want - 1.0).abs();
    assert!(
        error <= relative,
        "got {got}, want {want}, relative error {error:e}"
    );
}

/// fdec of the papers, Rmax = 1.
fn fdec(function: Function, r: f64, rmin: f64, m: f64) -> f64 {
    let r = match function {
        Function::None => return r,
        Function::Lipd => r / (1.0 + r),
        Function::Fimd | Function::Aimd => r / m,
    };
    r.max(rmin)
}

/// finc of the papers, Rmax = 1.
fn finc(function: Function, r: f64, rmin: f64, m: f64) -> f64 {
    let r = match function {
        Function::None => return r,
        Function::Lipd => r / (1.0 - rmin),
        Function::Fimd => r * m.powf(rmin / r),
        Function::Aimd => r + (m - 1.0) * rmin * rmin / r,
    };
    r.min(1.0)
}

/// Finc over time, Rmax = 1.
fn finc_at(function: Function, t: f64, rmin: f64, m: f64) -> f64 {
    let r = match function {
        Function::None => return 1.0,
        Function::Lipd if rmin * rmin * t >= 1.0 => 1.0,
        Function::Lipd => rmin / (1.0 - rmin * rmin * t),
        Function::Fimd => rmin * m.powf(rmin * t),
        Function::Aimd => rmin + (m - 1.0) * rmin * rmin * t,
    };
    r.min(1.0)
}

/// Time and number of unmarked ACKs from one delay until the rate is `target`, ACK by ACK; the
/// last interval counts in the share that reaches the target.
fn recover(policy: &Policy, mut ipd: u64, target: f64) -> (f64, u32) {
    let (mut time, mut acks) = (0.0, 0);
    let end = ipd_of(target);
    while ipd > end {
        let next = unmarked(policy, ipd, 1);
        assert!(next < ipd, "stalls at {}", rate_of(ipd));
        let interval = ipd as f64 / ONE as f64;
        // Where the last ACK goes beyond the target, or is cut off at Rmax, only part of it counts.
        let whole = finc_unclamped(policy, rate_of(ipd));
        time += if whole <= target {
            interval
        } else {
            interval * progress(policy, rate_of(ipd), target)
                / progress(policy, rate_of(ipd), whole)
        };
        acks += 1;
        ipd = next;
    }
    (time, acks)
}

fn parameters(policy: &Policy) -> (Function, f64, f64) {
    let function = Function::from_number(policy.function).unwrap();
    (
        function,
        ONE as f64 / policy.ipd_max as f64,
        policy.m as f64 / ONE as f64,
    )
}

fn finc_unclamped(policy: &Policy, r: f64) -> f64 {
    let (function, rmin, m) = parameters(policy);
    match function {
        Function::None => r,
        Function::Lipd => r / (1.0 - rmin),
        Function::Fimd => r * m.powf(rmin / r),
        Function::Aimd => r + (m - 1.0) * rmin * rmin / r,
    }
}

/// Finc's own time between two rates.
fn progress(policy: &Policy, from: f64, to: f64) -> f64 {
    let (function, rmin, m) = parameters(policy);
    match function {
        Function::None => 0.0,
        Function::Lipd => (1.0 / from - 1.0 / to) / rmin,
        Function::Fimd => (to / from).log(m) / rmin,
        Function::Aimd => (to - from) / ((m - 1.0) * rmin * rmin),
    }
}

// The tables of one step: 1/r, fdec, finc, Trec per function.

/// r, fdec LIPD, fdec FIMD and AIMD, finc LIPD, finc FIMD, finc AIMD.
const ONE_STEP: [[f64; 6]; 9] = [
    [
        1.0 / 256.0,
        0.003906,
        0.003906,
        0.003922,
        0.007812,
        0.007812,
    ],
    [
        1.0 / 128.0,
        0.007752,
        0.003906,
        0.007843,
        0.011049,
        0.009766,
    ],
    [1.0 / 64.0, 0.015385, 0.007812, 0.015686, 0.018581, 0.016602],
    [1.0 / 32.0, 0.030303, 0.015625, 0.031373, 0.034078, 0.031738],
    [1.0 / 20.0, 0.047619, 0.025000, 0.050196, 0.052782, 0.050305],
    [0.1, 0.090909, 0.050000, 0.100392, 0.102745, 0.100153],
    [0.25, 0.200000, 0.125000, 0.250980, 0.252722, 0.250061],
    [0.5, 0.333333, 0.250000, 0.501961, 0.502715, 0.500031],
    [1.0, 0.500000, 0.500000, 1.0, 1.0, 1.0],
];

/// R7: one step from each rate, to the six digits printed, and to 1e-9 against the equations.
#[test]
fn one_step_table() {
    for row in ONE_STEP {
        let r = row[0];
        for (i, function) in CONTROLLED.into_iter().enumerate() {
            let policy = Policy::hp(function);
            let down = rate_of(marked(&policy, ipd_of(r)));
            let up = rate_of(unmarked(&policy, ipd_of(r), 1));
            assert!(
                (down - row[1 + i.min(1)]).abs() < 1e-6,
                "{function:?} fdec({r}) = {down}"
            );
            assert!(
                (up - row[3 + i]).abs() < 1e-6,
                "{function:?} finc({r}) = {up}"
            );
            close(down, fdec(function, r, 1.0 / 256.0, 2.0), 1e-10);
            close(up, finc(function, r, 1.0 / 256.0, 2.0), 2e-11);
        }
    }
}

/// Trec after one mark at each rate; rates below R1 clamp and are left out.
#[test]
fn recovery_time_table() {
    let aimd = [
        256.0, 512.0, 1024.0, 1638.4, 3276.8, 8192.0, 16384.0, 32768.0,
    ];
    for (row, trec_aimd) in ONE_STEP[1..].iter().zip(aimd) {
        for (function, trec) in CONTROLLED.into_iter().zip([256.0, 256.0, trec_aimd]) {
            let policy = Policy::hp(function);
            let (time, _) = recover(&policy, marked(&policy, ipd_of(row[0])), row[0]);
            close(time, trec, 1e-6);
        }
    }
}

/// t, FIMD, AIMD, LIPD.
const CURVE: [[f64; 4]; 14] = [
    [0.0, 0.003906, 0.003906, 0.003906],
    [256.0, 0.007812, 0.007812, 0.003922],
    [512.0, 0.015625, 0.011719, 0.003937],
    [1024.0, 0.062500, 0.019531, 0.003968],
    [1536.0, 0.250000, 0.027344, 0.004000],
    [2048.0, 1.000000, 0.035156, 0.004032],
    [8192.0, 1.0, 0.128906, 0.004464],
    [16384.0, 1.0, 0.253906, 0.005208],
    [32768.0, 1.0, 0.503906, 0.007812],
    [49152.0, 1.0, 0.753906, 0.015625],
    [60000.0, 1.0, 0.919434, 0.046243],
    [64000.0, 1.0, 0.980469, 0.166667],
    [65024.0, 1.0, 0.996094, 0.500000],
    [65280.0, 1.0, 1.0, 1.0],
];

/// Steps ACK by ACK from Rmin, one ACK per 1/r, and holds every point against Finc(t), and the
/// table's points between the two ACKs around them.
#[test]
fn increase_over_time() {
    for (column, function) in [
        (1, Function::Fimd),
        (2, Function::Aimd),
        (3, Function::Lipd),
    ] {
        let policy = Policy::hp(function);
        let (mut ipd, mut t) = (policy.ipd_max, 0.0);
        let mut points = CURVE.iter().peekable();
        while ipd > ONE {
            close(rate_of(ipd), finc_at(function, t, 1.0 / 256.0, 2.0), 1e-6);
            let (after, next) = (t + ipd as f64 / ONE as f64, unmarked(&policy, ipd, 1));
            while let Some(point) = points.next_if(|p| p[0] <= after) {
                assert!(
                    (finc_at(function, point[0], 1.0 / 256.0, 2.0) - point[column]).abs() < 1e-6
                );
                let bounds = rate_of(ipd) - 2e-6..=rate_of(next) + 2e-6;
                assert!(
                    bounds.contains(&point[column]),
                    "{function:?} {point:?} {bounds:?}"
                );
            }
            (t, ipd) = (after, next);
        }
        // The rest of the table is at full rate.
        assert!(points.all(|p| p[column] == 1.0), "{function:?}");
    }
}

/// R1 and the properties: time and ACKs from Rmin to Rmax; R2 follows.
#[test]
fn full_recovery() {
    let expected = [
        (Function::Lipd, 65280.0, 1417..=1418),
        (Function::Fimd, 2048.0, 365..=365),
        (Function::Aimd, 65280.0, 32765..=32765),
    ];
    let mut times = Vec::new();
    for (function, time, acks) in expected {
        let policy = Policy::hp(function);
        let got = recover(&policy, policy.ipd_max, 1.0);
        close(got.0, time, 1e-6);
        assert!(acks.contains(&got.1), "{function:?}: {} ACKs", got.1);
        times.push(got.0);
    }
    assert!(
        times[1] * 30.0 < times[2],
        "R2: FIMD recovers much faster than AIMD"
    );
    // Slide 14's ends of the curves with other floors: 1/255, 1/257, 1/128, 1/512.
    for (den, linear, fimd) in [
        (255, 64770.0, 2038.6),
        (257, 65792.0, 2057.4),
        (128, 16256.0, 896.0),
        (512, 261632.0, 4608.0),
    ] {
        for function in CONTROLLED {
            let policy = policy(function, (1, den), (2, 1));
            let want = if function == Function::Fimd {
                fimd
            } else {
                linear
            };
            close(recover(&policy, policy.ipd_max, 1.0).0, want, 3e-5);
        }
    }
}

/// R3: a mark costs LIPD half the rate at full rate but 4.8 % at 1/20; FIMD and AIMD always half.
#[test]
fn decrease_depends_on_rate() {
    for (function, at_full, at_twentieth) in [
        (Function::Lipd, 0.5, 1.0 / 21.0),
        (Function::Fimd, 0.5, 1.0 / 40.0),
        (Function::Aimd, 0.5, 1.0 / 40.0),
    ] {
        let policy = Policy::hp(function);
        close(rate_of(marked(&policy, ONE)), at_full, 1e-12);
        close(rate_of(marked(&policy, 20 * ONE)), at_twentieth, 1e-12);
    }
}

/// The property finc(fdec(r)) = r holds at R1 and nowhere above.
#[test]
fn congestion_avoidance_is_tight_at_r1() {
    for (function, r1) in [
        (Function::Lipd, 255 * ONE),
        (Function::Fimd, 128 * ONE),
        (Function::Aimd, 128 * ONE),
    ] {
        let policy = Policy::hp(function);
        assert_eq!(marked(&policy, r1), policy.ipd_max);
        assert!(
            unmarked(&policy, policy.ipd_max, 1).abs_diff(r1) <= 64,
            "{function:?}"
        );
        let above = r1 / 2;
        assert!(
            unmarked(&policy, marked(&policy, above), 1) > above + ONE / 1000,
            "{function:?}"
        );
    }
}

/// R8: after one synchronous mark, FIMD and LIPD are back at 256 packet times whatever their rate;
/// with AIMD the slower flow is back first.
#[test]
fn two_flows_recover() {
    for (slow, fast) in [(1.0 / 50.0, 0.4), (1.0 / 100.0, 1.0), (0.1, 0.2)] {
        for function in CONTROLLED {
            let policy = Policy::hp(function);
            let back = |r| recover(&policy, marked(&policy, ipd_of(r)), r).0;
            if function == Function::Aimd {
                assert!(back(slow) < 0.9 * back(fast));
                close(back(fast) / back(slow), fast / slow, 1e-5);
            } else {
                close(back(slow), 256.0, 1e-6);
                close(back(fast), 256.0, 1e-6);
            }
        }
    }
}

/// R9: a synchronous cycle keeps r1/r2 (FIMD) and 1/r1 - 1/r2 (LIPD).
///
/// Both flows are marked together and then driven for 256 packet times on one clock; the rates
/// are read off Finc between ACKs, since the two do not get their ACKs at the same moment.
#[test]
fn a_decrease_and_recovery_keep_fairness() {
    let drive = |policy: &Policy, mut ipd: u64, mut left: f64| {
        while left >= ipd as f64 / ONE as f64 {
            left -= ipd as f64 / ONE as f64;
            ipd = unmarked(policy, ipd, 1);
        }
        // Within the interval, along Finc.
        let (function, rmin, m) = parameters(policy);
        let r = rate_of(ipd);
        finc_at(function, progress(policy, rmin, r) + left, rmin, m)
    };
    for (slow, fast) in [(1.0 / 60.0, 0.3), (0.05, 0.9)] {
        let fimd = Policy::hp(Function::Fimd);
        let lipd = Policy::hp(Function::Lipd);
        for cycle in [100.0, 200.0, 256.0] {
            let after = |p: &Policy, r| drive(p, marked(p, ipd_of(r)), cycle);
            close(after(&fimd, fast) / after(&fimd, slow), fast / slow, 1e-6);
            let gap = 1.0 / after(&lipd, slow) - 1.0 / after(&lipd, fast);
            close(gap, 1.0 / slow - 1.0 / fast, 1e-6);
        }
    }
}

// Several ACKs in one call.

#[track_caller]
fn many_against_single(policy: &Policy, from: u64, most: u32, relative: f64) -> f64 {
    let (mut single, mut worst) = (from, 0f64);
    for n in 1..=most {
        single = unmarked(policy, single, 1);
        let many = unmarked(policy, from, n);
        let error = (many as f64 / single as f64 - 1.0).abs();
        assert!(
            error <= relative,
            "n = {n}, from {}: {error:e}",
            rate_of(from)
        );
        worst = worst.max(error);
    }
    worst
}

/// n ACKs at once against n single ones, HP's constants, from Rmin upwards to full rate.
#[test]
fn many_acks_at_once() {
    for (function, most, relative) in [
        (Function::Lipd, 1500, 1e-9),
        (Function::Fimd, 400, 2e-4),
        (Function::Aimd, 33000, 2e-5),
    ] {
        let policy = Policy::hp(function);
        for from in [256.0, 200.0, 128.0, 50.0, 20.0, 7.0, 2.0, 1.1, 1.0] {
            many_against_single(&policy, (from * ONE as f64) as u64, most, relative);
        }
    }
}

/// Echoes of eight ACKs each must not drift: the whole way from Rmin to Rmax takes as many ACKs as
/// one by one, to 1 %, and AIMD near full rate moves by its 1.5e-5 per ACK.
#[test]
fn coalesced_acks_do_not_drift() {
    for (function, acks) in [
        (Function::Lipd, 1417.0),
        (Function::Fimd, 365.0),
        (Function::Aimd, 32765.0),
    ] {
        for batch in [2, 3, 8, 64] {
            let policy = Policy::hp(function);
            let (mut ipd, mut n) = (policy.ipd_max, 0u32);
            while ipd > ONE {
                ipd = unmarked(&policy, ipd, batch);
                n += batch;
            }
            let error = (f64::from(n) - acks).abs();
            assert!(
                error <= f64::from(batch) + 0.01 * acks,
                "{function:?} by {batch}: {n}"
            );
        }
    }
    let policy = Policy::hp(Function::Aimd);
    let from = ONE + ONE / 100;
    for n in [1, 2, 3, 8, 100] {
        let gained = rate_of(unmarked(&policy, from, n)) - rate_of(from);
        let mut want = rate_of(from);
        for _ in 0..n {
            want += 1.0 / 65536.0 / want;
        }
        close(gained, want - rate_of(from), 1e-6);
    }
}

/// Extreme numbers of ACKs: full rate when there is time enough for it, and not before.
#[test]
fn very_many_acks_at_once() {
    for function in CONTROLLED {
        for (den, m) in [
            (256, (2, 1)),
            (65536, (2, 1)),
            (65536, (16, 1)),
            (2, (3, 2)),
        ] {
            let policy = policy(function, (1, den), m);
            assert_eq!(
                unmarked(&policy, policy.ipd_max, u32::MAX),
                ONE,
                "{function:?} 1/{den}"
            );
        }
    }
    // AIMD with Rmin = 1/65536 needs 2^31 ACKs; after 2^29, r² = 2 n (m - 1) Rmin² = 1/4.
    let policy = policy(Function::Aimd, (1, 65536), (2, 1));
    close(
        rate_of(unmarked(&policy, policy.ipd_max, 1 << 29)),
        0.5,
        1e-5,
    );
    // FIMD: z grows by 1 per ACK, r = n ln m Rmin.
    let policy = self::policy(Function::Fimd, (1, 65536), (2, 1));
    let n = 40_000;
    let want = f64::from(n) * 2f64.ln() / 65536.0;
    close(rate_of(unmarked(&policy, policy.ipd_max, n)), want, 1e-3);
}

// Arithmetic.

#[test]
fn rates_and_delays() {
    // 400 Gbit/s, 100 Gbit/s, HP's 1 GB/s.
    for rmax in [50_000_000_000, 12_500_000_000, 1_000_000_000u64] {
        assert_eq!(rate(ONE, rmax), rmax);
        assert_eq!(rate(2 * ONE, rmax), rmax / 2);
        assert_eq!(rate(IPD_LIMIT << FRAC, rmax), rmax / 65536);
        assert_eq!(rate(u64::MAX, rmax), rmax / 65536);
        assert_eq!(rate(0, rmax), rmax);
    }
    // Rmin = 1/256 of 1 GB/s is 3.90625 MB/s.
    assert_eq!(rate(256 * ONE, 1_000_000_000), 3_906_250);
}

#[test]
fn exponential_and_logarithm() {
    let mut worst = (0f64, 0f64);
    for i in 0..200_000u64 {
        let x = 16.0 * i as f64 / 200_000.0;
        let log = (x * (1u64 << LOG_FRAC) as f64) as u64;
        let got = fixed::shrink(1 << 62, log) as f64 / (1u64 << 62) as f64;
        worst.0 = worst.0.max((got / (-x).exp2() - 1.0).abs());
        let value = x.exp2();
        let got = fixed::log2((value * ONE as f64) as u64, FRAC) as f64 / (1u64 << LOG_FRAC) as f64;
        worst.1 = worst
            .1
            .max((got - ((value * ONE as f64) as u64 as f64 / ONE as f64).log2()).abs());
    }
    println!("2^-x: {:e}, log2: {:e}", worst.0, worst.1);
    assert!(worst.0 < 4e-12 && worst.1 < 4e-12, "{worst:?}");
    // Near 1 both keep their relative precision.
    for shift in 12..32 {
        let tiny = 1u64 << (LOG_FRAC - shift);
        let lost = (1u64 << 62) - fixed::shrink(1 << 62, tiny);
        let want = -(-(2f64.ln()) * (-f64::from(shift)).exp2()).exp_m1();
        close(lost as f64 / (1u64 << 62) as f64, want, 2e-9);
        let log = fixed::log2((1 << 60) + (1 << (60 - shift)), 60);
        let want = (-(shift as f64)).exp2().ln_1p() / 2f64.ln();
        close(log as f64 / (1u64 << LOG_FRAC) as f64, want, 1e-8);
    }
}

/// Carries of a product that random factors do not meet: factors of few, long runs of ones.
#[test]
fn products_with_carries() {
    let mut factors = vec![0u64];
    for low in 0..64 {
        for length in [1, 2, 31, 32, 33, 63, 64] {
            factors.push((u64::MAX >> (64 - length)) << low);
            factors.push(!((u64::MAX >> (64 - length)) << low));
        }
    }
    for &a in &factors {
        for &b in &factors {
            let wide = u128::from(a) * u128::from(b);
            assert_eq!(
                fixed::mul_wide(a, b),
                ((wide >> 64) as u64, wide as u64),
                "{a:x} {b:x}"
            );
        }
    }
}

// Policies.

#[test]
fn policies() {
    let hp = Policy::hp(Function::Fimd);
    assert_eq!(hp.ipd_max, 256 * ONE);
    assert_eq!(hp.m, 2 * ONE);
    assert_eq!(hp.log2_m, ONE);
    assert_eq!(hp.rmin, 1 << 56);
    assert_eq!(hp.m_less_1, 1 << 59);
    close(hp.ln_m as f64 / (1u64 << 59) as f64, 2f64.ln(), 1e-9);
    close(
        hp.log2_lipd as f64 / (1u64 << LOG_FRAC) as f64,
        -(255f64 / 256.0).log2(),
        1e-13,
    );
    assert_eq!(Policy::none(), Policy::default());
    for (rmin, m, error) in [
        ((0, 1), (2, 1), PolicyError::Zero),
        ((1, 0), (2, 1), PolicyError::Zero),
        ((1, 256), (2, 0), PolicyError::Zero),
        ((1, 1), (2, 1), PolicyError::RminTooLarge),
        ((3, 2), (2, 1), PolicyError::RminTooLarge),
        (((1 << 62) - 1, 1 << 62), (2, 1), PolicyError::RminTooLarge),
        ((1, 65537), (2, 1), PolicyError::RminTooSmall),
        ((1, 1 << 40), (2, 1), PolicyError::RminTooSmall),
        ((1, 256), (1, 1), PolicyError::FactorTooSmall),
        ((1, 256), (0, 1), PolicyError::FactorTooSmall),
        (
            (1, 256),
            ((1 << 62) + 1, 1 << 62),
            PolicyError::FactorTooSmall,
        ),
        ((1, 256), (17, 1), PolicyError::FactorTooLarge),
        ((1, 256), (1 << 40, 1), PolicyError::FactorTooLarge),
        ((1, u64::MAX), (2, 1), PolicyError::Overflow),
    ] {
        let got = Policy::new(
            Function::Lipd,
            Ratio::new(rmin.0, rmin.1),
            Ratio::new(m.0, m.1),
        );
        assert_eq!(got, Err(error), "rmin {rmin:?}, m {m:?}");
        assert!(!error.to_string().is_empty());
    }
    // A floor given as two rates.
    let floor = Ratio::new(3_906_250, 1_000_000_000);
    assert_eq!(Policy::new(Function::Fimd, floor, Policy::HP_M), Ok(hp));
}

// Echoes and rounds.

fn one(ce: u32, received: u32, outstanding: u32) -> Feedback {
    Feedback {
        packets: 1,
        ce,
        received,
        outstanding,
    }
}

const CUT: Reaction = Reaction {
    decreased: 1,
    ignored: 0,
};
const IGNORED: Reaction = Reaction {
    decreased: 0,
    ignored: 1,
};
const NOTHING: Reaction = Reaction {
    decreased: 0,
    ignored: 0,
};

#[test]
fn one_reaction_per_round() {
    let policy = Policy::hp(Function::Lipd);
    let mut state = State::new();
    // Ten packets are outstanding beyond the first mark: marks on those do not count, the next one does.
    assert_eq!(state.on_echo(&policy, one(1, 100, 10), 0), CUT);
    assert_eq!((state.ipd, state.round_end), (2 * ONE, 110));
    for received in 101..=110 {
        assert_eq!(
            state.on_echo(&policy, one(1, received, 12), 0),
            IGNORED,
            "{received}"
        );
        assert_eq!(state.ipd, 2 * ONE);
    }
    assert_eq!(state.on_echo(&policy, one(1, 111, 12), 0), CUT);
    assert_eq!((state.ipd, state.round_end), (3 * ONE, 123));
    // Unmarked packets of a running round do raise the rate.
    assert_eq!(state.on_echo(&policy, one(0, 112, 12), 0), NOTHING);
    assert_eq!(state.ipd, unmarked(&policy, 3 * ONE, 1));
    assert!(state.ipd < 3 * ONE);
}

/// HP's window of one packet: nothing is outstanding, so the rule changes nothing.
#[test]
fn window_of_one_counts_every_mark() {
    for function in CONTROLLED {
        let round = Policy::hp(function);
        let off = round.with_round(Round::Off, 0);
        let (mut a, mut b) = (State::new(), State::new());
        for (received, ce) in [1, 1, 0, 1, 0, 0, 1, 1, 1, 0].into_iter().enumerate() {
            let echo = one(ce, received as u32, 0);
            assert_eq!(a.on_echo(&round, echo, 0), b.on_echo(&off, echo, 0));
            assert_eq!(a.ipd, b.ipd);
        }
        assert!(a.ipd > 2 * ONE);
    }
}

#[test]
fn the_receivers_count_wraps() {
    let policy = Policy::hp(Function::Fimd);
    let mut state = State::new();
    let start = u32::MAX - 3;
    assert_eq!(state.on_echo(&policy, one(1, start, 8), 0), CUT);
    assert_eq!(state.round_end, 4);
    for i in 1..=8 {
        assert_eq!(
            state.on_echo(&policy, one(1, start.wrapping_add(i), 8), 0),
            IGNORED
        );
    }
    assert_eq!(state.on_echo(&policy, one(1, 5, 8), 0), CUT);
    // Half the number range later, without a mark in between, a mark still counts: a plain serial comparison would place it
    // before the end of the round.
    assert_eq!(state.on_echo(&policy, one(0, 20, 8), 0), NOTHING);
    assert_eq!(state.on_echo(&policy, one(1, (1 << 31) + 20, 8), 0), CUT);
    // The same if no echo at all came in between.
    let late = state.round_end.wrapping_sub(1 << 30);
    assert_eq!(state.on_echo(&policy, one(1, late, 8), 0), CUT);
    // All of the number range later: the round is over.
    let mut state = State::new();
    state.on_echo(&policy, one(1, 100, 8), 0);
    state.on_echo(&policy, one(0, 109, 8), 0);
    assert_eq!(state.on_echo(&policy, one(1, 104, 8), 0), CUT);
    // The marked packet itself, should it be reported twice, is in the round it began.
    let mut state = State::new();
    state.on_echo(&policy, one(1, 100, 8), 0);
    assert_eq!(state.on_echo(&policy, one(1, 100, 8), 0), IGNORED);
    assert_eq!(state.on_echo(&policy, one(1, 101, 8), 0), IGNORED);
    // A new flow whose receiver has a high count already.
    assert_eq!(
        State::new().on_echo(&policy, one(1, u32::MAX - 5, 8), 0),
        CUT
    );
    // A receiver that restarts in the middle of a round.
    let mut state = State::new();
    state.on_echo(&policy, one(1, 1_000_000, 50), 0);
    assert_eq!(state.on_echo(&policy, one(1, 3, 50), 0), CUT);
}

/// A coalesced echo: marks are its last packets; those beyond the round count, once.
#[test]
fn coalesced_echoes() {
    let policy = Policy::hp(Function::Aimd);
    let mut state = State {
        ipd: 4 * ONE,
        ..State::new()
    };
    let echo = Feedback {
        packets: 10,
        ce: 4,
        received: 50,
        outstanding: 20,
    };
    assert_eq!(
        state.on_echo(&policy, echo, 0),
        Reaction {
            decreased: 1,
            ignored: 3
        }
    );
    assert_eq!(state.ipd, marked(&policy, unmarked(&policy, 4 * ONE, 6)));
    assert_eq!(state.round_end, 70);
    // Wholly within the round, up to its end.
    let before = state.ipd;
    let echo = Feedback {
        packets: 20,
        ce: 20,
        received: 70,
        outstanding: 20,
    };
    assert_eq!(
        state.on_echo(&policy, echo, 0),
        Reaction {
            decreased: 0,
            ignored: 20
        }
    );
    assert_eq!(state.ipd, before);
    // Over the end of a round: the last packet may be the marked one, so it counts.
    let mut state = State {
        ipd: 4 * ONE,
        round_end: 70,
        round_packets: 20,
        ..State::new()
    };
    let echo = Feedback {
        packets: 20,
        ce: 2,
        received: 71,
        outstanding: 5,
    };
    assert_eq!(
        state.on_echo(&policy, echo, 0),
        Reaction {
            decreased: 1,
            ignored: 1
        }
    );
    assert_eq!(state.round_end, 76);
    // More marks than packets are impossible; they are limited to the packets.
    let echo = Feedback {
        packets: 1,
        ce: 9,
        received: 100,
        outstanding: 0,
    };
    assert_eq!(State::new().on_echo(&policy, echo, 0), CUT);
    // No new counts.
    let mut state = State {
        ipd: 4 * ONE,
        ..State::new()
    };
    let echo = Feedback {
        packets: 0,
        ce: 3,
        received: 100,
        outstanding: 9,
    };
    assert_eq!(state.on_echo(&policy, echo, 0), NOTHING);
    assert_eq!(
        state,
        State {
            ipd: 4 * ONE,
            ..State::new()
        }
    );
}

#[test]
fn rounds_by_time() {
    let policy = Policy::hp(Function::Lipd).with_round(Round::Time, 1000);
    let mut state = State::new();
    assert_eq!(state.on_echo(&policy, one(1, 1, 0), 5000), CUT);
    assert_eq!(state.on_echo(&policy, one(1, 2, 0), 5999), IGNORED);
    assert_eq!(state.ipd, 2 * ONE);
    assert_eq!(state.on_echo(&policy, one(1, 3, 0), 6000), CUT);
    let echo = Feedback {
        packets: 5,
        ce: 5,
        received: 8,
        outstanding: 0,
    };
    assert_eq!(
        state.on_echo(&policy, echo, 8000),
        Reaction {
            decreased: 1,
            ignored: 4
        }
    );
    // A clock that restarts.
    assert_eq!(state.on_echo(&policy, one(1, 9, 0), 10), CUT);
}

#[test]
fn every_mark_without_rounds() {
    for function in CONTROLLED {
        let policy = Policy::hp(function).with_round(Round::Off, 0);
        for ce in 0..20 {
            let mut state = State {
                ipd: 5 * ONE / 4,
                ..State::new()
            };
            let echo = Feedback {
                packets: ce,
                ce,
                received: 50,
                outstanding: 20,
            };
            let reaction = state.on_echo(&policy, echo, 0);
            let decreased = ce.min(MAX_DECREASES);
            assert_eq!(
                reaction,
                Reaction {
                    decreased,
                    ignored: ce - decreased
                }
            );
            let want = (0..decreased).fold(5 * ONE / 4, |ipd, _| marked(&policy, ipd));
            assert_eq!(state.ipd, want, "{function:?} {ce}");
        }
    }
}

#[test]
fn no_control() {
    for policy in [
        Policy::none(),
        Policy::hp(Function::None),
        Policy {
            function: 77,
            ..Policy::hp(Function::Lipd)
        },
    ] {
        assert_eq!(marked(&policy, 123), 123);
        assert_eq!(unmarked(&policy, 123, 7), 123);
        let mut state = State::new();
        let echo = Feedback {
            packets: 9,
            ce: 4,
            received: 9,
            outstanding: 3,
        };
        assert_eq!(state.on_echo(&policy, echo, 1), NOTHING);
        assert_eq!(state, State::new());
    }
}

/// A zeroed map value is a flow at full rate; a delay left by a policy with a lower floor is limited to the new range at the
/// next echo.
#[test]
fn out_of_range_delays_are_clamped() {
    let policy = Policy::hp(Function::Lipd);
    let mut state = State::default();
    state.on_echo(&policy, one(1, 1, 0), 0);
    assert_eq!(state.ipd, 2 * ONE);
    state.ipd = 60_000 * ONE;
    state.on_echo(&policy, one(0, 2, 0), 0);
    assert_eq!(state.ipd, 255 * ONE);
}

// What holds for every parameter.

prop_compose! {
    fn any_policy()(
        function in prop::sample::select(&CONTROLLED[..]),
        den in prop_oneof![2u64..=65536, prop::sample::select(vec![2, 255, 256, 257, 65535, 65536])],
        m in prop_oneof![1001u64..=16000, prop::sample::select(vec![1001, 1500, 2000, 16000])],
    ) -> (Policy, f64, f64) {
        (policy(function, (1, den), (m, 1000)), 1.0 / den as f64, m as f64 / 1000.0)
    }
}

/// A policy and a delay within its range, evenly in the logarithm, both ends included.
fn any_point() -> impl Strategy<Value = (Policy, f64, f64, u64)> {
    (
        any_policy(),
        prop_oneof![8 => 0.0..=1.0, 1 => Just(0.0), 1 => Just(1.0)],
    )
        .prop_map(|((policy, rmin, m), at): ((Policy, f64, f64), f64)| {
            let ipd = (rmin.powf(-at) * ONE as f64) as u64;
            (policy, rmin, m, ipd.clamp(ONE, policy.ipd_max))
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// One step is the papers' equation.
    #[test]
    fn one_step((policy, rmin, m, ipd) in any_point()) {
        let function = Function::from_number(policy.function).unwrap();
        let down = rate_of(marked(&policy, ipd));
        let up = rate_of(unmarked(&policy, ipd, 1));
        let (want_down, want_up) = (fdec(function, rate_of(ipd), rmin, m), finc(function, rate_of(ipd), rmin, m));
        prop_assert!((down / want_down - 1.0).abs() < 1e-11, "fdec {down} {want_down}");
        prop_assert!((up / want_up - 1.0).abs() < 2e-11, "finc {up} {want_up}");
    }

    /// The rate stays within [Rmin, Rmax]; a mark never raises it, and lowers it unless it is at
    /// Rmin; an unmarked ACK never lowers it, more of them not less than fewer, and none stalls.
    #[test]
    fn bounds_and_directions((policy, _, _, ipd) in any_point(), acks in any::<u32>(), few in 1u32..200) {
        let range = ONE..=policy.ipd_max;
        let down = marked(&policy, ipd);
        prop_assert!(range.contains(&down) && (down > ipd || ipd == policy.ipd_max));
        let up = unmarked(&policy, ipd, 1);
        prop_assert!(range.contains(&up) && (up < ipd || ipd == ONE));
        let n = unmarked(&policy, ipd, acks);
        prop_assert!(range.contains(&n) && n <= ipd);
        let (a, b) = (unmarked(&policy, ipd, few), unmarked(&policy, ipd, few + 1));
        prop_assert!(range.contains(&a) && a <= ipd && b <= a + 64, "{a} {b}");
    }

    /// n at once is n one by one.
    #[test]
    fn many_acks((policy, _, _, ipd) in any_point()) {
        many_against_single(&policy, ipd, 200, 2e-4);
    }

    /// Congestion avoidance: finc(fdec(r)) <= r for r >= R1, to 2e-11 of the rate.
    #[test]
    fn congestion_avoidance((policy, rmin, m, ipd) in any_point()) {
        let lipd = policy.function == Function::Lipd as u32;
        let r1 = if lipd { rmin / (1.0 - rmin) } else { m * rmin };
        if r1 > 1.0 {
            return Ok(()); // a mark leads to Rmin from everywhere
        }
        let ipd = ipd.min((ONE as f64 / r1) as u64);
        let after = unmarked(&policy, marked(&policy, ipd), 1);
        prop_assert!(after + 4 + ipd / 50_000_000_000 >= ipd, "{after} {ipd}");
    }

    #[test]
    fn rate_is_the_quotient(rmax in any::<u64>(), ipd in ONE..=IPD_LIMIT << FRAC) {
        let want = (u128::from(rmax) << FRAC) / u128::from(ipd);
        prop_assert_eq!(u128::from(rate(ipd, rmax)), want);
    }

    #[test]
    fn products(a in any::<u64>(), b in any::<u64>(), shift in 1u32..64, down in 0u32..64) {
        let (a, wide) = (a >> down, u128::from(a >> down) * u128::from(b));
        prop_assert_eq!(fixed::mul_wide(a, b), ((wide >> 64) as u64, wide as u64));
        let want = u64::try_from(wide >> shift).unwrap_or(u64::MAX);
        prop_assert_eq!(fixed::mul_shift(a, b, shift), want);
        prop_assert_eq!(fixed::mul_bits(a, b, shift), (wide >> shift) as u64);
        prop_assert_eq!(fixed::mul_32(a, b >> 32), ((u128::from(a) * u128::from(b >> 32)) >> 32) as u64);
    }

    /// For any fields of a policy, an echo neither panics nor leaves the range.
    #[test]
    fn any_bits_are_safe(fields in any::<[u64; 10]>(), function in 0u32..5, round in 0u32..5,
                         ipd in any::<u64>(), echo in any::<[u32; 4]>(), now in any::<u64>()) {
        let policy = Policy {
            function, round, round_ns: fields[0], ipd_max: fields[1] >> (fields[2] & 63), m: fields[3],
            log2_m: fields[4], rmin: fields[5], log2_lipd: fields[6], ln_m: fields[7], m_less_1: fields[8],
            packet_ns: fields[9],
        };
        let mut state = State { ipd, round_end: echo[3], round_packets: echo[2] >> 8, round_until_ns: fields[2], window_ns: fields[2], window_packets: echo[3], ..State::new() };
        let before = state;
        let feedback = Feedback { packets: echo[0], ce: echo[1] >> 3, received: echo[2], outstanding: echo[3] };
        state.on_echo(&policy, feedback, now);
        if CONTROLLED.iter().any(|f| *f as u32 == function) {
            let most = if round == Round::Fractional as u32 { IPD_LIMIT << FRAC } else { policy.ipd_max };
            prop_assert!((ONE..=most.max(ONE)).contains(&state.ipd));
        } else {
            prop_assert_eq!(state, before);
        }
    }

    /// Within a round of random echoes at most one decrease, and every mark is accounted for.
    #[test]
    fn rounds((policy, _, _, ipd) in any_point(), start in any::<u32>(),
              echoes in prop::collection::vec((1u32..20, 0u32..20, 0u32..50), 1..200)) {
        let mut state = State { ipd, ..State::new() };
        let (mut received, mut sent) = (start, start);
        let mut round_end: Option<u32> = None;
        for (packets, ce, more) in echoes {
            received = received.wrapping_add(packets);
            // At least what was received has been sent, and then some more.
            if sent.wrapping_sub(received) > 1 << 31 { sent = received; }
            sent = sent.wrapping_add(more);
            let ce = ce.min(packets);
            let outstanding = sent.wrapping_sub(received);
            let got = state.on_echo(&policy, Feedback { packets, ce, received, outstanding }, 0);
            prop_assert_eq!(got.decreased + got.ignored, ce);
            // The model: the last mark is on packet `received`, and counts if that was sent after
            // the last decrease.
            let counts = ce > 0 && round_end.is_none_or(|end| (received.wrapping_sub(end) as i32) > 0);
            prop_assert_eq!(got.decreased, u32::from(counts));
            if counts { round_end = Some(sent); }
        }
    }
}

//! BCN and QCN on bridges, with the parameters of the schemes in networks ([`crate::fabric::cc`]).

use ecn_core::backward::{Kind, Sampling};
use ecn_core::reaction;
use ecn_units::Rate;

use crate::engine::NS;
use crate::fabric::cc::bcn::BcnParameters;
use crate::fabric::cc::qcn::QcnParameters;
use crate::model::ModelError;

/// What the ports of a bridge sample, on links of this rate with full packets of `frame` bytes. BCN stops no source.
///
/// # Errors
///
/// A parameter out of its range.
pub fn sampling(
    kind: Kind,
    (bcn, qcn): (&BcnParameters, &QcnParameters),
    line: Rate,
    frame: u32,
) -> Result<Sampling, ModelError> {
    Ok(match kind {
        Kind::Marks => Sampling::default(),
        Kind::Bcn => {
            let rules = bcn.rules(line, frame)?;
            let mean = (1_u64 << 32) / rules.sampled.max(1);
            Sampling {
                kind: kind as u32,
                equilibrium_bytes: rules.policy.equilibrium_bytes,
                weight: rules.policy.weight,
                packet_bytes: frame,
                interval: mean as u32,
                severe_bytes: 0,
                // From one packet on: as good as independent draws.
                jitter: (1 << 32) - 1,
            }
        }
        Kind::Qcn => {
            let rules = qcn.rules(line, frame)?;
            Sampling {
                kind: kind as u32,
                equilibrium_bytes: rules.qeq,
                weight: rules.w,
                packet_bytes: frame,
                interval: rules.intervals[0],
                severe_bytes: 0,
                jitter: rules.jitter,
            }
        }
    })
}

/// How sources at a link of this rate react.
///
/// # Errors
///
/// A parameter out of its range.
pub fn reaction(
    (bcn, qcn): (&BcnParameters, &QcnParameters),
    line: Rate,
    frame: u32,
) -> Result<reaction::Policy, ModelError> {
    let mut qcn = qcn.rules(line, frame)?.policy;
    // There it is in picoseconds.
    qcn.stage_time /= NS;
    Ok(reaction::Policy {
        bcn: bcn.rules(line, frame)?.policy,
        qcn,
    })
}

//! BCN and QCN: the parameters for bridges and for data centres ([`crate::fabric::cc`]), and how bridges use them.

pub mod bcn;
pub mod qcn;

use ecn_core::backward::{Kind, Sampling};
use ecn_core::reaction;
use ecn_units::Rate;
use serde::{Serialize, de::DeserializeOwned};
use toml::Table;

use crate::bounds::ModelError;
use crate::engine::NS;
use bcn::BcnParameters;
use qcn::QcnParameters;

/// Parameters with some of them changed: `KEY=VALUE`, separated by commas.
///
/// # Errors
///
/// An unknown key or an invalid value.
pub fn with<T: Serialize + DeserializeOwned>(usual: T, settings: &str) -> Result<T, String> {
    let mut table = Table::try_from(usual).map_err(|error| error.to_string())?;
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("{setting}: expected KEY=VALUE"))?;
        let value = match table.get(key) {
            None => {
                let known: Vec<_> = table.keys().map(String::as_str).collect();
                let known = known.join(", ");
                return Err(format!("no parameter {key}: there are {known}"));
            }
            Some(toml::Value::String(_)) => toml::Value::String(value.to_owned()),
            Some(_) => toml::Value::Integer(
                (value.parse()).map_err(|_| format!("{setting}: expected a whole number"))?,
            ),
        };
        table.insert(key.to_owned(), value);
    }
    table
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

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

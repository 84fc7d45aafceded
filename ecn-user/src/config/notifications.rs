//! `[bcn]` and `[qcn]`: the simulator's parameters, with the defaults of its bridges.

use ecn_sim::fabric::cc::{bcn::BcnParameters, qcn::QcnParameters};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Table;

/// Keys of `[bcn]`. There is no `limiters`: each flow has its own limiter.
pub(super) const BCN_KEYS: &[&str] = &[
    "qeq",
    "w",
    "pm",
    "gd",
    "gi",
    "rate_unit",
    "gain_frame",
    "min_rate",
];

/// Keys of `[qcn]`.
pub(super) const QCN_KEYS: &[&str] = &[
    "qeq",
    "w",
    "sample",
    "jitter",
    "gd",
    "min_decrease",
    "byte_limit",
    "volume_time",
    "stage_timer",
    "stages",
    "rai",
    "rhai",
    "min_rate",
    "clamp_target",
];

/// `[bcn]`
#[derive(Debug, Clone, PartialEq)]
pub struct Bcn(pub BcnParameters);

/// `[qcn]`
#[derive(Debug, Clone, PartialEq)]
pub struct Qcn(pub QcnParameters);

impl Default for Bcn {
    fn default() -> Self {
        Self(BcnParameters::bridge())
    }
}

impl Default for Qcn {
    fn default() -> Self {
        Self(QcnParameters::bridge())
    }
}

fn over<'de, D: Deserializer<'de>, T: Serialize + DeserializeOwned>(
    defaults: T,
    from: D,
) -> Result<T, D::Error> {
    let mut table = Table::try_from(defaults).map_err(D::Error::custom)?;
    table.extend(Table::deserialize(from)?);
    table.try_into().map_err(D::Error::custom)
}

fn of_file<S: Serializer>(own: &impl Serialize, keys: &[&str], into: S) -> Result<S::Ok, S::Error> {
    let mut own = Table::try_from(own).map_err(S::Error::custom)?;
    own.retain(|key, _| keys.contains(&key));
    own.serialize(into)
}

impl<'de> Deserialize<'de> for Bcn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        over(BcnParameters::bridge(), from).map(Self)
    }
}

impl Serialize for Bcn {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        of_file(&self.0, BCN_KEYS, into)
    }
}

impl<'de> Deserialize<'de> for Qcn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        over(QcnParameters::bridge(), from).map(Self)
    }
}

impl Serialize for Qcn {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        of_file(&self.0, QCN_KEYS, into)
    }
}

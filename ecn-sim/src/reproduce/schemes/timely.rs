//! Statements about TIMELY.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

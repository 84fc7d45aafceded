//! Statements about BCN, Barrass 2006.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

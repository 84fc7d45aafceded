//! Statements about IB CC.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

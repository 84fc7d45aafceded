//! Statements about DCQCN.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

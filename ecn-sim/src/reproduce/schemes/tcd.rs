//! Statements about TCD.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

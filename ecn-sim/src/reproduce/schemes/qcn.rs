//! Statements about QCN, IEEE 802.1Qau.

use super::Claim;

pub(super) const CLAIMS: &[Claim] = &[];

//! Policies as people write them.

use ecn_units::{Fraction, keyword_impls};

use crate::backward::Feedback;
use crate::marking::{MarkAt, Marking};
use crate::response::{Function, Policy, Ratio, Round};
use crate::shares::ShareBy;

keyword_impls!(Marking);
keyword_impls!(MarkAt);
keyword_impls!(Feedback);
keyword_impls!(Function);
keyword_impls!(ShareBy);

impl From<Fraction> for Ratio {
    fn from(fraction: Fraction) -> Self {
        Self::new(fraction.numerator().into(), fraction.denominator().into())
    }
}

impl Policy {
    /// [`Policy::with_round`] by what a file says.
    #[must_use]
    pub const fn with_rounds(self, rounds: ecn_units::Round) -> Self {
        match rounds {
            ecn_units::Round::Off => self.with_round(Round::Off, 0),
            ecn_units::Round::Packets => self.with_round(Round::Packets, 0),
            ecn_units::Round::Time(time) => self.with_round(Round::Time, time.as_nanos()),
            ecn_units::Round::Fractional => self.with_round(Round::Fractional, 0),
        }
    }
}

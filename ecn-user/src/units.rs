//! Rates, durations and fractions as people write them.

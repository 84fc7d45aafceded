//! SipHash against the paper and against the standard library's.

use ecn_core::siphash::siphash;
use proptest::prelude::*;

/// Tag of `message` by the standard library, whose `SipHasher` is SipHash-2-4.
#[expect(deprecated, reason = "a second opinion, and no hash table")]
fn independent(key: [u64; 2], message: &[u64]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
    let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
    hasher.write(&bytes);
    hasher.finish()
}

/// The vector of 8 bytes in the authors' reference implementation: key 00 to 0f, message 00 to 07.
#[test]
fn reference_vector() {
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    assert_eq!(siphash(key, [0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
}

proptest! {
    #[test]
    fn the_standard_library_agrees(key: [u64; 2], message: [u64; 6]) {
        prop_assert_eq!(siphash(key, message), independent(key, &message));
    }
}

//! SipHash-2-4, a keyed hash for short messages (Aumasson and Bernstein, INDOCRYPT 2012), for messages of whole words.

/// One SipRound (figure 2.1 of the paper).
#[inline(always)]
const fn round(v: [u64; 4]) -> [u64; 4] {
    let [mut v0, mut v1, mut v2, mut v3] = v;
    v0 = v0.wrapping_add(v1);
    v2 = v2.wrapping_add(v3);
    v1 = v1.rotate_left(13) ^ v0;
    v3 = v3.rotate_left(16) ^ v2;
    v0 = v0.rotate_left(32);
    v2 = v2.wrapping_add(v1);
    v0 = v0.wrapping_add(v3);
    v1 = v1.rotate_left(17) ^ v2;
    v3 = v3.rotate_left(21) ^ v0;
    v2 = v2.rotate_left(32);
    [v0, v1, v2, v3]
}

/// Two rounds per word of the message.
#[inline(always)]
const fn compress(mut v: [u64; 4], word: u64) -> [u64; 4] {
    v[3] ^= word;
    v = round(round(v));
    v[0] ^= word;
    v
}

/// The hash of `N` words, each little-endian, with a key of 16 bytes as two little-endian words.
#[inline(always)]
#[must_use]
pub const fn siphash<const N: usize>(key: [u64; 2], message: [u64; N]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut i = 0;
    while i < N {
        v = compress(v, message[i]);
        i += 1;
    }
    // The last word has the length in bytes, modulo 256, in its highest byte.
    v = compress(v, (N as u64 * 8) << 56);
    v[2] ^= 0xff;
    v = round(round(round(round(v))));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

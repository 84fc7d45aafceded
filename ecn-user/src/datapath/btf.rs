//! The kernel's type information: BTF (Documentation/bpf/btf.rst of the kernel).
//!
//! aya reads it too, but does not expose it.

use std::path::Path;

use super::Error;

const MAGIC: u32 = 0xeb9f;
/// Words of a type before those of its kind: name, kind and number of entries, size or type.
const TYPE_WORDS: usize = 3;

/// Kind of a type, as far as needed here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A structure or union.
    Struct,
    Enum,
    Pointer,
    Typedef,
    /// const, volatile, restrict or a tag.
    Qualifier,
    Prototype,
    Other,
}

/// A type: its position in the type section, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Type(usize);

/// A member of a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    /// Empty for an anonymous structure or union.
    pub name: &'a [u8],
    /// Number of its type.
    pub of: u32,
    /// Offset in bits.
    pub bits: u32,
}

/// The types of a kernel.
#[derive(Debug)]
pub(super) struct Btf {
    words: Vec<u32>,
    strings: Vec<u8>,
    /// By number, from 1 on.
    types: Vec<Type>,
}

impl Btf {
    /// Reads a file such as `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is not BTF of this machine's byte order.
    pub(super) fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes =
            std::fs::read(path).map_err(|e| Error::Btf(format!("{}: {e}", path.display())))?;
        Self::parse(&bytes).map_err(|what| Error::Btf(format!("{}: {what}", path.display())))
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let header = words(bytes.get(..24).unwrap_or_default());
        let &[magic, header_len, type_at, type_len, string_at, string_len] = header.as_slice()
        else {
            return Err("shorter than a header".to_owned());
        };
        if magic & 0xffff != MAGIC {
            return Err("not BTF of this byte order".to_owned());
        }
        let section = |at: u32, len: u32| {
            let from = header_len as usize + at as usize;
            bytes.get(from..from + len as usize)
        };
        let missing = || "shorter than its header says".to_owned();
        let mut btf = Self {
            words: words(section(type_at, type_len).ok_or_else(missing)?),
            strings: section(string_at, string_len).ok_or_else(missing)?.to_vec(),
            types: Vec::new(),
        };
        let mut at = 0;
        while at < btf.words.len() {
            let t = Type(at);
            btf.types.push(t);
            at += TYPE_WORDS + btf.more_words(t)?;
        }
        if at == btf.words.len() {
            Ok(btf)
        } else {
            Err("the last type is cut off".to_owned())
        }
    }

    /// All types of a name; none for the empty name.
    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Type> + 'a {
        self.types
            .iter()
            .copied()
            .filter(move |&t| !name.is_empty() && self.string(self.word(t, 0)) == name.as_bytes())
    }

    /// A type by its number; `None` for `void`.
    pub(super) fn get(&self, number: u32) -> Option<Type> {
        self.types.get((number as usize).checked_sub(1)?).copied()
    }

    pub(super) fn kind(&self, t: Type) -> Kind {
        match self.kind_number(t) {
            4 | 5 => Kind::Struct,
            6 => Kind::Enum,
            2 => Kind::Pointer,
            8 => Kind::Typedef,
            9..=11 | 18 => Kind::Qualifier,
            13 => Kind::Prototype,
            _ => Kind::Other,
        }
    }

    /// The type that a pointer, typedef or qualifier refers to.
    pub(super) fn target(&self, t: Type) -> Option<Type> {
        self.get(self.word(t, 2))
    }

    /// Members of a structure or union.
    pub(super) fn members(&self, t: Type) -> impl Iterator<Item = Member<'_>> {
        // With this flag, the upper bits of offsets contain the size of a bit field.
        let fields = self.word(t, 1) >> 31 != 0;
        self.entries(t, 3).map(move |at| Member {
            name: self.string(self.words[at]),
            of: self.words[at + 1],
            bits: self.words[at + 2] & if fields { 0xff_ffff } else { u32::MAX },
        })
    }

    /// Names and values of an enumeration of 32 bits.
    pub(super) fn values(&self, t: Type) -> impl Iterator<Item = (&[u8], u32)> {
        self.entries(t, 2)
            .map(|at| (self.string(self.words[at]), self.words[at + 1]))
    }

    /// Number of parameters of a function prototype, or of entries of another type.
    pub(super) fn len(&self, t: Type) -> usize {
        (self.word(t, 1) & 0xffff) as usize
    }

    /// Positions of the entries of a type, of `words` words each.
    fn entries(&self, t: Type, words: usize) -> impl Iterator<Item = usize> {
        let first = t.0 + TYPE_WORDS;
        (0..self.len(t)).map(move |n| first + n * words)
    }

    fn kind_number(&self, t: Type) -> u32 {
        self.word(t, 1) >> 24 & 0x1f
    }

    /// Number of words of a type after the first three.
    fn more_words(&self, t: Type) -> Result<usize, String> {
        if t.0 + TYPE_WORDS > self.words.len() {
            return Err("the last type is cut off".to_owned());
        }
        let entries = self.len(t);
        Ok(match self.kind_number(t) {
            // Integer, variable, declaration tag.
            1 | 14 | 17 => 1,
            // Array.
            3 => 3,
            // Structure, union, data section, enumeration of 64 bits.
            4 | 5 | 15 | 19 => entries * 3,
            // Enumeration, function prototype.
            6 | 13 => entries * 2,
            2 | 7..=12 | 16 | 18 => 0,
            kind => return Err(format!("a type of kind {kind}, which is not known")),
        })
    }

    fn word(&self, t: Type, n: usize) -> u32 {
        self.words[t.0 + n]
    }

    fn string(&self, at: u32) -> &[u8] {
        let from = self.strings.get(at as usize..).unwrap_or_default();
        from.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |w: &[u8]| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// struct s { int; union { int a; }; } with a bit field.
    fn example() -> Vec<u8> {
        let strings = b"\0s\0a\0".to_vec();
        let types = [
            // 1: union { [3] a at 8 }
            [0, 5 << 24 | 1, 4].as_slice(),
            &[3, 3, 8],
            // 2: struct s, with bit fields { [1] at 32 }
            &[1, 1 << 31 | 4 << 24 | 1, 8],
            &[0, 1, 5 << 24 | 32],
            // 3: int
            &[0, 1 << 24, 4, 32],
        ]
        .concat();
        let len = types.len() as u32 * 4;
        let header = [MAGIC | 1 << 16, 24, 0, len, len, strings.len() as u32];
        let words = header.iter().chain(&types);
        words.flat_map(|w| w.to_ne_bytes()).chain(strings).collect()
    }

    #[test]
    fn structures_and_their_members() {
        let btf = Btf::parse(&example()).expect("BTF");
        let s = btf.named("s").next().expect("s");
        assert_eq!(btf.kind(s), Kind::Struct);
        let member = btf.members(s).next().expect("a member");
        assert_eq!((member.name, member.bits), (&b""[..], 32));
        let inner = btf.get(member.of).expect("the union");
        let inner = btf.members(inner).next().expect("a");
        assert_eq!((inner.name, inner.bits), (&b"a"[..], 8));
        assert_eq!(btf.get(0), None, "void");
        assert_eq!(btf.named("").count(), 0);
    }

    #[test]
    fn what_is_cut_off_or_no_btf_is_refused() {
        let whole = example();
        for len in 0..whole.len() {
            Btf::parse(&whole[..len]).expect_err("cut off");
        }
        let mut other = whole;
        other[0] ^= 1;
        Btf::parse(&other).expect_err("another magic");
    }
}

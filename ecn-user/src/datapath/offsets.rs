//! Structure offsets of the running kernel, from its BTF.

use std::path::Path;

use ecn_core::abi::Offsets;

use super::{
    Error,
    btf::{Btf, Kind, Type},
};

/// The kernel's type information.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Resolves the offsets that the programs need.
///
/// # Errors
///
/// The kernel has no BTF, or a structure has no such member.
pub(super) fn resolve() -> Result<Offsets, Error> {
    if !Path::new(BTF).exists() {
        return Err(Error::NoBtf);
    }
    let btf = Btf::from_file(BTF)?;
    let at = |root: &str, path: &[&str]| offset(&btf, root, path);
    let gso_size = at("skb_shared_info", &["gso_size"])?;
    if at("skb_shared_info", &["gso_segs"])? != gso_size + 2 {
        return Err(Error::NoMember(
            "skb_shared_info.gso_segs behind gso_size".to_owned(),
        ));
    }
    Ok(Offsets {
        skb_dev: at("sk_buff", &["dev"])?,
        skb_iif: at("sk_buff", &["skb_iif"])?,
        skb_len: at("sk_buff", &["len"])?,
        skb_data_len: at("sk_buff", &["data_len"])?,
        skb_priority: at("sk_buff", &["priority"])?,
        skb_mac_header: at("sk_buff", &["mac_header"])?,
        skb_head: at("sk_buff", &["head"])?,
        skb_end: at("sk_buff", &["end"])?,
        shinfo_gso_size: gso_size,
        dev_ifindex: at("net_device", &["ifindex"])?,
        dev_net: at("net_device", &["nd_net", "net"])?,
        net_inum: at("net", &["ns", "inum"])?,
        dev_qdisc: at("net_device", &["qdisc"])?,
        qdisc_qlen: at("Qdisc", &["q", "qlen"])?,
        drop_reasons: drop_reasons(&btf).unwrap_or_default(),
    })
}

/// Offset in bytes of a member, given by a path of embedded structures.
fn offset(btf: &Btf, root: &str, path: &[&str]) -> Result<u32, Error> {
    let missing = || Error::NoMember(format!("{root}.{}", path.join(".")));
    let mut at = btf
        .named(root)
        .find(|&t| btf.kind(t) == Kind::Struct)
        .ok_or_else(missing)?;
    let mut bits = 0;
    for (depth, name) in path.iter().enumerate() {
        let (member_bits, inner) = find(btf, at, name).ok_or_else(missing)?;
        bits += member_bits;
        if depth + 1 < path.len() {
            at = inner.ok_or_else(missing)?;
        }
    }
    Ok(bits / 8)
}

/// A member by name, also in anonymous structures and unions: its offset in bits, and its type if that is a structure
/// or union.
fn find(btf: &Btf, of: Type, name: &str) -> Option<(u32, Option<Type>)> {
    for member in btf.members(of) {
        let inner = structure(btf, member.of);
        if member.name == name.as_bytes() {
            return Some((member.bits, inner));
        }
        if member.name.is_empty()
            && let Some(anonymous) = inner
            && let Some((bits, t)) = find(btf, anonymous, name)
        {
            return Some((member.bits + bits, t));
        }
    }
    None
}

/// The structure or union behind typedefs and qualifiers.
fn structure(btf: &Btf, number: u32) -> Option<Type> {
    let mut t = btf.get(number)?;
    while matches!(btf.kind(t), Kind::Typedef | Kind::Qualifier) {
        t = btf.target(t)?;
    }
    (btf.kind(t) == Kind::Struct).then_some(t)
}

/// Reasons with which queueing disciplines drop: their names differ between kernels, and fq and cake have their own.
/// `None` if `kfree_skb` has no reason.
fn drop_reasons(btf: &Btf) -> Option<[u64; 2]> {
    // `__data`, then the arguments of the tracepoint: packet, place, reason.
    if arguments(btf, "btf_trace_kfree_skb")? < 4 {
        return None;
    }
    let reasons = btf
        .named("skb_drop_reason")
        .find(|&t| btf.kind(t) == Kind::Enum)?;
    let mut bits = [0u64; 2];
    for (name, value) in btf.values(reasons) {
        let name = name.strip_prefix(b"SKB_DROP_REASON_").unwrap_or_default();
        let queue: [&[u8]; 4] = [b"QDISC_", b"FQ_", b"CAKE_", b"QUEUE_PURGE"];
        if queue.iter().any(|prefix| name.starts_with(prefix))
            && let Some(word) = bits.get_mut(value as usize / 64)
        {
            *word |= 1 << (value % 64);
        }
    }
    Some(bits)
}

/// Number of arguments of the function that a typedef points to.
fn arguments(btf: &Btf, name: &str) -> Option<usize> {
    let typedef = btf.named(name).find(|&t| btf.kind(t) == Kind::Typedef)?;
    let pointer = btf.target(typedef)?;
    let function = btf.target(pointer)?;
    let is_function = btf.kind(pointer) == Kind::Pointer && btf.kind(function) == Kind::Prototype;
    is_function.then(|| btf.len(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel() {
        if !Path::new(BTF).exists() {
            println!("skipped: no {BTF}");
            return;
        }
        let offsets = resolve().expect("offsets");
        // Members of one structure lie apart, in the order of their declaration.
        assert_eq!(offsets.net_inum % 4, 0);
        assert!(offsets.skb_end < offsets.skb_head);
        assert!(offsets.skb_dev < offsets.skb_iif);
        assert!(
            offsets
                .drop_reasons
                .iter()
                .map(|b| b.count_ones())
                .sum::<u32>()
                >= 2
        );
    }

    #[test]
    fn a_member_that_is_not_there_is_named() {
        if !Path::new(BTF).exists() {
            println!("skipped: no {BTF}");
            return;
        }
        let btf = Btf::from_file(BTF).expect("btf");
        let error = offset(&btf, "sk_buff", &["no_such_member"]).expect_err("missing");
        assert!(
            error.to_string().contains("sk_buff.no_such_member"),
            "{error}"
        );
    }
}

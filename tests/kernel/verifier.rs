//! Every program passes this kernel's verifier.

use ecn_core::abi::name;
use ecn_tests::{kernel_test, note, running::pin};
use ecn_user::datapath::{self, Datapath, Sizes};

/// The verifier gives up at a million instructions; half of that leaves room for other kernels.
const MOST: u32 = 500_000;

#[test]
fn every_program_passes() {
    kernel_test!();
    let sizes = Sizes {
        bridges: 2,
        flows: 1024,
    };
    let mut datapath = Datapath::open(&pin(), sizes).expect("load");
    let verified = datapath.verify().expect("verify");
    let names: Vec<_> = verified.iter().map(|v| v.program.as_str()).collect();
    let usable = |program: &&str| *program != name::DROP || datapath.sees_drops();
    let expected: Vec<_> = name::PROGRAMS.into_iter().filter(usable).collect();
    assert_eq!(names, expected);
    // Old kernels do not report it.
    let reported = verified.iter().any(|program| program.instructions > 0);
    for program in &verified {
        note(&format!(
            "verifier: {} {} instructions",
            program.program, program.instructions
        ));
    }
    for program in &verified {
        assert!(
            program.instructions > 0 || !reported,
            "{} was not loaded",
            program.program
        );
        assert!(
            program.instructions < MOST,
            "{}: {}",
            program.program,
            program.instructions
        );
    }
    drop(datapath);
    assert!(!pin().exists(), "pins remain");
}

/// LLVM drops the result of an atomic addition unless it is sequentially consistent (llvm/llvm-project#91888): the
/// addition then returns nothing, and the register keeps the addend. Where the programs do not use the result, they clear
/// that register at once.
#[test]
fn no_atomic_loses_its_result() {
    /// From linux/bpf_common.h and linux/bpf.h.
    const STX: u8 = 0x03;
    const ATOMIC: u8 = 0xc0;
    const FETCH: i32 = 0x01;
    /// `register = immediate`.
    const SET: u8 = 0xb7;
    kernel_test!();
    let object = aya_obj::Object::parse(datapath::object()).expect("the programs");
    let all = object.functions.values();
    let instructions: Vec<_> = all.flat_map(|function| &function.instructions).collect();
    assert!(instructions.len() > 1000, "{}", instructions.len());
    let is_atomic = |code: u8| code & 0x07 == STX && code & 0xe0 == ATOMIC;
    let additions = || {
        let pairs = instructions.windows(2);
        pairs.filter(|pair| is_atomic(pair[0].code) && pair[0].imm & FETCH == 0)
    };
    let lost = additions().filter(|pair| {
        let emptied = (SET, pair[0].src_reg(), 0);
        (pair[1].code, pair[1].dst_reg(), pair[1].imm) != emptied
    });
    assert!(additions().count() > 0);
    assert_eq!(lost.count(), 0);
}

//! Every program passes this kernel's verifier.

use ecn_core::abi::name;
use ecn_tests::{kernel_test, note, running::pin};
use ecn_user::datapath::{Datapath, Sizes};

/// The verifier gives up beyond a million instructions; half of it leaves other kernels room.
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
    // Old kernels do not tell.
    let told = verified.iter().any(|program| program.instructions > 0);
    for program in &verified {
        note(&format!(
            "verifier: {} {} instructions",
            program.program, program.instructions
        ));
        assert!(
            program.instructions > 0 || !told,
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
    assert!(!pin().exists(), "pins are left");
}

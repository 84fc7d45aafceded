//! `ecn-sim rig`: the rig where there is no kernel for it.

use super::{Error, print};
use crate::output::Output;
use crate::rig::args::RigArgs;
use crate::rig::simulate;

/// Runs the rig's phases in the simulator.
///
/// # Errors
///
/// An option that only a kernel knows, or results that cannot be written.
pub fn run(args: &RigArgs) -> Result<(), Error> {
    // Before any work, not after.
    Output::new(&args.out)?;
    let report = simulate(args)?;
    report.write(&args.out).map_err(Error::failed)?;
    if args.json {
        return print(&report.to_json().map_err(Error::failed)?);
    }
    print(&format!(
        "{}\n{}\nfigures and samples: {}",
        report.table(),
        report.verdict(),
        args.out.display()
    ))
}

//! `ecn-sim rig`: the testbed model, which needs no kernel.

use ecn_report::output::Output;

use crate::rig::args::RigArgs;
use crate::rig::simulate;
use crate::{Error, print};

/// Runs the rig's phases in the testbed model.
///
/// # Errors
///
/// An option that applies only to a kernel, or results that cannot be written.
pub fn run(args: &RigArgs) -> Result<(), Error> {
    // Detects an unwritable folder before any work is done.
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

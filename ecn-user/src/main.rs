//! The `ecn` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ecn_user::cli::main()
}

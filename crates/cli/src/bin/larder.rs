//! The `larder` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_cli::larder()
}

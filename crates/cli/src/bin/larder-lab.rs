//! What `larder lab` goes on as.

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_cli::larder_lab()
}

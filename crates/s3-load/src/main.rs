//! The `millpond-s3-load` command.

fn main() -> std::process::ExitCode {
    millpond_s3_load::cli::run()
}

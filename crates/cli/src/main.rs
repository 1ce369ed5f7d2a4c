//! The `millpond` command.

fn main() {
    let code = millpond_cli::run(std::env::args_os());
    std::process::exit(code);
}

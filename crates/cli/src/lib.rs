//! The command line. The Python package's `millpond` command calls [`run`] too.
//!
//! Reading order: `commands` (all commands, and the module that runs each), `exit` (how a command went),
//! `output` (standard output), then a module for each command. Commands do not import `commands`.

mod address;
mod admin;
mod bench;
mod clone;
mod commands;
mod config;
mod dev;
mod doctor;
mod engine;
mod exit;
mod files;
mod fsck;
mod interrupt;
mod kv;
mod log;
mod man;
mod metas;
mod mount;
mod output;
mod reference;
mod s3;
mod server;
mod simulate;
mod trash;
mod warmup;

pub use commands::run;
pub use reference::reference;

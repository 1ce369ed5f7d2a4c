//! The Millpond server and its command line.

pub mod admin;
pub mod bench;
pub mod cli;
pub mod config;
pub mod http;
mod link;
mod manager;
pub mod member;
mod meta;
pub mod replica;
pub mod server;
pub mod service;

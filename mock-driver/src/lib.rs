//! A CSI driver on an emulated array of block devices, for exercising the attach/detach path.
//!
//! The array itself is in [`backend`], a pure state machine; everything else brings calls to it
//! ([`service`]), keeps it safe ([`store`]), breaks it on demand ([`fault`]) tells what happened
//! ([`journal`]) and lets people and tests look and meddle ([`admin`]). [`run`] puts it together.

pub mod admin;
pub mod args;
pub mod backend;
pub mod busy;
pub mod clock;
pub mod conduct;
pub mod ctl;
pub mod device;
pub mod driver;
pub mod duration;
pub mod error;
pub mod exit;
pub mod fault;
pub mod journal;
pub mod media;
pub mod method;
pub mod mode;
pub mod mount;
pub mod node;
pub mod offer;
pub mod program;
pub mod proxy;
pub mod readiness;
pub mod registration;
pub mod request;
pub mod run;
pub mod schema;
pub mod service;
pub mod socket;
pub mod store;

mod array;
mod call;
mod code;
mod listing;
mod remote;

/// The examples in Rust of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

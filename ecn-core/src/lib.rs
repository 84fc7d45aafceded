//! Core.
#![no_std]
pub mod fixed;
pub mod response;

//! Tests of the simulator: one binary, since each compiles what it uses of the library again.

mod bridge;
mod design;
mod fabric;
mod fig1;
mod independent;
mod pages;
mod properties;
mod twin;

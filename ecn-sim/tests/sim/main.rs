//! Tests of the simulator as a library and as a program: one binary, since each compiles what it uses of the library again.

mod bridge;
mod cli;
mod design;
mod fabric;
mod fig1;
mod golden;
mod independent;
mod matrix;
mod pages;
mod properties;
mod reproduce;
mod sweep;
mod twin;

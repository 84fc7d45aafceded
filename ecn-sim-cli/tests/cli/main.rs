//! Tests of the simulator as a program: one binary, since each compiles what it uses of the library again.

mod commands;
mod fabric;
mod golden;
mod matrix;
mod recipes;
mod reproduce;
mod sweep;

//! Rig.
<<<<<<< HEAD

pub mod figure;
pub mod report;
=======
pub mod topology;
>>>>>>> w/rig

//! fabric-sim.

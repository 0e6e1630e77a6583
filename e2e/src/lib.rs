//! The whole attach/detach path on one machine: harness, scenarios, playground, benchmarks.

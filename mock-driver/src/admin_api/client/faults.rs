//! Requests for capabilities, fault rules, backend faults, scenarios, fixtures and resets.

use http::Method;
use serde_json::{Value, json};

use super::super::resource::{
    BackendFault, Capability, CapabilityChange, FaultChange, FaultRule, Faults, Released, Scenario,
};
use super::{Client, Error};

impl Client {
    /// Lists all capabilities.
    pub async fn capabilities(&self) -> Result<Vec<Capability>, Error> {
        self.get(&["capabilities"], &[]).await
    }

    /// Enables or disables a capability.
    pub async fn set_capability(&self, name: &str, enabled: bool) -> Result<Capability, Error> {
        self.send(
            Method::PUT,
            &["capabilities", name],
            Some(&CapabilityChange { enabled }),
        )
        .await
    }

    /// Lists the fault rules with their counters.
    pub async fn faults(&self) -> Result<Faults, Error> {
        self.get(&["faults"], &[]).await
    }

    /// Creates or replaces a fault rule, written as in the fault file.
    pub async fn put_fault(&self, rule: &Value) -> Result<FaultRule, Error> {
        self.send(Method::POST, &["faults"], Some(rule)).await
    }

    /// Applies a fault file atomically.
    pub(crate) async fn put_fault_file(&self, file: &Value) -> Result<Faults, Error> {
        self.send(Method::POST, &["scripts"], Some(file)).await
    }

    /// Deletes a fault rule.
    pub async fn remove_fault(&self, id: &str) -> Result<(), Error> {
        self.delete(&["faults", id]).await
    }

    /// Enables or disables a fault rule.
    pub async fn set_fault(&self, id: &str, enabled: bool) -> Result<FaultRule, Error> {
        self.send(Method::PATCH, &["faults", id], Some(&FaultChange { enabled }))
            .await
    }

    /// Releases the calls that a fault rule blocks.
    pub async fn release_fault(&self, id: &str) -> Result<Released, Error> {
        self.send(Method::POST, &["faults", id, "release"], Some(&json!({})))
            .await
    }

    /// Resets the counters of all fault rules.
    pub async fn reset_faults(&self) -> Result<Faults, Error> {
        self.send(Method::POST, &["faults", "reset"], Some(&json!({})))
            .await
    }

    /// Lists the backend faults.
    pub async fn backend_faults(&self) -> Result<Vec<BackendFault>, Error> {
        self.get(&["backend-faults"], &[]).await
    }

    /// Creates or replaces a backend fault, written as in the fault file.
    pub async fn put_backend_fault(&self, fault: &Value) -> Result<BackendFault, Error> {
        self.send(Method::POST, &["backend-faults"], Some(fault)).await
    }

    pub(crate) async fn remove_backend_fault(&self, id: &str) -> Result<(), Error> {
        self.delete(&["backend-faults", id]).await
    }

    /// Enables or disables a backend fault.
    pub async fn set_backend_fault(&self, id: &str, enabled: bool) -> Result<BackendFault, Error> {
        self.send(
            Method::PATCH,
            &["backend-faults", id],
            Some(&FaultChange { enabled }),
        )
        .await
    }

    /// Exports the state of the array as a fixture.
    pub async fn export(&self) -> Result<Value, Error> {
        self.get(&["fixture"], &[]).await
    }

    /// Replaces the state of the array by a fixture.
    pub async fn import(&self, fixture: &Value) -> Result<(), Error> {
        let body = Some(fixture.to_string().into_bytes());
        let path = super::path(&["fixture"], &[]);
        self.exchange(Method::PUT, &path, body).await.map(drop)
    }

    /// Returns the driver to the state after its start.
    pub async fn reset(&self) -> Result<(), Error> {
        let path = super::path(&["reset"], &[]);
        self.exchange(Method::POST, &path, Some(b"{}".to_vec()))
            .await
            .map(drop)
    }

    /// Lists the built-in scenarios.
    pub async fn scenarios(&self) -> Result<Vec<Scenario>, Error> {
        self.get(&["scenarios"], &[]).await
    }

    /// Starts or stops a scenario.
    pub async fn set_scenario(&self, name: &str, enabled: bool) -> Result<Scenario, Error> {
        self.send(Method::PUT, &["scenarios", name], Some(&FaultChange { enabled }))
            .await
    }
}

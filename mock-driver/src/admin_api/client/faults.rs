//! Requests about capabilities, fault rules, troubles and scenarios.

use http::Method;
use serde_json::{Value, json};

use super::super::resource::{
    Capability, CapabilityChange, FaultChange, FaultRule, Faults, Released, Scenario, Trouble,
};
use super::{Client, Error, part};

impl Client {
    /// Every capability there is.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn capabilities(&self) -> Result<Vec<Capability>, Error> {
        self.get("/api/v1/capabilities", &[]).await
    }

    /// Gives the driver a capability or takes it away.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn set_capability(&self, name: &str, enabled: bool) -> Result<Capability, Error> {
        let path = format!("/api/v1/capabilities/{}", part(name));
        self.send(Method::PUT, &path, Some(&CapabilityChange { enabled }))
            .await
    }

    /// The fault rules and how they fare.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn faults(&self) -> Result<Faults, Error> {
        self.get("/api/v1/faults", &[]).await
    }

    /// Puts a fault rule into force, written as in the fault file.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn put_fault(&self, rule: &Value) -> Result<FaultRule, Error> {
        self.send(Method::POST, "/api/v1/faults", Some(rule)).await
    }

    /// Puts all rules and troubles of a fault file into force, or none of them.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub(crate) async fn put_script(&self, script: &Value) -> Result<Faults, Error> {
        self.send(Method::POST, "/api/v1/scripts", Some(script)).await
    }

    /// Takes a fault rule out of force.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn remove_fault(&self, id: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/faults/{}", part(id))).await
    }

    /// Switches a fault rule on or off.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn set_fault(&self, id: &str, enabled: bool) -> Result<FaultRule, Error> {
        let path = format!("/api/v1/faults/{}", part(id));
        self.send(Method::PATCH, &path, Some(&FaultChange { enabled }))
            .await
    }

    /// Lets the calls go that a fault rule holds up.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn release_fault(&self, id: &str) -> Result<Released, Error> {
        let path = format!("/api/v1/faults/{}/release", part(id));
        self.send(Method::POST, &path, Some(&json!({}))).await
    }

    /// Sets all counts of all fault rules to zero.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn reset_faults(&self) -> Result<Faults, Error> {
        self.send(Method::POST, "/api/v1/faults/reset", Some(&json!({})))
            .await
    }

    /// The troubles of the array.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn troubles(&self) -> Result<Vec<Trouble>, Error> {
        self.get("/api/v1/troubles", &[]).await
    }

    /// Puts the array into trouble, written as in the fault file.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn put_trouble(&self, trouble: &Value) -> Result<Trouble, Error> {
        self.send(Method::POST, "/api/v1/troubles", Some(trouble)).await
    }

    /// Ends a trouble for good.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub(crate) async fn remove_trouble(&self, id: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/troubles/{}", part(id))).await
    }

    /// Has a trouble begin or end.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn set_trouble(&self, id: &str, enabled: bool) -> Result<Trouble, Error> {
        let path = format!("/api/v1/troubles/{}", part(id));
        self.send(Method::PATCH, &path, Some(&FaultChange { enabled }))
            .await
    }

    /// Every built-in scenario.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn scenarios(&self) -> Result<Vec<Scenario>, Error> {
        self.get("/api/v1/scenarios", &[]).await
    }

    /// Plays a scenario or ends it.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn set_scenario(&self, name: &str, enabled: bool) -> Result<Scenario, Error> {
        let path = format!("/api/v1/scenarios/{}", part(name));
        self.send(Method::PUT, &path, Some(&FaultChange { enabled }))
            .await
    }
}

//! Secrets in CSI requests.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Secret, SecretReference};
use kube::{Api, Client};

use crate::api_error::message_of;

/// The data of the Secret; empty without a reference.
///
/// # Errors
/// The Secret could not be read: the result of `describe` for its name, its namespace and the API server's message.
pub(crate) async fn get_credentials(
    client: &Client,
    reference: Option<&SecretReference>,
    describe: impl FnOnce(&str, &str, &str) -> String,
) -> Result<HashMap<String, String>, String> {
    let Some(reference) = reference else {
        return Ok(HashMap::new());
    };
    let name = reference.name.as_deref().unwrap_or_default();
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let secret = Api::<Secret>::namespaced(client.clone(), namespace)
        .get(name)
        .await
        .map_err(|error| describe(name, namespace, &message_of(&error)))?;
    let data = secret.data.unwrap_or_default().into_iter();
    Ok(data
        .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
        .collect())
}

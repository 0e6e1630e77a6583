//! Requests with default parameters, whose errors name the object.

use std::fmt::Debug;

use anyhow::{Context, Result};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Creates an object.
///
/// # Errors
/// The API server refused it.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let created = api.create(&PostParams::default(), object).await;
    created.with_context(|| format!("create the {} {}", K::kind(&()), object.name_any()))
}

/// Replaces an object.
///
/// # Errors
/// The API server refused it.
pub async fn replace<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let name = object.name_any();
    let replaced = api.replace(&name, &PostParams::default(), object).await;
    replaced.with_context(|| format!("replace the {} {name}", K::kind(&())))
}

/// Requests the deletion of an object.
///
/// # Errors
/// The API server refused it, for example because there is no such object.
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let deleted = api.delete(name, &DeleteParams::default()).await;
    deleted
        .map(drop)
        .with_context(|| format!("delete the {} {name}", K::kind(&())))
}

/// Changes an object.
///
/// # Errors
/// The API server refused it.
pub async fn patch<K, P>(api: &Api<K>, name: &str, patch: &Patch<P>) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    P: Serialize + Debug,
{
    let patched = api.patch(name, &PatchParams::default(), patch).await;
    patched.with_context(|| format!("patch the {} {name}", K::kind(&())))
}

/// Changes the status of an object.
///
/// # Errors
/// The API server refused it.
pub async fn patch_status<K, P>(api: &Api<K>, name: &str, patch: &Patch<P>) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    P: Serialize + Debug,
{
    let patched = api.patch_status(name, &PatchParams::default(), patch).await;
    patched.with_context(|| format!("patch the status of the {} {name}", K::kind(&())))
}

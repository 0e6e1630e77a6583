//! Creates, patches and deletes many objects concurrently.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Maximum number of concurrent requests.
const AT_ONCE: usize = 32;

/// An object of a kind as JSON.
pub(super) fn object<K: DeserializeOwned>(value: Value) -> Result<K> {
    serde_json::from_value(value).context("an object of the harness must be valid")
}

pub(super) async fn create<K>(api: &Api<K>, objects: impl IntoIterator<Item = Result<K>>) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    stream::iter(objects)
        .try_for_each_concurrent(AT_ONCE, |object| async move {
            api.create(&PostParams::default(), &object).await?;
            Ok(())
        })
        .await
}

pub(super) async fn delete<K>(api: &Api<K>, names: &[String]) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    each(names, |name| async move {
        api.delete(name, &DeleteParams::default()).await.map(drop)
    })
    .await
}

/// Removes the finalizers and deletes the objects that still exist.
pub(super) async fn wipe<K>(api: &Api<K>, names: &[String]) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let unless_gone = |result: Result<(), kube::Error>| match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => result,
    };
    each(names, |name| {
        let free = &free;
        async move {
            let freed = api.patch(name, &PatchParams::default(), free).await;
            unless_gone(freed.map(drop))?;
            unless_gone(api.delete(name, &DeleteParams::default()).await.map(drop))
        }
    })
    .await
}

pub(super) async fn patch_status<K>(api: &Api<K>, names: &[String], status: Value) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let patch = Patch::Merge(json!({ "status": status }));
    each(names, |name| {
        let patch = &patch;
        async move {
            api.patch_status(name, &PatchParams::default(), patch)
                .await
                .map(drop)
        }
    })
    .await
}

async fn each<'a, F>(names: &'a [String], request: impl Fn(&'a str) -> F) -> Result<()>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    stream::iter(names)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |name| request(name))
        .await
        .map_err(Into::into)
}

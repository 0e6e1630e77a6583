//! `kubernetes.io/azure-file`: a share of a storage account, whose name is part of the Secret's name.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::AzureFilePersistentVolumeSource;
use kube::{Resource as _, ResourceExt as _};

use super::Fault;
use crate::model::CsiSource;
use crate::model::wire::VolumeObject;

const RESOURCE_GROUP_ANNOTATION: &str = "kubernetes.io/azure-file-resource-group";

/// The provisioner's prefix and suffix of the account's name in the Secret's name.
const SECRET_NAME: (&str, &str) = ("azure-storage-account-", "-secret");

pub(super) fn translate(
    volume: &VolumeObject,
    source: &AzureFilePersistentVolumeSource,
) -> Result<CsiSource, Fault> {
    let claim = || volume.spec.claim_ref.as_ref()?.namespace.as_ref();
    // An empty namespace is not replaced by the claim's.
    let namespace = source.secret_namespace.as_ref().or_else(claim);
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    let namespace = namespace.ok_or(Fault::AzureFileSecretNamespace)?;
    let resource_group = volume.annotations().get(RESOURCE_GROUP_ANNOTATION);
    let handle = format!(
        "{}#{}#{}#{}#{namespace}",
        resource_group.map(String::as_str).unwrap_or_default(),
        account(&source.secret_name),
        source.share_name,
        volume.meta().name.as_deref().unwrap_or_default(),
    );
    Ok(CsiSource {
        handle: handle.into(),
        read_only: source.read_only.unwrap_or_default(),
        attributes: BTreeMap::from([("sharename".to_owned(), source.share_name.clone())]),
        ..CsiSource::default()
    })
}

/// The storage account in the name of a Secret. A name without prefix and suffix is the account's. An account is part of one
/// line.
fn account(secret: &str) -> &str {
    let (before, after) = SECRET_NAME;
    let candidates = secret.match_indices(before).filter_map(|(at, _)| {
        let line = secret[at + before.len()..].split('\n').next()?;
        let account = &line[..line.rfind(after)?];
        (!account.is_empty()).then_some(account)
    });
    { candidates }.next().unwrap_or(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_storage_account_from_the_secret_name() {
        for (secret, expected) in [
            (
                "azure-storage-account-f5713de20cde511e8ba4900-secret",
                "f5713de20cde511e8ba4900",
            ),
            ("my-azure-storage-account-x-secret-of-old", "x"),
            ("azure-storage-account-a-secret-b-secret", "a-secret-b"),
            ("azure-storage-account--secret", "azure-storage-account--secret"),
            ("azure-storage-account-\nazure-storage-account-x-secret", "x"),
            (
                "azure-storage-account-azure-storage-account-x-secret",
                "azure-storage-account-x",
            ),
            ("azure-storage-account--secret-secret", "-secret"),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(account(secret), expected, "{secret:?}");
        }
    }
}

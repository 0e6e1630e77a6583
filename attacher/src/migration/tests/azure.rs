//! `kubernetes.io/azure-disk` and `kubernetes.io/azure-file`.

use super::*;

#[test]
fn translates_only_managed_disks() {
    let of = |disk: Value| translate(&pv(json!({"azureDisk": disk}), nothing(), nothing())).unwrap();
    assert_eq!(
        of(
            json!({"diskURI": "/subscriptions/s/d", "kind": "managed", "cachingMode": "ReadOnly",
                  "fsType": "ext4", "readOnly": true})
        )
        .unwrap()
        .source,
        CsiSource {
            driver: "disk.csi.azure.com".into(),
            handle: "/subscriptions/s/d".into(),
            read_only: true,
            fs_type: "ext4".into(),
            attributes: attributes([
                ("kind", "Managed"),
                ("cachingmode", "ReadOnly"),
                ("fstype", "ext4")
            ]),
            publish_secret: None,
        }
    );
    let bare = of(json!({"diskURI": "d"})).unwrap().source;
    assert_eq!(bare.attributes, attributes([("kind", "Managed")]));
    let empty = of(json!({"diskURI": "d", "cachingMode": "", "fsType": ""}))
        .unwrap()
        .source;
    assert_eq!(
        empty.attributes,
        attributes([("kind", "Managed"), ("cachingmode", ""), ("fstype", "")])
    );
    for kind in ["Shared", "Dedicated", ""] {
        assert_eq!(
            of(json!({"diskURI": "d", "kind": kind})).unwrap_err().to_string(),
            format!("failed to translate in tree pv to CSI: kind({kind}) is not supported in csi migration")
        );
    }
}

#[test]
fn builds_handle_of_file_share_from_group_account_and_namespace() {
    let of = |file: Value, claim: Value, annotations: Value| {
        let spec = json!({"azureFile": file, "claimRef": claim});
        handle(&pv(spec, nothing(), annotations))
    };
    let group = json!({"kubernetes.io/azure-file-resource-group": "rg"});
    let share = json!({"secretName": "azure-storage-account-acc-secret", "shareName": "s"});
    let mut elsewhere = share.clone();
    elsewhere["secretNamespace"] = json!("secrets");
    let mut nowhere = share.clone();
    nowhere["secretNamespace"] = json!("");
    let claim = json!({"namespace": "ns", "name": "c"});
    assert_eq!(
        of(share.clone(), claim.clone(), group).as_deref(),
        Ok("rg#acc#s#pv#ns")
    );
    assert_eq!(
        of(elsewhere, claim.clone(), nothing()).as_deref(),
        Ok("#acc#s#pv#secrets")
    );
    for (share, claim) in [(nowhere, claim), (share, nothing())] {
        assert_eq!(
            of(share, claim, nothing()).unwrap_err(),
            "failed to translate in tree pv to CSI: could not find a secret namespace in PersistentVolumeSource or ClaimRef"
        );
    }
}

use super::*;

#[test]
fn keys_of_topologies_are_names_with_or_without_a_prefix() {
    let long = "x".repeat(SEGMENT_LIMIT + 1);
    let (long_name, long_prefix) = (format!("a/{long}"), format!("{long}/zone"));
    // (key, proper)
    let table = [
        ("zone", true),
        ("topology.mock.csi.local/zone", true),
        ("Company.com/Zone_1", true),
        ("a-b.c_d", true),
        ("x y/zone", false),
        ("a/zone 1", false),
        ("/zone", false),
        ("a/", false),
        ("", false),
        ("a/b/c", false),
        ("-a/zone", false),
        ("a./zone", false),
        ("a/_zone", false),
        ("\u{e9}/zone", false),
        (&long_name, false),
        (&long_prefix, false),
    ];
    for (key, is_proper) in table {
        let message = v1::Topology {
            segments: [(key.to_owned(), "z".to_owned())].into(),
        };
        let found = topology("accessible_topology", &message);
        assert_eq!(found.is_ok(), is_proper, "{key:?}: {found:?}");
        let field = found.err().map(|invalid| invalid.field);
        let expected = (!is_proper).then(|| "accessible_topology.segments".to_owned());
        assert_eq!(field, expected, "{key:?}");
    }
}

#[test]
fn values_of_topologies_are_labels_and_no_key_comes_twice() {
    let long = "x".repeat(SEGMENT_LIMIT + 1);
    // (pairs, a word of the objection)
    let table = [
        (vec![("zone", "eu-1.a_B")], None),
        (vec![("zone", "a"), ("rack", "a")], None),
        (vec![("zone", "")], Some("value of \"zone\"")),
        (vec![("zone", "a b!")], Some("value of \"zone\"")),
        (vec![("zone", &*long)], Some("value of \"zone\"")),
        (vec![("zone", "a"), ("Zone", "b")], Some("twice")),
        (vec![("zone", "a"), ("zone", "a")], Some("twice")),
    ];
    for (pairs, word) in table {
        let found = segments("topology", pairs.iter().copied());
        match word {
            None => assert_eq!(found.unwrap().as_map().len(), pairs.len()),
            Some(word) => {
                let invalid = found.unwrap_err();
                assert_eq!(invalid.field, "topology", "{pairs:?}");
                assert!(invalid.reason.contains(word), "{pairs:?}: {invalid}");
            }
        }
    }
}

#[test]
fn secrets_may_have_kubelets_key_for_tokens() {
    let with_key = |key: &str| secrets(&HashMap::from([(key.to_owned(), "v".to_owned())]));
    for key in ["password", "a.b-C_1", "csi.storage.k8s.io/serviceAccount.tokens"] {
        assert_eq!(with_key(key), Ok(()), "{key}");
    }
    for key in ["", "a b", "a/b", "csi.storage.k8s.io/pod.name"] {
        assert_eq!(with_key(key).unwrap_err().field, "secrets", "{key}");
    }
}

#[test]
fn pod_info_and_tokens_of_kubelet_do_not_count_as_volume_context_or_secrets() {
    let own = ("key".to_owned(), "x".repeat(COLLECTION_LIMIT - 3));
    let tokens = (TOKENS.to_owned(), "x".repeat(COLLECTION_LIMIT));
    let pod = ("csi.storage.k8s.io/pod.name".to_owned(), "x".repeat(253));
    let context = HashMap::from([own.clone(), tokens.clone(), pod]);
    assert_eq!(volume_context(&context).unwrap().len(), 3);
    assert_eq!(secrets(&HashMap::from([own, tokens.clone()])), Ok(()));
    let own = ("key".to_owned(), "x".repeat(COLLECTION_LIMIT - 2));
    let invalid = volume_context(&HashMap::from([own.clone()])).unwrap_err();
    assert_eq!(invalid.field, "volume_context");
    assert_eq!(secrets(&HashMap::from([own])).unwrap_err().field, "secrets");
}

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::NamedTempFile;

use super::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn mk_authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Whether a server with a certificate of `authority` is trusted.
fn trusts(verifier: &FollowsFile, authority: &Authority) -> bool {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["api.example".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let name = ServerName::try_from("api.example").unwrap();
    // The certificates of rcgen are good from 1975 to 4096.
    let now = UnixTime::since_unix_epoch(Duration::from_secs(2_000_000_000));
    verifier
        .verify_server_cert(certificate.der(), &[], &name, &[], now)
        .is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_cluster_s_authority_is_followed() {
    let (old, new) = (mk_authority(), mk_authority());
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), old.pem()).unwrap();
    let verifier = FollowsFile::new(file.path().to_owned()).unwrap();
    assert!(trusts(&verifier, &old) && !trusts(&verifier, &new));
    fs::write(file.path(), old.pem() + &new.pem()).unwrap();
    tokio::time::advance(REREAD - Duration::from_millis(1)).await;
    assert!(!trusts(&verifier, &new));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(trusts(&verifier, &old) && trusts(&verifier, &new));
    for broken in ["", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"] {
        fs::write(file.path(), broken).unwrap();
        tokio::time::advance(REREAD).await;
        assert!(trusts(&verifier, &new), "the last good one holds");
    }
    fs::write(file.path(), new.pem()).unwrap();
    tokio::time::advance(REREAD).await;
    assert!(!trusts(&verifier, &old) && trusts(&verifier, &new));
}

#[test]
fn a_plain_server_needs_no_authority() {
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    assert!(settings(&config).is_ok());
}

#[test]
fn what_cannot_be_read_in_a_bundle_of_authorities_is_left_out() {
    let authority = mk_authority();
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), garbage.to_owned() + &authority.pem()).unwrap();
    assert!(trusts(
        &FollowsFile::new(file.path().to_owned()).unwrap(),
        &authority
    ));
    fs::write(file.path(), garbage).unwrap();
    assert!(FollowsFile::new(file.path().to_owned()).is_err());
}

fn mk_pair(authority: &Authority) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(Vec::new()).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test(start_paused = true)]
async fn a_client_certificate_in_files_is_followed() {
    let authority = mk_authority();
    let (old, new) = (mk_pair(&authority), mk_pair(&authority));
    let (certificate, key) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
    let write = |pair: &(String, String)| {
        fs::write(certificate.path(), &pair.0).unwrap();
        fs::write(key.path(), &pair.1).unwrap();
    };
    write(&old);
    let user = AuthInfo {
        client_certificate: Some(certificate.path().display().to_string()),
        client_key: Some(key.path().display().to_string()),
        ..AuthInfo::default()
    };
    let files = IdentityFiles::of(&user).unwrap().unwrap();
    let shown = || files.identity(Instant::now());
    let first = shown();
    tokio::time::advance(REREAD).await;
    assert!(
        Arc::ptr_eq(&first, &shown()),
        "the same files are the same identity"
    );

    // Only one of the two is replaced yet.
    fs::write(certificate.path(), &new.0).unwrap();
    tokio::time::advance(REREAD).await;
    assert!(Arc::ptr_eq(&first, &shown()));
    write(&new);
    assert!(Arc::ptr_eq(&first, &shown()), "not before it is time");
    files.refused(&first, Instant::now());
    let second = shown();
    assert!(!second.is_same(&first), "a refusal makes it time");

    let in_itself = AuthInfo {
        client_certificate_data: Some(STANDARD.encode(&old.0)),
        ..user
    };
    assert!(IdentityFiles::of(&in_itself).unwrap().is_none());
}

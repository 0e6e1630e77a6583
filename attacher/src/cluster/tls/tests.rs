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

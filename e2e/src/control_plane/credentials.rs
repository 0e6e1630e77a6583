//! Keys, certificates and tokens of one control plane, generated for each run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use ring::rand::{SecureRandom, SystemRandom};

/// Paths of the files; tokens are also written into kubeconfigs.
#[derive(Debug)]
pub(super) struct Credentials {
    /// Certificate of the CA that signed the serving certificate.
    pub(super) ca: PathBuf,
    /// Serving certificate of all components, which listen on 127.0.0.1.
    pub(super) serving_certificate: PathBuf,
    /// Key of that certificate.
    pub(super) serving_key: PathBuf,
    /// Key that signs ServiceAccount tokens.
    pub(super) service_account_key: PathBuf,
    /// Key that verifies these tokens.
    pub(super) service_account_public_key: PathBuf,
    /// The API server's static tokens.
    pub(super) tokens: PathBuf,
    /// Token of a cluster admin.
    pub(super) admin: String,
    /// Token of kube-controller-manager.
    pub(super) controller_manager: String,
    /// Token of kube-scheduler.
    pub(super) scheduler: String,
}

// === impl Credentials ===

impl Credentials {
    /// Writes new credentials into `dir`, which only this user may read.
    pub(super) fn generate(dir: &Path) -> Result<Self> {
        let ca =
            CertifiedIssuer::self_signed(authority(), new_key()?).context("make a certificate authority")?;
        let serving_key = new_key()?;
        let serving = serving()?
            .signed_by(&serving_key, &ca)
            .context("sign the serving certificate")?;
        let service_account_key = new_key()?;
        let credentials = Self {
            ca: dir.join("ca.crt"),
            serving_certificate: dir.join("serving.crt"),
            serving_key: dir.join("serving.key"),
            service_account_key: dir.join("service-account.key"),
            service_account_public_key: dir.join("service-account.pub"),
            tokens: dir.join("tokens.csv"),
            admin: new_token()?,
            controller_manager: new_token()?,
            scheduler: new_token()?,
        };
        write(&credentials.ca, &ca.pem())?;
        write(&credentials.serving_certificate, &serving.pem())?;
        write(&credentials.serving_key, &serving_key.serialize_pem())?;
        write(
            &credentials.service_account_key,
            &service_account_key.serialize_pem(),
        )?;
        write(
            &credentials.service_account_public_key,
            &service_account_key.public_key_pem(),
        )?;
        write(&credentials.tokens, &credentials.token_file())?;
        Ok(credentials)
    }

    /// Token, user, uid and groups. The admin's group is authorized for everything; the components get their
    /// permissions from the default roles for their user names.
    fn token_file(&self) -> String {
        format!(
            "{},admin,admin,\"system:masters\"\n\
             {},system:kube-controller-manager,controller-manager,\n\
             {},system:kube-scheduler,scheduler,\n",
            self.admin, self.controller_manager, self.scheduler
        )
    }
}

// === parts ===

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "csi-e2e");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn serving() -> Result<CertificateParams> {
    // The last one is the first address of the service range, at which pods reach the API server.
    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"].map(str::to_owned);
    let mut params = CertificateParams::new(names).context("name the serving certificate")?;
    params
        .distinguished_name
        .push(DnType::CommonName, "csi-e2e control plane");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate().context("generate a key")
}

fn new_token() -> Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow!("the system has no random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

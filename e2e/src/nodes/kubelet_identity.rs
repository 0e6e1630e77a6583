//! Client certificates with which kubelets authenticate to the API server as `system:node:<name>`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::json;

use crate::kubeconfig;

/// Signs the certificates.
pub(super) struct KubeletAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
}

// === impl KubeletAuthority ===

impl KubeletAuthority {
    /// Creates a CA, and writes its certificate into `dir`.
    pub(super) fn generate(dir: &Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "csi-e2e kubelets");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().context("generate a key")?;
        let issuer = CertifiedIssuer::self_signed(params, key).context("make a certificate authority")?;
        let certificate = dir.join("kubelets.crt");
        fs::write(&certificate, issuer.pem()).context("write the authority's certificate")?;
        Ok(Self { issuer, certificate })
    }

    /// Its certificate, for the API server.
    pub(super) fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Writes the kubeconfig of the kubelet of `node`.
    pub(super) fn write_kubeconfig(&self, path: &Path, node: &str, server: &str, ca: &str) -> Result<()> {
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, format!("system:node:{node}"));
        name.push(DnType::OrganizationName, "system:nodes");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().context("generate a key")?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .context("sign a kubelet's certificate")?;
        let (certificate_file, key_file) = (path.with_extension("crt"), path.with_extension("key"));
        fs::write(&certificate_file, certificate.pem()).context("write a kubelet's certificate")?;
        fs::write(&key_file, key.serialize_pem()).context("write a kubelet's key")?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "nodes", "cluster": {"server": server, "certificate-authority": ca}}],
            "users": [{"name": node, "user": {"client-certificate": certificate_file, "client-key": key_file}}],
            "contexts": [{"name": "nodes", "context": {"cluster": "nodes", "user": node}}],
            "current-context": "nodes",
        });
        kubeconfig::save(path, &kubeconfig)
    }
}
